"""Every replica's own buffers (batch-norm statistics), held by the worker that computes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from worldsize.parallel.world import World
from worldsize.plan import tree

Choice = Literal["mean", "first"]


class ReplicaBuffers:
    """The buffers of one worker's block of replicas; the model holds those of one replica at a time."""

    def __init__(self, model: nn.Module, world: World, replicas: int) -> None:
        self.world, self.replicas = world, replicas
        self.block = tree.block(replicas, world.size, world.worker)
        self.names = [name for name, _ in model.named_buffers()]
        modules = dict(model.named_modules())
        self._places = [(modules[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in self.names]
        self._at = self.block.start
        self._kept = {replica: [buffer.clone() for buffer in self.live] for replica in self.block}

    @property
    def live(self) -> list[Tensor]:
        """The model's buffers, looked up anew: a forward pass may have put another tensor in the place of one."""
        return [module._buffers[name] for module, name in self._places]

    def enter(self, replica: int) -> None:
        """Put this replica's buffers into the model, and keep those that were there."""
        if replica == self._at or not self.names:
            return
        self._keep()
        self._show(self._kept[replica])
        self._at = replica

    @contextmanager
    def evaluation(self, choice: Choice) -> Iterator[None]:
        """Put the buffers for evaluation into the model for a while. Every worker must call this.

        They are the mean over all replicas, summed along the tree, or on request the first replica's, as in stock
        DDP. Whole numbers (the count of batches) are the first replica's.
        """
        if not self.names:
            yield
            return
        self._keep()
        self._show(self._chosen(choice))
        try:
            yield
        finally:
            self._show(self._kept[self._at])

    def gather(self) -> list[list[Tensor]]:
        """The buffers of all replicas of the world, in replica order. Every worker must call this."""
        self._keep()
        columns = [
            self.world.gather_rows(torch.stack([self._kept[replica][i] for replica in self.block]), self.replicas)
            for i in range(len(self.names))
        ]
        return [[column[replica] for column in columns] for replica in range(self.replicas)]

    def load(self, kept: list[list[Tensor]]) -> None:
        """Take over the buffers of all replicas, as `gather` gave them at another world size."""
        for replica in self.block:
            for mine, theirs in zip(self._kept[replica], kept[replica], strict=True):
                mine.copy_(theirs)
        if self.names:
            self._show(self._kept[self._at])

    def _keep(self) -> None:
        if self.names:
            with torch.no_grad():
                torch._foreach_copy_(self._kept[self._at], self.live)

    def _show(self, buffers: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.live, buffers)

    def _chosen(self, choice: Choice) -> list[Tensor]:
        everyone = self.gather()
        first = everyone[0]
        if choice == "first":
            return first
        leaves = [tree.Node(0, replica) for replica in range(self.replicas)]
        chosen = []
        for i, base in enumerate(first):
            if not base.is_floating_point():
                chosen.append(base)
                continue
            # The mean of differences to the first replica: a buffer that never changes keeps its bits.
            differences = [replica[i] - base for replica in everyone]
            chosen.append(base + tree.fold(leaves, differences, torch.add) / self.replicas)
        return chosen
