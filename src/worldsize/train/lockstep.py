"""Lockstep: the passes of all replicas of a worker at once, for layers that need the batches of all replicas.

Each pass runs in a thread of its own, but only one at any time: until it meets a batch norm across workers, forward or
backward, or its end. Then the next has its turn, with its own buffers and random streams. When all have met, their
rows and those of the other workers, in replica order, are what each goes on with.

(On a GPU backward passes share one thread, which cannot wait for itself: there each worker has one replica.)
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from worldsize.errors import Misuse
from worldsize.parallel import norm
from worldsize.train import randomness
from worldsize.train.buffers import ReplicaBuffers

Result = TypeVar("Result")
Gather = Callable[[Tensor], Tensor]  # from the rows of this worker's replicas to those of all replicas


def run(passes: Mapping[int, Callable[[], Result]], buffers: ReplicaBuffers, gather: Gather) -> dict[int, Result]:
    """Run the pass of each of these replicas, all in lockstep; what each gives."""
    if len(passes) == 1:
        ((replica, only),) = passes.items()
        buffers.enter(replica)
        return {replica: _alone(only, gather)}
    turns = {replica: _Turns(one) for replica, one in passes.items()}
    streams: dict[int, Any] = {}
    joint: Tensor | None = None
    with buffers.apart() as put:
        try:
            while True:
                for replica, one in turns.items():
                    put(replica)
                    if replica in streams:
                        randomness.go_on(streams[replica])
                    one.take(joint)
                    streams[replica] = randomness.streams()
                if all(one.over for one in turns.values()):
                    return {replica: one.result for replica, one in turns.items()}
                joint = gather(_rows(turns))
        finally:
            for one in turns.values():
                one.end()


def _alone(only: Callable[[], Result], gather: Gather) -> Result:
    norm.here.rows = lambda row, layer: gather(row.unsqueeze(0))
    try:
        return only()
    finally:
        del norm.here.rows


def _rows(turns: Mapping[int, "_Turns"]) -> Tensor:
    """What the replicas of this worker have brought to where they met."""
    (first, leader), *others = turns.items()
    for replica, one in others:
        if one.layer is not leader.layer or one.row is None or leader.row is None or one.row.shape != leader.row.shape:
            raise Misuse(
                f"replicas {first} and {replica} of one step do not meet at the same batch norms, but a batch norm "
                "across workers needs all replicas; have the model call the same ones in the same order for every batch"
            )
    return torch.stack([one.row for one in turns.values() if one.row is not None])


class _Ended(BaseException):
    """Unwinds a pass that is not to go on."""


class _Turns(Generic[Result]):
    """A replica's pass in a thread of its own, which runs only while `take` waits for it."""

    result: Result

    def __init__(self, function: Callable[[], Result]) -> None:
        self.row: Tensor | None = None  # what it has brought to the layer at which it waits
        self.layer: nn.Module | None = None
        self.over = False
        self._function, self._around = function, _autocast()
        self._joint: Tensor | None = None
        self._error: BaseException | None = None
        self._ending = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def take(self, joint: Tensor | None) -> None:
        """Run until it meets the others again, or to its end; `joint` is what they have met with."""
        if self.over:
            return
        self.row, self.layer, self._joint = None, None, joint
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Leave no thread behind."""
        self._ending = True
        self._go.release()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.get_num_threads()  # has this thread take over how many threads its kernels may use
        norm.here.rows = self._meet
        try:
            with self._around:
                self.result = self._function()
        except BaseException as error:
            self._error = error
        finally:
            self.over = True
            self._back.release()

    def _meet(self, row: Tensor, layer: nn.Module) -> Tensor:
        """What a norm layer calls in this thread: wait until all replicas are there."""
        if not self._ending:
            self.row, self.layer = row, layer
            self._back.release()
            self._go.acquire()
        if self._ending:
            raise _Ended
        assert self._joint is not None
        return self._joint


def _autocast() -> AbstractContextManager:
    """The autocast that is on around the caller, for another thread."""
    if not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return torch.autocast("cpu", torch.get_autocast_dtype("cpu"), cache_enabled=torch.is_autocast_cache_enabled())
