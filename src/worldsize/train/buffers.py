"""Every replica's own buffers (batch-norm statistics), held by the worker that computes it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from worldsize.errors import Misuse
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
        self._shared = [
            [(other, key) for other in modules.values() for key, tensor in other._buffers.items() if tensor is live]
            for live in self.live
        ]
        self._at: int | None = self.block.start  # whose buffers the model holds; None: those for evaluation
        self._kept = {replica: [buffer.clone() for buffer in self.live] for replica in self.block}

    @property
    def live(self) -> list[Tensor]:
        """The model's buffers, looked up anew: a forward pass may have put another tensor in the place of one."""
        return [module._buffers[name] for module, name in self._places]

    def check(self, model: nn.Module) -> None:
        """Refuse a buffer that nobody swaps between replicas, since what it holds would depend on who computes them."""
        late = [name for name, _ in model.named_buffers() if name not in self.names]
        if late:
            raise Misuse(
                f"buffer {late[0]} appeared after worldsize.join, so replicas would share what is not to be shared; "
                "register it in the model's constructor, or run one forward pass before join"
            )

    def enter(self, replica: int) -> None:
        """Put this replica's buffers into the model, and keep those that were there."""
        if replica == self._at or not self.names:
            return
        self._keep()
        self._show(self._kept[replica])
        self._at = replica

    @contextmanager
    def apart(self) -> Iterator[Callable[[int], None]]:
        """While passes of several replicas are under way: what puts a replica's buffers into the model.

        Each has tensors of its own, since what one replica's graph has saved must not be overwritten by another's.
        """
        self._keep()
        home, own = self.live, {replica: list(kept) for replica, kept in self._kept.items()}
        self._at = None

        def put(replica: int) -> None:
            if self._at is not None:
                own[self._at] = self.live
            self._place(own[replica])
            self._at = replica

        try:
            yield put
        finally:
            if self._at is not None:
                own[self._at], self._at = self.live, None
            self._place(home)
            with torch.no_grad():
                for replica, tensors in own.items():
                    if tensors:
                        torch._foreach_copy_(self._kept[replica], tensors)

    def settle(self, choice: Choice) -> None:
        """Put the buffers for evaluation into the model, until the next replica enters. Every worker must call this.

        They are the mean over all replicas, summed along the tree, or on request the first replica's, as in stock
        DDP. Whole numbers (the count of batches) are the first replica's.
        """
        if self.names:
            self._show(self.chosen(self.gather(), choice))
            self._at = None

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
        self._at = None

    def _keep(self) -> None:
        if self.names and self._at is not None:
            with torch.no_grad():
                torch._foreach_copy_(self._kept[self._at], self.live)

    def _place(self, tensors: list[Tensor]) -> None:
        for places, tensor in zip(self._shared, tensors, strict=True):
            for module, key in places:
                module._buffers[key] = tensor

    def _show(self, buffers: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.live, buffers)

    def chosen(self, everyone: list[list[Tensor]], choice: Choice) -> list[Tensor]:
        """Of the buffers of all replicas, those for evaluation."""
        first = everyone[0]
        if choice == "first":
            return first
        leaves = [tree.Node(0, replica) for replica in range(self.replicas)]
        means = []
        for i, base in enumerate(first):
            if not base.is_floating_point():
                means.append(base)
                continue
            # The mean of differences to the first replica: a buffer that never changes keeps its bits.
            differences = [replica[i] - base for replica in everyone]
            means.append(base + tree.fold(leaves, differences, torch.add) / self.replicas)
        return means
