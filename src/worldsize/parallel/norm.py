"""Batch norm for large and for tiny batches: over all workers together, or over small parts of each batch."""

import math
import threading
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from worldsize.errors import Misuse

Kind = Literal["batch", "sync", "ghost"]
KINDS = ("batch", "sync", "ghost")


def of_each_worker(row: Tensor, layer: nn.Module) -> Tensor:
    """The rows that all workers have at this layer, in worker order."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return row.unsqueeze(0)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


class Here(threading.local):
    """Where the layers of this thread get the rows of all replicas from; each worker has one replica unless told."""

    rows: Callable[[Tensor, nn.Module], Tensor] = staticmethod(of_each_worker)


here = Here()


class WorldBatchNorm(_BatchNorm):
    """Batch norm with the statistics of the batches of all workers, as if they were one.

    Every worker must call it, with at least one example each. Unlike nn.SyncBatchNorm it works over gloo, and its sums
    are taken in the order of the replicas, whoever computes them, so that no bit depends on the number of workers.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or not len(x):
            raise Misuse(
                f"batch norm across workers got a batch of shape {tuple(x.shape)}; give every worker at least one "
                "example (drop the short batch), with its features in the second dimension"
            )

    @torch.compiler.disable  # the wait for the others is not to be compiled
    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        # Replicas in lockstep would share what autocast keeps until here, but not replicas on workers of their own.
        torch.clear_autocast_cache()
        normalised, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps, self, here.rows)
        if count == 1:
            raise Misuse("batch norm across workers got one example in all, which has no spread; drop the short batch")
        if self.track_running_stats:
            self._follow(mean, variance * (count / max(count - 1, 1)))
        return normalised

    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """What big-batch batch norm does, forward and backward, from the sums that every replica has of its part."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, layer: nn.Module, rows: Callable
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        across = [dim for dim in range(x.dim()) if dim != 1]
        kind = x.dtype if weight is None else weight.dtype  # under autocast, layers keep the precision of their weights
        variance, mean = torch.var_mean(x.to(kind), across, correction=0)
        count = torch.full_like(mean, x.numel() / x.shape[1])
        counts, means, variances = rows(torch.stack([count, mean, variance]).double(), layer).unbind(1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        # Each replica's own variance, and how far its mean is off: no difference of large squares.
        variance = (counts * (variances + (means - mean).square())).sum(0) / total
        mean, variance = mean.to(kind), variance.to(kind)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.total, ctx.layer, ctx.rows = total[0].item(), layer, rows  # backward may run in another thread
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, ctx.total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, change: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        across = [dim for dim in range(x.dim()) if dim != 1]
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        unit = (x - mean.view(shape)).mul_(scale.view(shape))
        shift, gain = change.sum(across), (change * unit).sum(across)
        sums = ctx.rows(torch.stack([shift, gain]).double(), ctx.layer).sum(0)
        mean_shift, mean_gain = (sums / ctx.total).to(mean.dtype).unbind()
        back = (change - mean_shift.view(shape)).sub_(unit.mul_(mean_gain.view(shape))).mul_(scale.view(shape))
        if weight is None:
            return back.to(x.dtype), None, None, None, None, None
        return back.mul_(weight.view(shape)).to(x.dtype), gain, shift, None, None, None


class GhostBatchNorm(_BatchNorm):
    """Batch norm over parts of the batch, of about `ghost_batch` examples each (Hoffer et al., arXiv:1705.08741).

    The noise of small batches stays when the batch grows. Running statistics follow part after part.
    """

    def __init__(self, num_features: int, ghost_batch: int, **options: Any) -> None:
        super().__init__(num_features, **options)
        if ghost_batch < 2:
            raise Misuse(f"a ghost batch of {ghost_batch} has no spread to normalise by; use 2 or more")
        self.ghost_batch = ghost_batch

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise Misuse(f"ghost batch norm got a batch of shape {tuple(x.shape)}; it needs examples and features")

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        parts = x.tensor_split(max(1, math.floor(len(x) / self.ghost_batch)))
        return torch.cat([super(GhostBatchNorm, self).forward(part) for part in parts])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ghost_batch={self.ghost_batch}"


def convert(model: nn.Module, kind: Kind, *, ghost_batch: int = 16) -> nn.Module:
    """The model with every batch norm in it made one of this kind; weights, statistics and names stay.

    Call it before the optimizer is made: parameters of converted layers are the same objects.
    """
    if kind not in KINDS:
        raise Misuse(f"unknown norm {kind!r}; there are {', '.join(KINDS)}")
    if kind == "batch":
        return model
    if isinstance(model, _BatchNorm):
        return _converted(model, kind, ghost_batch)
    for name, child in model.named_children():
        setattr(model, name, convert(child, kind, ghost_batch=ghost_batch))
    return model


def _converted(old: _BatchNorm, kind: Kind, ghost_batch: int) -> _BatchNorm:
    options = {
        "eps": old.eps,
        "momentum": old.momentum,
        "affine": old.affine,
        "track_running_stats": old.track_running_stats,
    }
    new = (
        WorldBatchNorm(old.num_features, **options)  # type: ignore[arg-type]  # they are what the old one had
        if kind == "sync"
        else GhostBatchNorm(old.num_features, ghost_batch, **options)
    )
    new._parameters, new._buffers = old._parameters, old._buffers
    return new.train(old.training)


def crosses_workers(model: nn.Module) -> bool:
    """Does a forward pass of this model need all replicas at once?"""
    return any(isinstance(module, WorldBatchNorm) and module.training for module in model.modules())
