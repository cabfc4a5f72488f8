"""A run interrupted anywhere and resumed anyhow has the bits of one never interrupted; what does not fit is refused."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from train import trials
from train.jobs import Case, train, train_all

import worldsize
from worldsize.errors import ResumeError
from worldsize.run.pool import run_workers
from worldsize.train.checkpoint import MANIFEST

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
