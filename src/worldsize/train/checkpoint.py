"""Checkpoints: a folder of tensors in safetensors, the rest in JSON, and a manifest of SHA-256 sums.

Written beside its place, synced to disk, then renamed, so that a checkpoint is whole or not there. Nothing is pickled.
"""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from worldsize.errors import Misuse, ResumeError

FORMAT = 1
MANIFEST = "manifest.json"
FILES = {"model.safetensors", "buffers.safetensors", "optimizer.safetensors", "state.json"}


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far the data has been read: all that has to be kept of it."""

    epoch: int
    step: int  # of this epoch
    steps_done: int  # of the whole run
    data: str  # the identity of the data set
    batch_per_replica: int = 0  # of this epoch; 0 where it is not known

    def next_step(self) -> "Position":
        return replace(self, step=self.step + 1, steps_done=self.steps_done + 1)

    def next_epoch(self) -> "Position":
        return replace(self, epoch=self.epoch + 1, step=0)

    def on(self, data: str, batch_per_replica: int) -> "Position":
        return replace(self, data=data, batch_per_replica=batch_per_replica)


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that a run needs to go on."""

    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    buffers: dict[str, Tensor]  # "replica.name"
    position: Position
    experiment: dict[str, Any]
    extra: dict[str, Any]  # scheduler, scaler


def prepare(folder: Path) -> None:
    """Make the folder for checkpoints, and see at once whether it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise Misuse(f"save_to {folder} cannot be written: {error.strerror}; name another folder") from None


def write(path: Path, state: State) -> None:
    """Write a checkpoint as the folder `path`; an older one of this name is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.parent / f".{path.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _fill(partial, state)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    old = path.parent / f".{path.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _fill(partial: Path, state: State) -> None:
    tensors: dict[str, Tensor] = {}
    rest = {
        "format": FORMAT,
        "position": asdict(state.position),
        "experiment": state.experiment,
        "optimizer": _split(state.optimizer, "optimizer", tensors),
        "extra": _split(state.extra, "extra", tensors),
    }
    _save(partial / "model.safetensors", state.model)
    _save(partial / "buffers.safetensors", state.buffers)
    _save(partial / "optimizer.safetensors", tensors)
    (partial / "state.json").write_text(json.dumps(rest, indent=1))
    sums = {file.name: _sha256(file) for file in sorted(partial.iterdir())}
    (partial / MANIFEST).write_text(json.dumps(sums, indent=1))
    for file in [*partial.iterdir(), partial]:
        _sync(file)


def newest(folder: Path) -> Path | None:
    """The checkpoint with the most steps that is whole, or the folder itself if it is one; None if there is none.

    Refuses when there are some but none is whole.
    """
    if (folder / MANIFEST).exists():
        return folder
    broken: ResumeError | None = None
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            verify(path)
            return path
        except ResumeError as error:
            broken = broken or error
    if broken:
        raise broken
    return None


def read(path: Path) -> State:
    """Read a checkpoint whose every file has the sum that its manifest says."""
    verify(path)
    try:
        rest = json.loads((path / "state.json").read_text())
        tensors = load_file(path / "optimizer.safetensors")
        return State(
            model=load_file(path / "model.safetensors"),
            buffers=load_file(path / "buffers.safetensors"),
            optimizer=_join(rest["optimizer"], tensors),
            extra=_join(rest["extra"], tensors),
            position=Position(**rest["position"]),
            experiment=rest["experiment"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ResumeError(f"{path} does not read as a checkpoint of format {FORMAT} ({error}); use another") from None


def verify(path: Path) -> None:
    """Compare every file of a checkpoint with its manifest."""
    try:
        sums = json.loads((path / MANIFEST).read_text())
        if not isinstance(sums, dict) or set(sums) != FILES:
            raise ValueError
    except (OSError, ValueError):
        raise ResumeError(f"{path} has no readable {MANIFEST}; it is no checkpoint, or only part of one") from None
    for name, expected in sums.items():
        file = path / name
        if not file.exists() or _sha256(file) != expected:
            raise ResumeError(f"{file} is missing or has changed since it was written; use an older checkpoint")


def fits(state: State, model: dict[str, Tensor], experiment: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another model or another experiment."""
    theirs = {name: (*tensor.shape, tensor.dtype) for name, tensor in state.model.items()}
    ours = {name: (*tensor.shape, tensor.dtype) for name, tensor in model.items()}
    if theirs != ours:
        odd = next(name for name in [*theirs, *ours] if theirs.get(name) != ours.get(name))
        raise ResumeError(
            f"{path} holds another model: {odd} is {theirs.get(odd, 'absent')} there and {ours.get(odd, 'absent')} "
            "here; build the model as it was, or start anew"
        )
    for name, value in experiment.items():
        if state.experiment.get(name) != value:
            raise ResumeError(
                f"{path} was trained with {name} = {state.experiment.get(name)}, now it is {value}; "
                f"resume with {state.experiment.get(name)} (only the number of workers may change)"
            )


def _save(file: Path, tensors: dict[str, Tensor]) -> None:
    # A copy each: tied tensors share memory, which the format refuses.
    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, file)


def _split(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """A state as JSON: tensors are put aside under a name, keys that are no text are marked."""
    if isinstance(value, Tensor):
        tensors[place] = value
        return {"tensor": place}
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[_split(key, place, tensors), _split(item, f"{place}.{key}", tensors)] for key, item in pairs]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_split(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise ResumeError(f"{place} is a {type(value).__name__}, which a checkpoint cannot hold without pickle")


def _join(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "dict":
        return {key: _join(item, tensors) for key, item in held}
    items = [_join(item, tensors) for item in held]
    return tuple(items) if kind == "tuple" else items


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
