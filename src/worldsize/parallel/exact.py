"""`exact` sync: gradients added along the fixed tree, so that the sum has the same bits for every world size.

Inside a worker the gradients of its replicas go onto a stack of partial sums (tree.py). Across workers, each brings
the sums of the largest whole subtrees it owns: an all-to-all hands every worker its slice of all of them, the worker
adds them in tree order, and a second all-to-all hands the finished slices back. With equal blocks that moves the
bytes of a ring all-reduce. (Not an all-gather: gloo's took four times as long as its all-to-all for the same bytes.)
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from worldsize.errors import Misuse
from worldsize.parallel.world import World
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
    """Some parameters whose gradients travel together, and the stack of their partial sums."""

    def __init__(self, parameters: Sequence[nn.Parameter], workers: int) -> None:
        self.parameters = list(parameters)
        # Low-precision gradients are summed in float32 and rounded once, at the end.
        self.dtype = torch.float32 if parameters[0].dtype in LOW_PRECISION else parameters[0].dtype
        numbers = sum(parameter.numel() + 1 for parameter in parameters)
        self.slice = -(-numbers // workers)
        self.length = self.slice * workers
        self.missing = 0  # gradients that this backward pass has yet to bring
        self.pushed = False
        self.absent_here = False  # did any parameter lack a gradient in any pass of this step
        self.stack: list[tuple[Node, Slab]] = []
        self.spare: list[Slab] = []
        self.result: Slab | None = None
        self.received: Tensor | None = None
        self.sent: list[dist.Work] = []

    def take(self) -> Slab:
        return self.spare.pop() if self.spare else Slab(self.parameters, self.length, self.dtype)

    def push(self, replica: int) -> None:
        """Put one replica's gradients on the stack and add up every subtree that this completes."""
        node = Node(0, replica)
        gradients = [parameter.grad for parameter in self.parameters]
        if self.stack and node.follows(self.stack[-1][0]):
            slab = self.stack.pop()[1]
            self._add(slab, gradients)
            node = node.parent
        else:
            slab = self.take()
            self._copy(slab, gradients)
        for parameter in self.parameters:
            parameter.grad = None
        while self.stack and node.follows(self.stack[-1][0]):
            left = self.stack.pop()[1]
            left.flat.add_(slab.flat)
            self.spare.append(slab)
            node, slab = node.parent, left
        self.stack.append((node, slab))
        self.pushed = True

    @staticmethod
    def _copy(slab: Slab, gradients: list[Tensor | None]) -> None:
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        slab.present.fill_(1.0)
        if len(there) < len(gradients):
            for i in set(range(len(gradients))) - set(there):
                slab.views[i].fill_(_ABSENT)
                slab.present[i] = 0.0
        if there:
            torch._foreach_copy_([slab.views[i] for i in there], [g for g in gradients if g is not None])

    @staticmethod
    def _add(slab: Slab, gradients: list[Tensor | None]) -> None:
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if len(there) == len(gradients):
            slab.present.add_(1.0)
        else:
            for i in there:
                slab.present[i] += 1.0
        if there:
            torch._foreach_add_([slab.views[i] for i in there], [g for g in gradients if g is not None])

    # ---- the world-wide sum --------------------------------------------------------------------------------------

    def fold_alone(self) -> None:
        self.result = tree.fold([node for node, _ in self.stack], [slab for _, slab in self.stack], self._merge)
        self.stack = []

    def _merge(self, left: Slab, right: Slab) -> Slab:
        left.flat.add_(right.flat)
        self.spare.append(right)
        return left

    def send(self, owned: list[list[Node]]) -> None:
        """Start handing out slices, a round for each subtree of the worker that brings the most."""
        counts = [len(nodes) for nodes in owned]
        rows = max(sum(counts), len(counts))
        self.received = torch.empty(rows * self.slice, dtype=self.dtype, device=self.parameters[0].device)
        start = 0
        for turn in range(max(counts)):
            bring = [count > turn for count in counts]
            mine = self.stack[turn][1].flat if turn < len(self.stack) else self.received[:0]
            into = self.received[start : start + sum(bring) * self.slice]
            start += into.numel()
            out_splits = None if all(bring) else [self.slice * flag for flag in bring]
            in_splits = None if all(bring) else [self.slice * bool(mine.numel())] * len(counts)
            work = dist.all_to_all_single(into, mine, out_splits, in_splits, async_op=True)
            self.sent.append(work)

    def fold_slices(self, owned: list[list[Node]]) -> None:
        """Add the slices received, in tree order, and start handing the sum back to everyone."""
        assert self.received is not None
        for work in self.sent:
            work.wait()
        rows = iter(self.received.view(-1, self.slice).unbind())
        at: dict[Node, Tensor] = {}
        for turn in range(max(map(len, owned))):
            at |= {nodes[turn]: next(rows) for nodes in owned if len(nodes) > turn}
        nodes = [node for nodes in owned for node in nodes]
        total = tree.fold(nodes, [at[node] for node in nodes], Tensor.add_)
        workers = len(owned)
        outgoing = self.received[: workers * self.slice].view(workers, self.slice)
        outgoing[1:] = total  # the sum grew in the leftmost row: row 0
        self.result = self.stack.pop(0)[1] if self.stack else self.take()
        self.spare += [slab for _, slab in self.stack]
        self.stack = []
        self.sent = [dist.all_to_all_single(self.result.flat, outgoing.view(-1), async_op=True)]

    def wait(self) -> None:
        for work in self.sent:
            work.wait()
        self.sent, self.received = [], None

    def hand_over(self) -> None:
        """Give each parameter its synced gradient; None where no replica of the world had one."""
        assert self.result is not None
        # A gradient that was there on this worker is there in the sum: only for the others the counts must be read.
        present = self.result.present.tolist() if self.absent_here else None
        for i, (parameter, view) in enumerate(zip(self.parameters, self.result.views, strict=True)):
            if present is None or present[i] > 0:
                parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)


class ExactSync:
    """The gradients of one model, synced along the tree. A job calls begin, then backward per replica, then finish."""

    def __init__(
        self,
        model: nn.Module,
        world: World,
        replicas: int,
        *,
        bucket_mb: float = 25.0,
        watch: Callable[[int, Sequence[nn.Parameter]], None] | None = None,
    ) -> None:
        self.world, self.replicas, self.watch = world, replicas, watch
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            raise Misuse("the model has no parameter that requires a gradient; unfreeze at least one")
        if any(parameter.is_sparse or parameter.layout != torch.strided for parameter in trained):
            raise Misuse("the model has sparse parameters, which `exact` does not sync; use dense ones")
        self.buckets = [Bucket(group, world.size) for group in group_parameters(trained, bucket_mb)]
        self._handles = []
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(bucket)))
        self._side = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None
        self._replica: int | None = None
        self._last = False
        self._launched = 0
        self._owned: list[list[Node]] = []

    def begin(self, active: int) -> None:
        """Start a step in which the first `active` replicas have examples."""
        self._owned = tree.owned(self.replicas, self.world.size, active)
        self._launched = 0
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None
            if bucket.result is not None:
                bucket.spare.append(bucket.result)
                bucket.result = None
            bucket.spare += [slab for _, slab in bucket.stack]  # a step that was given up half-way
            bucket.stack, bucket.absent_here = [], False

    def backward(self, loss: Tensor, replica: int, *, last: bool) -> None:
        """Run one replica's backward pass on its weighted loss, and start sending what is complete in the last one."""
        self._replica, self._last = replica, last
        for bucket in self.buckets:
            bucket.missing, bucket.pushed = len(bucket.parameters), False
        try:
            loss.backward()
            with torch.no_grad():
                for bucket in self.buckets:
                    self._flush(bucket, replica)
                self._launch_ready()
        finally:
            self._replica = None

    def skip(self, replica: int, *, last: bool) -> None:
        """Leave out a replica whose batch counts nothing: to the tree it is there, but brings no gradient."""
        self._last = last
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.absent_here = True
                bucket.push(replica)
            self._launch_ready()

    def finish(self) -> None:
        """Wait for the world-wide sum and put it into every parameter's `grad`."""
        with torch.no_grad():
            if self.world.size == 1:
                for bucket in self.buckets:
                    bucket.fold_alone()
            else:
                self._last = True  # a worker without examples has launched nothing yet
                for bucket in self.buckets:
                    bucket.pushed = True
                    bucket.absent_here = bucket.absent_here or not bucket.stack
                self._launch_ready()
                if self._side is not None:
                    torch.cuda.current_stream().wait_stream(self._side)
                else:
                    for bucket in self.buckets:
                        bucket.fold_slices(self._owned)
                for bucket in self.buckets:
                    bucket.wait()
            for bucket in self.buckets:
                bucket.hand_over()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if self._replica is None:
                return
            bucket.missing -= 1
            if bucket.missing == 0:
                with torch.no_grad():
                    self._push(bucket, self._replica)
                    self._launch_ready()

        return ready

    def _push(self, bucket: Bucket, replica: int) -> None:
        if self.watch is not None:
            self.watch(replica, bucket.parameters)
        bucket.push(replica)

    def _flush(self, bucket: Bucket, replica: int) -> None:
        """After a backward pass: buckets with unused parameters are still to be pushed, all others must be empty."""
        if not bucket.pushed:
            bucket.absent_here = True
            self._push(bucket, replica)
        elif any(parameter.grad is not None for parameter in bucket.parameters):
            raise Misuse(
                "a gradient arrived twice in one backward pass; "
                "use checkpointing with use_reentrant=False, and one job.backward per batch"
            )

    def _launch_ready(self) -> None:
        """Send complete buckets, in index order, the same on every worker."""
        if not self._last or self.world.size == 1:
            return
        while self._launched < len(self.buckets) and self.buckets[self._launched].pushed:
            bucket = self.buckets[self._launched]
            self._launched += 1
            if self._side is None:
                bucket.send(self._owned)
                continue
            # On a GPU nothing here waits on the host, so the whole exchange is queued beside the backward pass.
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                bucket.send(self._owned)
                bucket.fold_slices(self._owned)
                bucket.wait()


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
