"""The world: where this worker stands, joined in one place and always left again."""

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# The functions of this module keep, as a default, the group there is when it is first imported, and making an optimizer
# imports it. A group kept so outlives destroy_process_group, and one of its threads then ends the process with SIGABRT
# if it lets go of a tensor while Python shuts down. So: import it before there is a group.
import torch.distributed.nn.functional

from worldsize.errors import Misuse
from worldsize.parallel.meeting import meet
from worldsize.parallel.place import Place, place_from
from worldsize.plan.tree import block

LONGEST_LIMIT_S = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A joined world. Every worker must call the methods of this class together."""

    worker: int
    size: int
    device: torch.device
    backend: str
    ours: bool  # did we make the process group, so that we have to destroy it
    limit_s: float = 600

    def gather(self, value: Any) -> list[Any]:
        """What every worker has, in worker order, on every worker; for small plain values."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def gather_rows(
        self, rows: torch.Tensor, replicas: int, *, active: int | None = None, group: Any = None
    ) -> torch.Tensor:
        """One row per replica of the world, in replica order, from each worker's rows for its block.

        With `active` of the first so many replicas alone, from the workers of a `group` that `holding` gave.
        """
        active = replicas if active is None else active
        blocks = (block(replicas, self.size, worker) for worker in range(self.size))
        counts = [min(each.stop, active) - each.start for each in blocks if each.start < active]
        if len(counts) == 1:
            return rows
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded, group=group)
        return torch.cat([theirs[:count] for theirs, count in zip(found, counts, strict=True)])

    def holding(self, replicas: int, active: int) -> Any:
        """The group of the workers that have the first `active` replicas, None for all; every worker must call this."""
        workers = sum(block(replicas, self.size, worker).start < active for worker in range(self.size))
        if workers == self.size:
            return None
        if workers not in _groups:
            _groups[workers] = dist.new_group(range(workers), timeout=timedelta(seconds=self.limit_s))
        return _groups[workers]

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
        while _before_leaving:
            _before_leaving.pop()()
        _groups.clear()
        if self.ours and dist.is_initialized():
            dist.destroy_process_group()
        if _current is self:
            _current = None


def _leave_at_exit() -> None:
    if _current is not None:
        _current.leave()


_current: World | None = None
_given: Place | None = None
_before_leaving: list[Callable[[], None]] = []
_groups: dict[int, Any] = {}  # of the first so many workers


def before_leaving(callback: Callable[[], None]) -> None:
    """Have something that uses the process group let go of it before it is destroyed."""
    _before_leaving.append(callback)


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

    A second call in one process gives the same world. No wait in it is longer than `limit_s`, and a worker that does
    not come within it is named. Every worker must call this.
    """
    global _current
    if not 0 < limit_s <= LONGEST_LIMIT_S:
        raise Misuse(f"a limit of {limit_s} s cannot be; a wait must end, after at most {LONGEST_LIMIT_S:,} s")
    if _current is not None:
        return _current
    if dist.is_initialized():  # the program made its own group: use it, and leave it alone at the end
        place, ours = Place(worker=dist.get_rank(), size=dist.get_world_size(), local=_local_of_foreign_group()), False
        where = pick_device(device, place.local)
        backend = str(dist.get_backend())
    else:
        place = place or _given or place_from(os.environ)
        where = pick_device(device, place.local)
        backend = pick_backend(backend, where)
        ours = place.size > 1
        if ours:
            _meet(place, backend, where, limit_s)
    _current = World(worker=place.worker, size=place.size, device=where, backend=backend, ours=ours, limit_s=limit_s)
    if ours:
        atexit.register(_leave_at_exit)
        # Gloo fails in a worker that is still connecting when another, already connected, leaves.
        _current.barrier()
    return _current


def _local_of_foreign_group() -> int:
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0")


def pick_device(wanted: str | None, local: int) -> torch.device:
    """The device of the worker with this number on its host: a GPU of its own where there are GPUs."""
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


def pick_backend(wanted: str | None, device: torch.device) -> str:
    """The backend of torch.distributed for workers on such a device."""
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
    store = meet(place, limit_s)
    dist.init_process_group(
        backend,
        store=store,
        rank=place.worker,
        world_size=place.size,
        timeout=timedelta(seconds=limit_s),
        **options,
    )
