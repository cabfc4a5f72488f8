"""The losses of a job's passes: refused when one is not finite, kept until somebody asks for their mean."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from worldsize.errors import NotFinite
from worldsize.parallel.world import World
from worldsize.plan import tree


class _Loss(NamedTuple):
    step: int  # of the whole run
    replica: int
    weight: float  # its share of the mean over the global batch
    value: Tensor | float  # a tensor while it is still on a GPU


class Losses:
    """This worker's losses. Those on a GPU are fetched together, so that no step waits for one."""

    def __init__(self, world: World, replicas: int) -> None:
        self.world, self.replicas = world, replicas
        self._kept: list[_Loss] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, loss: Tensor, *, step: int, replica: int, weight: float) -> None:
        """Keep the loss of one pass; on the CPU a NaN or infinite one is refused at once, before its backward pass."""
        value = loss.detach().reshape(()) if loss.is_cuda else loss.item()
        one = _Loss(step, replica, weight, value)
        if isinstance(value, float):
            self._refuse([one])  # type: ignore[list-item]  # its value is a number here
        self._kept.append(one)

    def check(self) -> None:
        """Refuse what has become NaN or infinite on a GPU, the earliest one first. Every worker must call this."""
        if self.world.device.type == "cuda":
            self._fetch()
            mine = next((tuple(loss) for loss in self._kept if not math.isfinite(loss.value)), None)
            self._refuse(sorted(filter(None, self.world.gather(mine))))

    def forget(self, before: int) -> None:
        """Keep none of the steps before this one."""
        self._kept = [loss for loss in self._kept if loss.step >= before]

    def mean(self) -> float:
        """The mean over all steps kept of their mean over the global batch. Every worker must call this."""
        self._fetch()
        mine, self._kept = [tuple(loss) for loss in self._kept], []
        everyone = sorted(loss for theirs in self.world.gather(mine) for loss in theirs)
        self._refuse(everyone)
        steps = len({step for step, *_ in everyone})
        return sum(weight * value for _, _, weight, value in everyone) / steps if steps else math.nan

    def _fetch(self) -> None:
        waiting = [loss.value for loss in self._kept if isinstance(loss.value, Tensor)]
        if waiting:
            values = iter(torch.stack(waiting).tolist())
            self._kept = [
                loss._replace(value=next(values)) if isinstance(loss.value, Tensor) else loss for loss in self._kept
            ]

    def _refuse(self, losses: Iterable[tuple[int, int, float, float]]) -> None:
        for step, replica, _, value in losses:
            if math.isfinite(value):
                continue
            size = self.world.size
            worker = next(w for w in range(size) if replica in tree.block(self.replicas, size, w))
            raise NotFinite(
                f"the loss is {value} at step {step}, replica {replica}, worker {worker}; "
                "a smaller learning rate, a warm-up or clip_norm may help"
            )
