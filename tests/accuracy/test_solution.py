"""A run is a place in the space of weights, or it is said in a line why not."""

import json

import pytest
import torch
from accuracy.runs import write_run

from worldsize.accuracy.solution import build, check_pair, sets_of, solution
from worldsize.errors import Misuse


def test_the_newest_checkpoint_is_the_model_as_it_is_evaluated(tmp_path):
    found = solution(write_run(tmp_path / "run", model="cnn"))
    model = build(found, sets_of(found))
    assert not any(module.training for module in model.modules())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, found.weights[name])
    assert model[1].num_batches_tracked == 1, "buffers come with it"


def test_the_norm_of_the_run_is_the_norm_of_the_model(tmp_path):
    found = solution(write_run(tmp_path / "run", model="cnn", norm="ghost", ghost_batch=4))
    assert build(found, sets_of(found))[1].ghost_batch == 4


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"state": "failed"}, r"run failed \(the loss is nan at step 3\), so it has no solution"),
        ({"state": "open"}, r"run has not finished; go on with: worldsize train --resume"),
        ({"state": "without checkpoint"}, r"run has no checkpoint to take the weights from"),
        ({"poison": True}, r"run diverged: 1.weight is not finite at step-00000004"),
    ],
)
def test_a_run_without_a_solution_is_refused(how, words, tmp_path):
    with pytest.raises(Misuse, match=words):
        solution(write_run(tmp_path / "run", **how))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(Misuse, match=r"holds no run\.json"):
        solution(tmp_path)


def test_weights_of_another_model_are_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    run = json.loads((folder / "run.json").read_text())
    run["settings"]["model"] = "cnn"
    (folder / "run.json").write_text(json.dumps(run))
    found = solution(folder)
    with pytest.raises(Misuse, match="holds weights of another model than cnn"):
        build(found, sets_of(found))


def test_data_that_has_changed_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    run = json.loads((folder / "run.json").read_text())
    run["settings"]["data"] = "generated:48:1x8x8:4"
    (folder / "run.json").write_text(json.dumps(run))
    with pytest.raises(Misuse, match="was trained on other examples than generated:48:1x8x8:4 has here"):
        sets_of(solution(folder))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"model": "cnn"}, r"a trained model mlp and .*b cnn; a line needs two runs of one model"),
        ({"data": "generated:48:1x8x8:4"}, "a trained data generated:40:1x8x8:4 and .*one data"),
        ({"seed": 1}, r"different generated:40:1x8x8:4 \(seed 0 and 1\); a line needs two runs on the same examples"),
    ],
)
def test_two_solutions_of_other_models_or_data_are_refused(other, words, tmp_path):
    one, two = solution(write_run(tmp_path / "a")), solution(write_run(tmp_path / "b", weights=1, **other))
    with pytest.raises(Misuse, match=words):
        check_pair(one, two)
    check_pair(one, solution(write_run(tmp_path / "c", weights=1, lr=0.3)))
