"""Checkpoints: whole or not there, whatever breaks is noticed, and nothing is pickled."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train import trials

import worldsize
from worldsize.errors import ResumeError
from worldsize.train import checkpoint
from worldsize.train.checkpoint import MANIFEST, Position, State

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
