"""A run interrupted anywhere and resumed anyhow has the bits of one never interrupted; what is broken is noticed."""

import hashlib
import json
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from train import trials
from train.jobs import Case, train, train_all

import worldsize
from worldsize.errors import ResumeError
from worldsize.run.pool import run_workers
from worldsize.train import checkpoint
from worldsize.train.checkpoint import MANIFEST, Position, State

RUNS = [
    Case(optimizer="adamw", replicas=4, epochs=2, scheduled=True),  # batch norm, dropout
    Case(net="mlp", precision="fp16", replicas=6, epochs=3),  # a scaler
    Case(net="transformer", optimizer="adamw", replicas=5, epochs=2, loops=2),
    Case(net="odd", replicas=6, epochs=2, loops=2, beside=True),
    Case(net="mlp", weights="bfloat16", augmented=False, replicas=4, epochs=2, clip_norm=0.5),
]
_whole: dict[Case, dict] = {}


def uninterrupted(case: Case) -> dict:
    if case not in _whole:
        _whole[case] = run_workers(train_all, [case], workers=1)[0][0]
    return _whole[case]


def end_of(found: dict) -> dict:
    """What must be the same; losses and scales only tell of the last sitting."""
    return {name: found[name] for name in ("weights_sha256", "buffers_sha256", "evaluation", "grads_none")}


def interrupted(case: Case, folder: Path, stop: int, first: int, then: int) -> dict:
    saving = replace(case, folder=str(folder), save_every=1)
    for found in run_workers(train, replace(saving, stop_after=stop), workers=first):
        assert found == {"interrupted": stop}
    return run_workers(train, saving, workers=then)[0]


def moments(case: Case) -> list[tuple[int, int, int]]:
    """Every (step after which it is interrupted, workers before, workers after)."""
    steps = uninterrupted(case)["steps"]
    return [(stop, first, then) for stop in range(1, steps) for first in (1, 2, 3, 4) for then in (1, 2, 3, 4)]


@pytest.mark.parametrize("case", RUNS, ids=str)
def test_a_run_interrupted_after_any_step_ends_with_the_bits_of_one_never_interrupted(case, tmp_path):
    expected = end_of(uninterrupted(case))
    for stop, first, then in random.Random(str(case)).sample(moments(case), 3):
        found = interrupted(case, tmp_path / f"{stop}-{first}-{then}", stop, first, then)
        assert end_of(found) == expected, (stop, first, then)


@pytest.mark.proof
@pytest.mark.parametrize("case", RUNS, ids=str)
def test_each_step_is_one_after_which_a_run_can_be_interrupted(case, tmp_path):
    expected = end_of(uninterrupted(case))
    pairs = random.Random(str(case))
    for stop in range(1, uninterrupted(case)["steps"]):
        first, then = pairs.choices((1, 2, 3, 4), k=2)
        found = interrupted(case, tmp_path / f"{stop}-{first}-{then}", stop, first, then)
        assert end_of(found) == expected, (stop, first, then)


def test_a_run_interrupted_at_every_step_on_another_number_of_workers_each_time(tmp_path):
    case = RUNS[0]
    saving = replace(case, folder=str(tmp_path), save_every=1)
    steps = uninterrupted(case)["steps"]
    for stop in range(1, steps):
        run_workers(train, replace(saving, stop_after=stop), workers=1 + stop % 4)
    assert end_of(run_workers(train, saving, workers=2)[0]) == end_of(uninterrupted(case))


def test_resuming_a_finished_run_trains_no_more(tmp_path):
    case = replace(RUNS[0], folder=str(tmp_path))
    first = run_workers(train, case, workers=2)[0]
    again = run_workers(train, case, workers=3)[0]
    assert again["steps"] == 0
    assert again["weights_sha256"] == first["weights_sha256"]
    assert again["evaluation"] == first["evaluation"]


# ---- what is on the disk ---------------------------------------------------------------------------------------------


def some_state(value: float = 1.0, steps: int = 1) -> State:
    weight = torch.full((2, 2), value)
    return State(
        model={"w": weight, "tied": weight},
        optimizer={"state": {0: {"step": torch.tensor(3.0), "none": None}}, "param_groups": [{"betas": (0.9, 0.99)}]},
        buffers={"0.mean": torch.zeros(3, dtype=torch.bfloat16)},
        position=Position(epoch=1, step=2, steps_done=steps, data="x"),
        experiment={"replicas": 4},
        extra={"scheduler": {"last": float("inf"), "on": True, "lambdas": [None], "empty": {}}},
    )


def test_a_state_comes_back_as_it_was(tmp_path):
    checkpoint.write(tmp_path / "step-00000001", some_state())
    found = checkpoint.read(tmp_path / "step-00000001")
    expected = some_state()
    assert (found.position, found.experiment, found.extra) == (expected.position, expected.experiment, expected.extra)
    assert found.optimizer["param_groups"] == [{"betas": (0.9, 0.99)}]
    assert found.optimizer["state"][0]["step"].equal(torch.tensor(3.0))
    assert found.optimizer["state"][0]["none"] is None
    assert found.buffers["0.mean"].dtype == torch.bfloat16
    assert found.model.keys() == {"w", "tied"}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


BREAKS = {"flipped": flip, "cut short": cut, "missing": Path.unlink, "emptied": lambda file: file.write_bytes(b"")}
FILES = ["model.safetensors", "buffers.safetensors", "optimizer.safetensors", "state.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_file_is_noticed(tmp_path, how, file):
    path = tmp_path / "step-00000001"
    checkpoint.write(path, some_state())
    assert {found.name for found in path.iterdir()} == {*FILES, MANIFEST}, "these are all"
    BREAKS[how](path / file)
    with pytest.raises(ResumeError, match=f"{file} is missing or has changed since it was written") as raised:
        checkpoint.read(path)
    assert "\n" not in str(raised.value)


def test_a_broken_manifest_is_noticed(tmp_path):
    path = tmp_path / "step-00000001"
    checkpoint.write(path, some_state())
    cut(path / MANIFEST)
    with pytest.raises(ResumeError, match="has no readable manifest"):
        checkpoint.read(path)


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("file", ["model.safetensors", MANIFEST])
def test_the_newest_that_is_whole_is_used(tmp_path, how, file):
    for steps in (8, 9, 10):
        checkpoint.write(tmp_path / f"step-{steps:08d}", some_state(steps=steps))
    BREAKS[how](tmp_path / "step-00000010" / file)
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000009"
    assert checkpoint.newest(tmp_path / "step-00000008") == tmp_path / "step-00000008"


def test_when_none_is_whole_that_is_said_and_the_run_does_not_start_anew(tmp_path):
    checkpoint.write(tmp_path / "step-00000001", some_state())
    flip(tmp_path / "step-00000001" / "model.safetensors")
    with pytest.raises(ResumeError, match=r"model.safetensors is missing or has changed"):
        checkpoint.newest(tmp_path)


def test_where_there_is_no_checkpoint_there_is_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "nowhere") is None
    job, _ = trials.small_job()
    with job:
        assert job.resume(tmp_path) is False


def test_a_half_written_checkpoint_is_not_one_and_does_not_disturb_the_next(tmp_path):
    checkpoint.write(tmp_path / "step-00000001", some_state())
    partial = tmp_path / ".step-00000002.partial"
    shutil.copytree(tmp_path / "step-00000001", partial)
    (partial / "state.json").unlink()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-00000001"
    checkpoint.write(tmp_path / "step-00000002", some_state(steps=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
    assert checkpoint.read(checkpoint.newest(tmp_path)).position.steps_done == 2


def test_a_checkpoint_can_be_written_again(tmp_path):
    path = tmp_path / "step-00000001"
    for value in (1.0, 2.0):
        checkpoint.write(path, some_state(value))
    assert checkpoint.read(path).model["w"][0, 0] == 2.0
    assert [found.name for found in tmp_path.iterdir()] == ["step-00000001"]


def test_nothing_is_pickled(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for name in ("save", "load"):
        monkeypatch.setattr(torch, name, refuse)
    job, model = trials.small_job()
    with job:
        path = job.save(tmp_path)
        before = worldsize.weights_sha256(model)
        model.weight.data.add_(1)
        assert job.resume(tmp_path)
        assert worldsize.weights_sha256(model) == before
    for file in path.iterdir():
        (load_file if file.suffix == ".safetensors" else lambda file: json.loads(file.read_text()))(file)


def test_what_would_need_pickle_is_refused(tmp_path):
    state = replace(some_state(), extra={"scheduler": {"f": print}})
    with pytest.raises(ResumeError, match=r"extra.scheduler.f is a builtin_function_or_method, which a checkpoint"):
        checkpoint.write(tmp_path / "step-00000001", state)
    assert checkpoint.newest(tmp_path) is None


# ---- onto what it does not fit ---------------------------------------------------------------------------------------


def resume_with(folder: Path, model: nn.Module, optimizer: str = "SGD", **options: object) -> str:
    made = getattr(torch.optim, optimizer)(model.parameters(), 0.1)
    job = worldsize.join(model, made, **{"replicas": 4, "batch_per_replica": 2, **options})
    with job:
        return str(trials.error_of(job.resume, folder))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    job, _ = trials.small_job()
    with job:
        for (x,) in job.batches(trials.numbers(16)):
            job.backward(job.model(x).mean())
        job.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(2, 1), "weight is (1, 1, torch.float32) there and (1, 2, torch.float32) here"),
        (nn.Linear(1, 1).double(), "bias is (1, torch.float32) there and (1, torch.float64) here"),
        (nn.Linear(1, 1, bias=False), "bias is (1, torch.float32) there and absent here"),
        (nn.Sequential(nn.Linear(1, 1)), "bias is (1, torch.float32) there and absent here"),
    ],
)
def test_another_model_is_refused(saved, model, says):
    text = resume_with(saved, model)
    assert "holds another model: " + says in text
    assert text.endswith("build the model as it was, or start anew")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replicas": 8}, "replicas = 4, now it is 8; resume with 4 (only the number of workers may change)"),
        ({"batch_per_replica": 3}, "batch_per_replica = 2, now it is 3"),
        ({"seed": 1}, "seed = 0, now it is 1"),
        ({"clip_norm": 1.0}, "clip_norm = None, now it is 1.0"),
        ({"keep_short": False}, "keep_short = True, now it is False"),
        ({"ema": 0.9}, "ema = None, now it is 0.9"),
        ({"sync": "ddp"}, "sync = exact, now it is ddp"),
        ({"optimizer": "AdamW"}, "optimizer = SGD, now it is AdamW"),
        ({"scaler": torch.amp.GradScaler("cpu")}, "scaler = None, now it is GradScaler"),
    ],
)
def test_another_experiment_is_refused(saved, options, says):
    text = resume_with(saved, nn.Linear(1, 1), **options)
    assert says in text
    assert "\n" not in text


def test_an_average_that_was_kept_is_not_lost_without_a_word(tmp_path):
    job, _ = trials.small_job(ema=0.9)
    with job:
        job.save(tmp_path)
    for options in ({}, {"ema": 0.99}):
        text = resume_with(tmp_path, nn.Linear(1, 1), **options)
        assert f"was trained with ema = 0.9, now it is {options.get('ema')}; resume with 0.9" in text


def test_a_checkpoint_of_before_there_were_averages_and_growing_batches_is_resumed(saved):
    (path,) = saved.glob("step-*")
    rest = json.loads((path / "state.json").read_text())
    del rest["experiment"]["ema"], rest["position"]["batch_per_replica"]
    (path / "state.json").write_text(json.dumps(rest))
    sums = json.loads((path / MANIFEST).read_text())
    sums["state.json"] = hashlib.sha256((path / "state.json").read_bytes()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(sums))
    job, _ = trials.small_job()
    with job:
        assert job.resume(saved)


def test_other_data_are_refused(saved):
    job, _ = trials.small_job()
    with job:
        assert job.resume(saved)
        error = trials.error_of(list, job.batches(trials.numbers(17)))
    assert isinstance(error, ResumeError)
    assert str(error).startswith("the checkpoint was trained on data 16-")


def test_the_same_data_are_known_again_by_their_content(saved):
    job, _ = trials.small_job()
    with job:
        assert job.resume(saved)
        assert isinstance(trials.error_of(list, job.batches(trials.numbers(16, start=1.0))), ResumeError)
