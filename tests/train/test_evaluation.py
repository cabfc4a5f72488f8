"""Evaluation: every example once, nothing changed by it, and a measure that is none is refused."""

import pytest
import torch
from torch import nn
from train import trials
from train.trials import numbers

import worldsize
from worldsize.errors import DataError, LossError
from worldsize.run.pool import run_workers


@pytest.mark.parametrize("examples", [1, 249, 250, 777])
def test_an_evaluation_reads_every_example_once_and_has_the_same_bits_for_every_number_of_workers(examples):
    mean, expected, seen = run_workers(trials.evaluate_alone, examples, workers=1)[0]
    assert mean == (examples - 1) / 2
    assert seen == list(range(examples))
    for workers in (2, 3):
        found = run_workers(trials.evaluate_alone, examples, workers=workers)
        assert [theirs[:2] for theirs in found] == [(mean, expected)] * workers
        assert sorted(place for _, _, places in found for place in places) == seen


def test_a_module_held_in_evaluation_stays_there_after_an_evaluation():
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1)) as job:
        model[1].eval()
        job.evaluate(lambda x: model(x).flatten(), numbers(10))
        assert [module.training for module in model] == [True, False, True]


def test_norms_taken_anew_have_the_statistics_of_the_weights_of_now_and_the_same_bits_on_any_workers():
    found = [run_workers(trials.refit, 300, workers=workers) for workers in (1, 2)]
    (expected,) = found[0]
    assert found[1] == [expected] * 2
    # By hand: a linear layer of slope 3 and intercept 1 on 0 to 299, then the norm of what the first norm makes of it.
    mean, variance, second = expected["fitted"]
    assert (mean, second) == (pytest.approx(1 + 3 * 149.5), pytest.approx(0.0, abs=1e-5))
    assert variance == pytest.approx(expected["by_hand"])
    assert expected["afterwards"] != expected["fitted"]


def test_an_evaluation_that_fails_leaves_the_model_in_training(job):
    def fail(x: torch.Tensor) -> torch.Tensor:
        assert not job.model.training
        raise KeyError("no such label")

    with pytest.raises(KeyError):
        job.evaluate(fail, numbers(3))
    assert job.model.training
    assert torch.is_grad_enabled()


def test_several_measures_have_a_mean_each_taken_without_a_graph(job):
    def measure(x: torch.Tensor) -> dict[str, torch.Tensor]:
        assert not job.model(x).requires_grad
        return {"x": x[:, 0], "large": (x[:, 0] > 1)}

    assert job.evaluate(measure, numbers(4)) == {"x": 1.5, "large": 0.5}


@pytest.mark.parametrize(
    ("measure", "examples", "kind", "says"),
    [
        (lambda x: x.mean(), 3, LossError, r"the measure of evaluate gave \(\) for 3 examples; give a tensor"),
        (lambda x: 1.0, 3, LossError, "gave float for 3 examples"),
        (lambda x: {"right": x[:2, 0]}, 3, LossError, r"the measure right gave \(2,\) for 3 examples"),
        (lambda x: x[:, 0], 0, DataError, "empty"),
    ],
)
def test_a_measure_that_is_none_is_refused_in_one_line(job, measure, examples, kind, says):
    with pytest.raises(kind, match=says) as raised:
        job.evaluate(measure, numbers(examples))
    assert "\n" not in str(raised.value)
