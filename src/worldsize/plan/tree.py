"""The order in which gradients are added: one fixed binary tree over the replicas, whoever computes them.

Node (level k, index i) stands for replicas i * 2**k up to (i + 1) * 2**k. Its sum is left + right; where no replica is
there on the right (the number of replicas is no power of two, or the last batch is short) it is the left sum alone.
The additions therefore depend on the replicas that have examples, never on the workers that hold them. Only a prefix
of the replicas can have examples, so every list of nodes here covers replicas 0 to n without a gap.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Node:
    """A subtree: 2**level replicas from index * 2**level on."""

    level: int
    index: int

    @property
    def parent(self) -> "Node":
        return Node(self.level + 1, self.index // 2)

    def follows(self, left: "Node") -> bool:
        """Is this the right half of the subtree whose left half is `left`?"""
        return self.level == left.level and self.index % 2 == 1 and self.index == left.index + 1


def block(replicas: int, workers: int, worker: int) -> range:
    """The replicas that a worker computes: contiguous, sizes differing by at most one.

    >>> [list(block(8, 3, worker)) for worker in range(3)]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    """
    return range(worker * replicas // workers, (worker + 1) * replicas // workers)


def subtrees(replicas: range) -> list[Node]:
    """The largest whole subtrees inside a block of replicas, from left to right.

    >>> subtrees(range(3, 8))
    [Node(level=0, index=3), Node(level=2, index=1)]
    """
    found: list[Node] = []
    for replica in replicas:
        found.append(Node(0, replica))
        while len(found) > 1 and found[-1].follows(found[-2]):
            found[-2:] = [found[-1].parent]
    return found


def owned(replicas: int, workers: int, active: int) -> list[list[Node]]:
    """Per worker, the subtrees whose sums it brings, when only the first `active` replicas have examples."""
    blocks = (block(replicas, workers, worker) for worker in range(workers))
    return [subtrees(range(min(b.start, active), min(b.stop, active))) for b in blocks]


def fold(nodes: Iterable[Node], values: Iterable[Value], add: Callable[[Value, Value], Value]) -> Value:
    """The sum at the root, given the sums of neighbouring subtrees from left to right.

    >>> fold(subtrees(range(7)), ["(0123)", "(45)", "6"], lambda a, b: f"({a}+{b})")
    '((0123)+((45)+6))'
    """
    stack: list[tuple[Node, Value]] = []
    for node, value in zip(nodes, values, strict=True):
        while stack and node.follows(stack[-1][0]):
            node, value = node.parent, add(stack.pop()[1], value)
        stack.append((node, value))
    root = stack.pop()[1]
    while stack:  # what is left has no right neighbour: it climbs alone until it is one
        root = add(stack.pop()[1], root)
    return root


def copies_held(replicas: int, workers: int) -> float:
    """The most gradient copies that any worker holds at once in `exact` sync, its own backward pass included.

    >>> [copies_held(8, workers) for workers in (1, 2, 4, 8)]
    [4, 3, 2, 2]
    """
    brought = owned(replicas, workers, replicas)
    stacked = max(_deepest(block(replicas, workers, worker)) for worker in range(workers))
    if workers == 1:
        return stacked + 1
    received = max(sum(map(len, brought)) / workers, 1)
    return max(stacked + 1, stacked + received)


def _deepest(replicas: range) -> int:
    """The most partial sums that lie on the stack while a worker goes through its replicas.

    The second of a pair is added to the first where it lies, so it takes no place of its own.
    """
    deepest = 0
    stack: list[Node] = []
    for replica in replicas:
        node = Node(0, replica)
        takes_place = not (stack and node.follows(stack[-1]))
        deepest = max(deepest, len(stack) + takes_place)
        stack.append(node)
        while len(stack) > 1 and stack[-1].follows(stack[-2]):
            stack[-2:] = [stack[-1].parent]
    return deepest


def bytes_relative_to_ring(replicas: int, workers: int) -> float:
    """Bytes that the busiest worker sends per step, as a multiple of what a ring all-reduce sends.

    >>> [round(bytes_relative_to_ring(8, workers), 3) for workers in (2, 3, 4, 8)]
    [1.0, 1.5, 1.0, 1.0]
    """
    if workers == 1:
        return 1.0
    brought = owned(replicas, workers, replicas)
    return (max(map(len, brought)) + 1) / 2
