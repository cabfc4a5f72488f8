"""The optimizers by their names: how each is made, the rate it starts from, the rule its rate follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from worldsize.plan.rates import Rule
from worldsize.train.layerwise import LAMB, LARS, NovoGrad


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One optimizer. The rate is a start at a global batch of 256, for models whose recipe names another optimizer."""

    make: Callable[..., Optimizer]
    rate: float
    rule: Rule


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The model's parameters in two groups: weights, and what is neither decayed nor scaled by layer.

    The latter have one dimension or none: biases, and the gains and shifts of norms.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights = [parameter for parameter in trained if parameter.dim() > 1]
    vectors = [parameter for parameter in trained if parameter.dim() <= 1]
    found = [
        {"params": weights, "weight_decay": weight_decay, "layerwise": True},
        {"params": vectors, "weight_decay": 0.0, "layerwise": False},
    ]
    return [group for group in found if group["params"]]


def make(name: str, model: nn.Module, rate: float, weight_decay: float) -> Optimizer:
    """The optimizer of this name for this model; norms and biases are not decayed."""
    return KINDS[name].make(groups(model, weight_decay), lr=rate)


def _sgd(params: list[dict[str, Any]], lr: float) -> Optimizer:
    return torch.optim.SGD(params, lr, momentum=0.9, foreach=True)


def _adamw(params: list[dict[str, Any]], lr: float) -> Optimizer:
    return torch.optim.AdamW(params, lr, foreach=True)


def _lars(params: list[dict[str, Any]], lr: float) -> Optimizer:
    # Not the paper's 0.001: with it rates are near 10, at which norms and biases, that take a plain step, diverge.
    return LARS(params, lr, trust=0.02)


# Not fused: a fused kernel's bits depend on where a slice is cut.
KINDS = {
    "sgd": Kind(make=_sgd, rate=0.1, rule="linear"),
    "adamw": Kind(make=_adamw, rate=1e-3, rule="sqrt"),
    "lars": Kind(make=_lars, rate=0.8, rule="linear"),
    "lamb": Kind(make=LAMB, rate=0.03, rule="sqrt"),
    "novograd": Kind(make=NovoGrad, rate=0.03, rule="sqrt"),
}
