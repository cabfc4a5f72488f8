"""The losses of a job's passes, and whatever is to be averaged with them, until somebody asks for their means."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from worldsize.errors import LossError, NotFinite
from worldsize.parallel.world import World
from worldsize.plan import tree


class _Entry(NamedTuple):
    step: int  # of the whole run
    replica: int
    name: str
    weight: float  # of the replica in the mean over the global batch
    value: Tensor | float  # a tensor while it is still on a GPU


class Losses:
    """This worker's losses. Those on a GPU are fetched together, so that no step waits for one."""

    def __init__(self, world: World, replicas: int) -> None:
        self.world, self.replicas = world, replicas
        self._kept: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, loss: Tensor, others: Mapping[str, Tensor], *, step: int, replica: int, weight: float) -> None:
        """Keep what one pass gave; on the CPU a loss that is not finite is refused before its backward pass."""
        for name, given in (("loss", loss), *others.items()):
            value = torch.as_tensor(given).detach()
            if value.numel() != 1:
                raise LossError(f"job.backward got {name} of shape {tuple(value.shape)}; give its mean over the batch")
            entry = _Entry(step, replica, name, weight, value.reshape(()) if value.is_cuda else value.item())
            if not value.is_cuda:
                self._refuse([entry])
            self._kept.append(entry)

    def check(self) -> None:
        """Refuse what has become NaN or infinite on a GPU, the earliest one first. Every worker must call this."""
        if self.world.device.type == "cuda":
            self._fetch()
            bad = (tuple(one) for one in self._kept if one.name == "loss" and not math.isfinite(one.value))
            self._refuse(sorted(filter(None, self.world.gather(next(bad, None)))))

    def forget(self, before: int) -> None:
        """Keep none of the steps before this one."""
        self._kept = [one for one in self._kept if one.step >= before]

    def means(self) -> dict[str, float]:
        """The mean over all steps kept of each value's mean over the global batch. Every worker must call this."""
        self._fetch()
        mine, self._kept = [tuple(one) for one in self._kept], []
        everyone = sorted(one for theirs in self.world.gather(mine) for one in theirs)
        self._refuse(everyone)
        sums, steps = {"loss": 0.0}, {"loss": set[int]()}
        for step, _, name, weight, value in everyone:
            sums[name] = sums.get(name, 0.0) + weight * value
            steps.setdefault(name, set()).add(step)
        return {name: total / len(steps[name]) if steps[name] else math.nan for name, total in sums.items()}

    def _fetch(self) -> None:
        waiting = [one.value for one in self._kept if isinstance(one.value, Tensor)]
        if waiting:
            values = iter(torch.stack([value.double() for value in waiting]).tolist())
            self._kept = [
                one._replace(value=next(values)) if isinstance(one.value, Tensor) else one for one in self._kept
            ]

    def _refuse(self, entries: Iterable[tuple]) -> None:
        for step, replica, name, _, value in entries:
            if name != "loss" or math.isfinite(value):
                continue
            size = self.world.size
            worker = next(w for w in range(size) if replica in tree.block(self.replicas, size, w))
            raise NotFinite(
                f"the loss is {value} at step {step}, replica {replica}, worker {worker}; "
                "a smaller learning rate, a warm-up or clip_norm may help"
            )
