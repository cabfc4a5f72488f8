"""Transports: how the partial sums of all workers become one sum, added along the fixed tree. All give the same bits.

A transport says into how many equal pieces a bucket divides, is told of each bucket when its stack is complete, in
index order and the same on every worker, and at the end leaves the sum over the world in every bucket's `result`.
`Alone` and `ProcessGroup` are those there are.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from worldsize.parallel.bucket import Bucket
from worldsize.parallel.world import World
from worldsize.plan import tree
from worldsize.plan.tree import Node

Owned = list[list[Node]]  # per worker, the subtrees whose sums it brings


class Transport(Protocol):
    pieces: int

    def start(self, bucket: Bucket, owned: Owned) -> None:
        """This worker's stack is complete: begin to exchange it, beside the rest of the backward pass."""

    def finish(self, buckets: list[Bucket]) -> None:
        """Return when every bucket, each of which was started, has its result."""


def transport_for(world: World) -> Transport:
    """The fastest transport between the workers of this world."""
    return Alone() if world.size == 1 else ProcessGroup(world)


class Alone:
    """One worker has all replicas: the tree inside one process."""

    pieces = 1

    def start(self, bucket: Bucket, owned: Owned) -> None:
        """Nobody to send to."""

    def finish(self, buckets: list[Bucket]) -> None:
        for bucket in buckets:
            bucket.fold()


class ProcessGroup:
    """Over gloo or NCCL, by two all-to-alls, so that each worker adds up its piece of every bucket in tree order.

    With equal blocks that moves the bytes of a ring all-reduce. (Not an all-gather for the way back: gloo's took four
    times as long as its all-to-all for the same bytes.)
    """

    def __init__(self, world: World) -> None:
        self.pieces = world.size
        self._side = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None
        self._under_way: list[_Exchange] = []

    def start(self, bucket: Bucket, owned: Owned) -> None:
        exchange = _Exchange(bucket, owned)
        if self._side is None:
            exchange.send()
            self._under_way.append(exchange)
            return
        # On a GPU nothing here waits on the host, so the whole exchange is queued beside the backward pass.
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            exchange.send()
            exchange.fold()
            exchange.wait()

    def finish(self, buckets: list[Bucket]) -> None:
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        exchanges, self._under_way = self._under_way, []
        for exchange in exchanges:
            exchange.fold()
        for exchange in exchanges:
            exchange.wait()


class _Exchange:
    """One bucket on its way through the world."""

    def __init__(self, bucket: Bucket, owned: Owned) -> None:
        self.bucket, self.owned = bucket, owned
        rows = max(sum(map(len, owned)), len(owned))
        self.received = torch.empty(rows * bucket.piece, dtype=bucket.dtype, device=bucket.device)
        self.sent: list[dist.Work] = []

    def send(self) -> None:
        """Start handing out pieces, a round for each subtree of the worker that brings the most."""
        counts, piece, stack = [len(nodes) for nodes in self.owned], self.bucket.piece, self.bucket.stack
        start = 0
        for turn in range(max(counts)):
            bring = [count > turn for count in counts]
            mine = stack[turn][1].flat if turn < len(stack) else self.received[:0]
            into = self.received[start : start + sum(bring) * piece]
            start += into.numel()
            out_splits = None if all(bring) else [piece * flag for flag in bring]
            in_splits = None if all(bring) else [piece * bool(mine.numel())] * len(counts)
            self.sent.append(dist.all_to_all_single(into, mine, out_splits, in_splits, async_op=True))

    def fold(self) -> None:
        """Add the pieces received, in tree order, and start handing the sum back to everyone."""
        self.wait()
        bucket, workers = self.bucket, len(self.owned)
        rows = iter(self.received.view(-1, bucket.piece).unbind())
        at: dict[Node, Tensor] = {}
        for turn in range(max(map(len, self.owned))):
            at |= {nodes[turn]: next(rows) for nodes in self.owned if len(nodes) > turn}
        nodes = [node for nodes in self.owned for node in nodes]
        total = tree.fold(nodes, [at[node] for node in nodes], Tensor.add_)
        outgoing = self.received[: workers * bucket.piece].view(workers, bucket.piece)
        outgoing[1:] = total  # the sum grew in the leftmost row: row 0
        slabs = [slab for _, slab in bucket.stack] or [bucket.take()]
        bucket.stack, bucket.result = [], slabs[0]
        bucket.put_back(slabs[1:])
        self.sent = [dist.all_to_all_single(bucket.result.flat, outgoing.view(-1), async_op=True)]

    def wait(self) -> None:
        for work in self.sent:
            work.wait()
        self.sent = []
