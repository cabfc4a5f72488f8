"""Buckets: gradients that travel together, and the stack on which a worker adds up those of its replicas."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from worldsize.plan import tree
from worldsize.plan.tree import Node

FIRST_BUCKET_MB = 1.0
LOW_PRECISION = (torch.float16, torch.bfloat16)
_ABSENT = -0.0  # the only number x with x + y == y in every bit for every y


class Slab:
    """One flat copy of a bucket's gradients: a view per parameter, then one number that counts who had a gradient."""

    __slots__ = ("flat", "present", "views")

    def __init__(self, parameters: Sequence[nn.Parameter], length: int, dtype: torch.dtype) -> None:
        self.flat = torch.zeros(length, dtype=dtype, device=parameters[0].device)
        self.views: list[Tensor] = []
        start = 0
        for parameter in parameters:
            self.views.append(self.flat[start : start + parameter.numel()].view(parameter.shape))
            start += parameter.numel()
        self.present = self.flat[start : start + len(parameters)]


class Bucket:
    """Some parameters, and the partial sums of their gradients over this worker's replicas.

    A slab of it divides into so many equal `pieces`. A transport turns the stack of partial sums into `result`, the
    sum over the world.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], pieces: int) -> None:
        self.parameters = list(parameters)
        self.device = parameters[0].device
        # Low-precision gradients are summed in float32 and rounded once, at the end.
        self.dtype = torch.float32 if parameters[0].dtype in LOW_PRECISION else parameters[0].dtype
        numbers = sum(parameter.numel() + 1 for parameter in parameters)
        self.piece = -(-numbers // pieces)
        self.length = self.piece * pieces
        self.missing = 0  # gradients that this backward pass has yet to bring
        self.pushed = False
        self.absent_here = False  # did any parameter lack a gradient in any pass of this step
        self.stack: list[tuple[Node, Slab]] = []
        self.result: Slab | None = None
        self._spare: list[Slab] = []

    def begin(self) -> None:
        """Start a step: no gradients, nothing on the stack, also where the last step was given up half-way."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.result is not None:
            self._spare.append(self.result)
            self.result = None
        self._spare += [slab for _, slab in self.stack]
        self.stack, self.absent_here = [], False

    def take(self) -> Slab:
        """A slab to write into."""
        return self._spare.pop() if self._spare else Slab(self.parameters, self.length, self.dtype)

    def put_back(self, slabs: Sequence[Slab]) -> None:
        self._spare += slabs

    def push(self, replica: int) -> None:
        """Put one replica's gradients on the stack and add up every subtree that this completes."""
        node = Node(0, replica)
        gradients = [parameter.grad for parameter in self.parameters]
        if self.stack and node.follows(self.stack[-1][0]):
            slab = self.stack.pop()[1]
            _add(slab, gradients)
            node = node.parent
        else:
            slab = self.take()
            _copy(slab, gradients)
        for parameter in self.parameters:
            parameter.grad = None
        while self.stack and node.follows(self.stack[-1][0]):
            node, slab = node.parent, self._merge(self.stack.pop()[1], slab)
        self.stack.append((node, slab))
        self.pushed = True

    def fold(self) -> None:
        """Make the stack the result: the sum of all replicas, when they are all this worker's."""
        self.result = tree.fold([node for node, _ in self.stack], [slab for _, slab in self.stack], self._merge)
        self.stack = []

    def hand_over(self) -> None:
        """Give each parameter its synced gradient; None where no replica of the world had one."""
        assert self.result is not None
        # A gradient that was there on this worker is there in the sum: only for the others the counts must be read.
        present = self.result.present.tolist() if self.absent_here else None
        for i, (parameter, view) in enumerate(zip(self.parameters, self.result.views, strict=True)):
            if present is None or present[i] != 0:
                parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)

    def _merge(self, left: Slab, right: Slab) -> Slab:
        left.flat.add_(right.flat)
        self._spare.append(right)
        return left


def _copy(slab: Slab, gradients: list[Tensor | None]) -> None:
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]
    slab.present.fill_(1.0)
    if len(there) < len(gradients):
        for i in set(range(len(gradients))) - set(there):
            slab.views[i].fill_(_ABSENT)
            slab.present[i] = 0.0
    if there:
        torch._foreach_copy_([slab.views[i] for i in there], [g for g in gradients if g is not None])


def _add(slab: Slab, gradients: list[Tensor | None]) -> None:
    there = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if len(there) == len(gradients):
        slab.present.add_(1.0)
    else:
        for i in there:
            slab.present[i] += 1.0
    if there:
        torch._foreach_add_([slab.views[i] for i in there], [g for g in gradients if g is not None])


def group_parameters(parameters: Sequence[nn.Parameter], bucket_mb: float) -> list[list[nn.Parameter]]:
    """Parameters in the order in which backward reaches them, cut by type and size; the first bucket is small.

    Where the cuts are changes when the sending starts, never a bit of the sum.
    """
    groups: list[list[nn.Parameter]] = []
    filled = 0.0
    for parameter in reversed(parameters):
        cap_mb = min(FIRST_BUCKET_MB, bucket_mb) if len(groups) == 1 else bucket_mb
        size_mb = parameter.numel() * parameter.element_size() / 2**20
        alike = groups and (groups[-1][0].dtype, groups[-1][0].device) == (parameter.dtype, parameter.device)
        if not alike or filled + size_mb > cap_mb:
            groups.append([])
            filled = 0.0
        groups[-1].append(parameter)
        filled += size_mb
    return groups
