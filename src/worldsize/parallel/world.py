"""The world: where this worker stands, joined in one place and always left again."""

import atexit
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from worldsize.errors import LaunchError, Misuse
from worldsize.plan.tree import block

TORCHRUN = {"worker": "RANK", "size": "WORLD_SIZE", "local": "LOCAL_RANK"}
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")
SRUN = {"worker": "SLURM_PROCID", "size": "SLURM_STEP_NUM_TASKS", "local": "SLURM_LOCALID"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker stands before it has joined: its number, how many there are, and where they meet."""

    worker: int = 0
    size: int = 1
    local: int = 0
    meet: str = ""  # an init_method of torch.distributed; empty for a worker alone

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.size:
            raise LaunchError(f"worker {self.worker} of {self.size}: workers are numbered 0 to {self.size - 1}")


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A joined world. Every worker must call the methods of this class together."""

    worker: int
    size: int
    device: torch.device
    backend: str
    ours: bool  # did we make the process group, so that we have to destroy it

    def gather(self, value: Any) -> list[Any]:
        """What every worker has, in worker order, on every worker; for small plain values."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def gather_rows(self, rows: torch.Tensor, replicas: int) -> torch.Tensor:
        """One row per replica of the world, in replica order, from each worker's rows for its block."""
        if self.size == 1:
            return rows
        counts = [len(block(replicas, self.size, worker)) for worker in range(self.size)]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded)
        return torch.cat([theirs[:count] for theirs, count in zip(found, counts, strict=True)])

    def copy_from_first(self, tensors: list[torch.Tensor]) -> None:
        """Overwrite these tensors, on every worker, with what the first worker has."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def leave(self) -> None:
        """Destroy the process group if it is ours; safe to call twice."""
        global _current
        if self.ours and dist.is_initialized():
            dist.destroy_process_group()
        if _current is self:
            _current = None


_current: World | None = None
_given: Place | None = None


def stand_at(place: Place) -> None:
    """Say where this process stands, instead of the environment; for those who start workers themselves."""
    global _given
    _given = place


def current() -> World | None:
    """The world that this process has joined, if it has."""
    return _current


def join_world(
    place: Place | None = None, *, device: str | None = None, backend: str | None = None, limit_s: float = 600
) -> World:
    """Join the world that the environment describes (torchrun, Slurm, or none: alone), or the one at `place`.

    A second call in one process gives the same world. No wait in it is longer than `limit_s`.
    """
    global _current
    if _current is not None:
        return _current
    if dist.is_initialized():  # the program made its own group: use it, and leave it alone at the end
        place, ours = Place(worker=dist.get_rank(), size=dist.get_world_size(), local=_local_of_foreign_group()), False
        where = _pick_device(device, place.local)
        backend = str(dist.get_backend())
    else:
        place = place or _given or place_from(os.environ)
        where = _pick_device(device, place.local)
        backend = _pick_backend(backend, where)
        ours = place.size > 1
        if ours:
            _meet(place, backend, where, limit_s)
    _current = World(worker=place.worker, size=place.size, device=where, backend=backend, ours=ours)
    if ours:
        atexit.register(_current.leave)
    return _current


def place_from(env: Mapping[str, str]) -> Place:
    """Read what torchrun or srun has set; with none of it set this is a worker alone.

    >>> place_from({})
    Place(worker=0, size=1, local=0, meet='')
    >>> place_from({"RANK": "1"})
    Traceback (most recent call last):
    worldsize.errors.LaunchError: RANK is set but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not: \
launched half-way; start with torchrun or `worldsize run`, or unset RANK
    """
    if "RANK" in env or "WORLD_SIZE" in env:
        wanted = ("RANK", "WORLD_SIZE", *ADDRESS)
        there = [name for name in wanted if name in env]
        missing = [name for name in wanted if name not in env]
        if missing:
            raise LaunchError(
                f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} set but {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not: launched half-way; start with torchrun or "
                f"`worldsize run`, or unset {', '.join(there)}"
            )
        return _place(env, TORCHRUN, "env://")
    if "SLURM_PROCID" in env and "SLURM_STEP_NUM_TASKS" in env:
        missing = [name for name in SRUN.values() if name not in env]
        if missing:
            raise LaunchError(f"srun has set a part of the world only, without {', '.join(missing)}; start with srun")
        if env["SLURM_STEP_NUM_TASKS"] == "1":
            return Place()
        return _place(env, SRUN, f"tcp://{_slurm_address(env)}")
    return Place()


def _place(env: Mapping[str, str], names: Mapping[str, str], meet: str) -> Place:
    numbers = {}
    for field, name in names.items():
        text = env.get(name, "0" if name == "LOCAL_RANK" and env.get("WORLD_SIZE") == "1" else None)
        if text is None or not text.isdigit():
            raise LaunchError(f"{name} is {text!r}, which is no number; start with torchrun or `worldsize run`")
        numbers[field] = int(text)
    return Place(meet=meet, **numbers)


def _slurm_address(env: Mapping[str, str]) -> str:
    """Where the workers of a Slurm step meet: its first host, at a port that only this job step uses."""
    if all(name in env for name in ADDRESS):
        return ":".join(env[name] for name in ADDRESS)
    nodes = env.get("SLURM_STEP_NODELIST", "")
    try:
        listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True)
        first = listed.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        raise LaunchError(
            f"srun gave the hosts as {nodes!r}, which scontrol does not resolve; set MASTER_ADDR and MASTER_PORT"
        ) from None
    step = int(env.get("SLURM_JOB_ID", "0")) * 16 + int(env.get("SLURM_STEP_ID", "0"))
    return f"{first}:{20000 + step % 20000}"


def _local_of_foreign_group() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _pick_device(wanted: str | None, local: int) -> torch.device:
    cuda = torch.cuda.is_available()
    kind = wanted or ("cuda" if cuda else "cpu")
    if kind not in ("cpu", "cuda"):
        raise Misuse(f"device {kind!r}: worldsize trains on 'cpu' or 'cuda'")
    if kind == "cpu":
        return torch.device("cpu")
    if not cuda:
        raise Misuse("device 'cuda' was asked for, but this torch finds no GPU; use --device cpu")
    if local >= torch.cuda.device_count():
        raise Misuse(
            f"worker {local} of this host has no GPU, there are {torch.cuda.device_count()}; "
            f"start at most {torch.cuda.device_count()} workers a host"
        )
    return torch.device("cuda", local)


def _pick_backend(wanted: str | None, device: torch.device) -> str:
    backend = wanted or ("nccl" if device.type == "cuda" else "gloo")
    if backend not in ("gloo", "nccl"):
        raise Misuse(f"backend {backend!r}: there are 'gloo' for the CPU and 'nccl' for GPUs")
    if backend == "nccl" and device.type != "cuda":
        raise Misuse("backend 'nccl' was asked for, but it needs GPUs and the device is the CPU; use gloo")
    return backend


def _meet(place: Place, backend: str, device: torch.device, limit_s: float) -> None:
    options: dict[str, Any] = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options["device_id"] = device
    if place.meet != "env://":
        options |= {"rank": place.worker, "world_size": place.size}
    dist.init_process_group(backend, init_method=place.meet, timeout=timedelta(seconds=limit_s), **options)
