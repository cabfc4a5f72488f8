"""`ddp` sync: stock DistributedDataParallel behind the same interface, for comparison and for what `exact` refuses."""

import gc

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from worldsize.parallel.world import World, before_leaving


class DdpSync:
    """The gradients of one model, synced by torch's own reducer, as in a hand-written script.

    The model stays the object that the user has: hooks around its forward pass do what calling the wrapper would do.
    """

    def __init__(self, model: nn.Module, world: World, *, bucket_mb: float = 25.0) -> None:
        self.world = world
        self._handles = []
        self._ddp: DistributedDataParallel | None = None
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if world.size == 1:
            return
        # forward_sync_buffers off: replicas keep buffers of their own, as the job sets them.
        self._ddp = DistributedDataParallel(
            model,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            bucket_cap_mb=bucket_mb,
            forward_sync_buffers=False,
        )
        # A reducer that outlives the process group can abort the process at its end (gloo, torch 2.13).
        before_leaving(self.close)
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def begin(self, active: int) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def expect(self, *, last: bool) -> None:
        """Before a replica's forward pass: only the last one of a worker syncs."""
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def backward(self, loss: Tensor, replica: int, *, last: bool) -> None:
        loss.backward()

    def finish(self) -> None:
        """Nothing to wait for: the reducer waits at the end of backward."""

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        if self._ddp is not None:
            self._ddp = None
            gc.collect()  # the wrapper is part of a cycle, and has to go before the process group does

    def _before(self, _: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        if self._ddp is None or not torch.is_grad_enabled():
            return None
        return self._ddp._pre_forward(*args, **kwargs)

    def _after(self, _: nn.Module, __: tuple, output: object) -> object:
        if self._ddp is None or not torch.is_grad_enabled():
            return output
        return self._ddp._post_forward(output)
