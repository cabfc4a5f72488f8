"""`exact` sync: gradients added along the fixed tree, so that the sum has the same bits for every world size.

Inside a worker the gradients of its replicas go onto a stack of partial sums (bucket.py); across workers a transport
adds the sums of the largest whole subtrees that each worker owns (transport.py). Here is when each of it happens.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from worldsize.errors import Failure, Misuse
from worldsize.parallel.bucket import Bucket, group_parameters
from worldsize.parallel.transport import transport_for
from worldsize.parallel.world import World
from worldsize.plan import tree
from worldsize.plan.tree import Node

TWICE = (
    "a gradient arrived twice in one backward pass; "
    "use checkpointing with use_reentrant=False, and one job.backward per batch"
)


class _Held(threading.local):
    """The gradients that the backward pass of this thread has brought, where they are not to be pushed yet."""

    gradients: dict[nn.Parameter, Tensor] | None = None


class ExactSync:
    """The gradients of one model, synced along the tree. A job calls begin, then backward per replica, then finish.

    Where the passes of several replicas run in lockstep, it calls `hold` in each and then `push` for each in order.
    """

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
        self._transport = transport_for(world)
        self.buckets = [Bucket(group, self._transport.pieces) for group in group_parameters(trained, bucket_mb)]
        self._handles = []
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(bucket)))
        self._replica: int | None = None
        self._last = False
        self._held = _Held()
        self._started = 0
        self._owned: list[list[Node]] = []

    def begin(self, active: int) -> None:
        """Start a step in which the first `active` replicas have examples."""
        if self._started and self.world.size > 1:
            raise Failure(
                "a backward pass failed after it had begun to send gradients, so the workers are out of step; "
                "start again, from a checkpoint if there is one"
            )
        self._owned = tree.owned(self.replicas, self.world.size, active)
        self._started = 0
        for bucket in self.buckets:
            bucket.begin()

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
                self._start_ready()
        finally:
            self._replica = None

    def hold(self, loss: Tensor) -> dict[nn.Parameter, Tensor]:
        """Run one replica's backward pass, in which those of others may take turns, and give its gradients."""
        found: dict[nn.Parameter, Tensor] = {}
        self._held.gradients = found
        try:
            loss.backward()
        finally:
            self._held.gradients = None
        return found

    def push(self, gradients: Mapping[nn.Parameter, Tensor], replica: int, *, last: bool) -> None:
        """Take what `hold` gave as if this replica's backward pass ran now."""
        self._last = last
        with torch.no_grad():
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    parameter.grad = gradients.get(parameter)
                    bucket.absent_here |= parameter.grad is None
                self._push(bucket, replica)
            self._start_ready()

    def skip(self, replica: int, *, last: bool) -> None:
        """Leave out a replica whose batch counts nothing: to the tree it is there, but brings no gradient."""
        self._last = last
        with torch.no_grad():
            for bucket in self.buckets:
                bucket.absent_here = True
                bucket.push(replica)
            self._start_ready()

    def finish(self) -> None:
        """Wait for the world-wide sum and put it into every parameter's `grad`."""
        with torch.no_grad():
            if not self._started:  # a worker without examples: it brings nothing, and takes its part in the sum
                self._last = True
                for bucket in self.buckets:
                    bucket.pushed = bucket.absent_here = True
                self._start_ready()
            self._transport.finish(self.buckets)
            self._started = 0
            for bucket in self.buckets:
                bucket.hand_over()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _hook(self, bucket: Bucket) -> Callable[[Tensor], None]:
        def ready(parameter: Tensor) -> None:
            if self._held.gradients is not None:
                self._hold(parameter)
                return
            if self._replica is None:
                return
            bucket.missing -= 1
            if bucket.missing == 0:
                with torch.no_grad():
                    self._push(bucket, self._replica)
                    self._start_ready()

        return ready

    def _hold(self, parameter: Tensor) -> None:
        """Take a gradient off its parameter, so that the next replica finds none there."""
        assert self._held.gradients is not None
        assert parameter.grad is not None
        if parameter in self._held.gradients:
            raise Misuse(TWICE)
        self._held.gradients[parameter], parameter.grad = parameter.grad, None  # type: ignore[index]  # it is one

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
            raise Misuse(TWICE)

    def _start_ready(self) -> None:
        """Have complete buckets sent, in index order, the same on every worker."""
        while self._last and self._started < len(self.buckets) and self.buckets[self._started].pushed:
            self._transport.start(self.buckets[self._started], self._owned)
            self._started += 1
