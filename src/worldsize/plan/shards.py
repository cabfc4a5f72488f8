"""Which example goes to which replica at which step: a pure function of (data size, experiment, epoch, seed)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from worldsize.plan.streams import stream_seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """One pass over a data set of `examples` by `replicas`, in steps of one global batch each.

    >>> epoch = Epoch(examples=10, replicas=4, batch_per_replica=2, keep_short=True)
    >>> epoch.steps, epoch.sizes(0), epoch.sizes(1)
    (2, [2, 2, 2, 2], [1, 1, 0, 0])
    """

    examples: int
    replicas: int
    batch_per_replica: int
    keep_short: bool

    @property
    def global_batch(self) -> int:
        return self.replicas * self.batch_per_replica

    @property
    def steps(self) -> int:
        whole, rest = divmod(self.examples, self.global_batch)
        return whole + (1 if rest and self.keep_short else 0)

    def size(self, step: int) -> int:
        """How many examples this step reads, over all replicas."""
        return min(self.global_batch, self.examples - step * self.global_batch)

    def sizes(self, step: int) -> list[int]:
        """How many examples each replica reads; zeros, if any, stand at the end."""
        return [len(range(replica, self.size(step), self.replicas)) for replica in range(self.replicas)]

    def active(self, step: int) -> int:
        """How many replicas, from the first on, have an example at this step."""
        return min(self.replicas, self.size(step))

    def smallest_shard(self) -> int:
        """The fewest examples that any replica with examples reads at any step."""
        if not self.steps:
            return 0
        last = [size for size in self.sizes(self.steps - 1) if size]
        return min(last[-1], self.batch_per_replica)

    def shard(self, order: Tensor, step: int, replica: int) -> Tensor:
        """The examples of one replica at one step: every V-th of the global batch, from `replica` on."""
        start = step * self.global_batch
        return order[start + replica : start + self.size(step) : self.replicas]


def order(examples: int, epoch: int, seed: int, stream: int = 0) -> Tensor:
    """The order of one epoch, a permutation.

    Stream 0, the first data set of an epoch, has the order that `DistributedSampler(seed=seed)` makes for this epoch;
    further data sets and further loops over the same epoch have streams of their own.
    """
    generator = torch.Generator()
    generator.manual_seed(stream_seed(seed, epoch, 0, stream, "order") if stream else seed + epoch)
    return torch.randperm(examples, generator=generator)


def around(examples: int, seed: int, stream: int, start: int, count: int) -> Tensor:
    """Places start to start + count of a data set that goes round again and again, newly shuffled each time.

    >>> sorted(around(5, seed=0, stream=1, start=5, count=5).tolist())
    [0, 1, 2, 3, 4]
    """
    rounds = range(start // examples, (start + count - 1) // examples + 1)
    joined = torch.cat([order(examples, turn, seed, stream) for turn in rounds])
    first = start - rounds.start * examples
    return joined[first : first + count]


def places(
    plan: Epoch,
    block: range,
    steps: range,
    *,
    examples: int,
    seed: int,
    epoch: int,
    steps_done: int,
    stream: int = 0,
    endless: bool = False,
) -> list[Tensor]:
    """For each of these steps, and each replica of a block that has examples, the places in a data set to read.

    `steps_done` counts the steps of the whole run before `steps`. An endless data set goes round and round beside the
    one that the plan is for.
    """
    whole = None if endless else order(examples, epoch, seed, stream)
    found = []
    for step in steps:
        if whole is None:
            start = (steps_done + step - steps.start) * plan.global_batch
            turn = around(examples, seed, stream, start, plan.size(step))
            found += [turn[replica :: plan.replicas] for replica in block if replica < plan.active(step)]
        else:
            found += [plan.shard(whole, step, replica) for replica in block if replica < plan.active(step)]
    return found


def spans(examples: int, block: int) -> Iterator[range]:
    """The fixed blocks in which a data set is evaluated, whatever the world size.

    >>> list(spans(10, 4))
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    for start in range(0, examples, block):
        yield range(start, min(start + block, examples))
