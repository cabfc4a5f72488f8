"""Optimizers for large batches, which give each layer a step in proportion to its weights: LARS, LAMB, NovoGrad.

Parameters in a group with `layerwise=False` (norms and biases, as `optimizers.groups` sets them apart) take the step of
SGD under LARS and of Adam under LAMB; NovoGrad normalises every gradient.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.optim import Optimizer

from worldsize.errors import Misuse


class _Layerwise(Optimizer):
    """What the three have in common: a loop over parameters, one update for each."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], **least: float) -> None:
        super().__init__(params, defaults | {"layerwise": True})
        for group in self.param_groups:
            _check(type(self).__name__, group, {"lr": 0.0, "weight_decay": 0.0} | least)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, self.state[parameter], group)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError


class LARS(_Layerwise):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg, arXiv:1708.03888, algorithm 1).

    A layer's rate is lr x trust x |w| / (|g| + weight_decay x |w|), and is part of what momentum adds up. With `clip`
    it is never above `lr` (LARC): the smaller of `lr` and the layer's own rate.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        clip: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "clip": clip}
        super().__init__(params, defaults, trust=0.0)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        rate, decay = group["lr"], group["weight_decay"]
        change = gradient.add(parameter, alpha=decay)
        if group["layerwise"]:
            weights, gradients = vector_norm(parameter), vector_norm(gradient)
            local = group["trust"] * weights / (gradients + decay * weights)
            moves = (weights > 0) & (gradients > 0)
            change *= torch.where(moves, local.clamp(max=rate) if group["clip"] else rate * local, rate)
        else:
            change *= rate
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        parameter -= state["velocity"].mul_(group["momentum"]).add_(change)


class LAMB(_Layerwise):
    """Layer-wise Adam for large batches (You et al., arXiv:1904.00962, algorithm 2).

    Adam's step, with bias correction and weight decay inside, is scaled to the length of the layer's weights.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, eps=0.0)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state.update(step=0, mean=torch.zeros_like(parameter), square=torch.zeros_like(parameter))
        (beta1, beta2), eps = group["betas"], group["eps"]
        state["step"] += 1
        mean = state["mean"].lerp_(gradient, 1 - beta1) / (1 - beta1 ** state["step"])
        square = state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2) / (
            1 - beta2 ** state["step"]
        )
        change = mean.div_(square.sqrt_().add_(eps)).add_(parameter, alpha=group["weight_decay"])
        if group["layerwise"]:
            weights, length = vector_norm(parameter), vector_norm(change)
            change *= torch.where((weights > 0) & (length > 0), weights / length, 1.0)
        parameter.sub_(change, alpha=group["lr"])


class NovoGrad(_Layerwise):
    """Momentum on gradients that are normalised by layer (Ginsburg et al., arXiv:1905.11286, algorithm 1).

    The second moment is one number per layer; decay is added after the normalisation. `averaging` weighs what is new
    by 1 - beta1, as the authors' own code does on request.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        averaging: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "averaging": averaging}
        super().__init__(params, defaults, eps=0.0)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        square = vector_norm(gradient).square()
        if not state:
            state.update(square=square, mean=torch.zeros_like(parameter))
        else:
            state["square"].mul_(beta2).add_(square, alpha=1 - beta2)
        new = gradient / state["square"].sqrt().add(group["eps"])
        new.add_(parameter, alpha=group["weight_decay"])
        state["mean"].mul_(beta1).add_(new, alpha=1 - beta1 if group["averaging"] else 1.0)
        parameter.sub_(state["mean"], alpha=group["lr"])


def _check(name: str, group: dict[str, Any], least: dict[str, float]) -> None:
    for setting, bound in least.items():
        if not bound <= group[setting] < float("inf"):
            raise Misuse(f"{name}: {setting} is {group[setting]}, but must be {bound:g} or more")
    for setting in ("momentum", "betas"):
        value = group.get(setting, 0.0)
        if not all(0 <= each < 1 for each in (value if isinstance(value, tuple) else (value,))):
            raise Misuse(f"{name}: {setting} is {value}, but must be at least 0 and below 1")
