"""Batch norm for large and for tiny batches: over all workers together, or over small parts of each batch."""

import math
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


class WorldBatchNorm(_BatchNorm):
    """Batch norm with the statistics of the batches of all workers, as if they were one.

    Every worker must call it, with at least one example each. Unlike nn.SyncBatchNorm it works over gloo, and its sums
    are taken in the order of the workers, so that a run repeats bit for bit.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or not len(x):
            raise Misuse(
                f"batch norm across workers got a batch of shape {tuple(x.shape)}; give every worker at least one "
                "example (drop the short batch), with its features in the second dimension"
            )

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if not self.training:
            return super().forward(x)
        normalised, mean, variance, count = _Normalise.apply(x, self.weight, self.bias, self.eps)
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
    """What big-batch batch norm does, forward and backward, from the sums that every worker has of its part."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        across = [dim for dim in range(x.dim()) if dim != 1]
        kind = x.dtype if weight is None else weight.dtype  # under autocast, layers keep the precision of their weights
        variance, mean = torch.var_mean(x.to(kind), across, correction=0)
        count = torch.full_like(mean, x.numel() / x.shape[1])
        counts, means, variances = _gather(torch.stack([count, mean, variance])).unbind(1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        # Each worker's own variance, and how far its mean is off: no difference of large squares.
        variance = (counts * (variances + (means - mean).square())).sum(0) / total
        mean, variance = mean.to(kind), variance.to(kind)
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.total = total[0].item()
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, eps), mean, variance, ctx.total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, change: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        x, weight, mean, scale = ctx.saved_tensors
        across = [dim for dim in range(x.dim()) if dim != 1]
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        unit = (x - mean.view(shape)) * scale.view(shape)
        shift, gain = change.sum(across), (change * unit).sum(across)
        mean_shift, mean_gain = (_gather(torch.stack([shift, gain])).sum(0) / ctx.total).to(mean.dtype).unbind()
        back = (change - mean_shift.view(shape) - unit * mean_gain.view(shape)) * scale.view(shape)
        if weight is None:
            return back.to(x.dtype), None, None, None
        return (back * weight.view(shape)).to(x.dtype), gain, shift, None


def _gather(row: Tensor) -> Tensor:
    """This row of every worker, in worker order, in float64."""
    row = row.double()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return row.unsqueeze(0)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return torch.stack(rows)


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
    """Does a forward pass of this model need all workers at once?"""
    return any(isinstance(module, WorldBatchNorm) and module.training for module in model.modules())
