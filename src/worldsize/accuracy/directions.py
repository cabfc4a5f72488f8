"""Directions in the space of a model's weights: random ones, scaled filter by filter, and the way to other weights."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from worldsize.errors import Misuse

Direction = Mapping[str, Tensor]  # by the name of a parameter or buffer; what is absent stays where it is


def filter_normalised(model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """A random Gaussian direction whose every filter is as long as that of the weights (Li et al., arXiv:1712.09913).

    A filter is what makes one output: a row of a linear layer, a kernel of a convolution, a row of an embedding. Biases
    and the parameters of norms have one dimension, and stay; so do frozen parameters.
    """
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or not parameter.requires_grad:
            continue
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
        lengths = [_filter_lengths(tensor) for tensor in (parameter.detach(), drawn)]
        found[name] = drawn * (lengths[0] / lengths[1])
    if not found:
        raise Misuse("the model has no weights but biases and norms, which stay in place; move another model")
    return found


def towards(model: nn.Module, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The way from the model to another state of it, buffers included, which have no filters to be scaled by."""
    found = {}
    tensors: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if tensor.is_floating_point():
            found[name] = other[name].to(tensor) - tensor.detach()
    if not any(found[name].any() for name, _ in model.named_parameters()):
        raise Misuse("both solutions have the same weights, so no line leads from one to the other; name another")
    return found


def move(model: nn.Module, directions: Sequence[Direction], place: Sequence[float]) -> None:
    """Add to the model's tensors so much of each direction.

    Buffers go from one end of a direction to the other and no further, since a variance must not fall below zero.
    """
    with torch.no_grad():
        for direction, share in zip(directions, place, strict=True):
            for name, parameter in model.named_parameters():
                if name in direction:
                    parameter.add_(direction[name], alpha=share)
            for name, buffer in model.named_buffers():
                if name in direction:
                    buffer.add_(direction[name], alpha=min(1.0, max(0.0, share)))


def are_parallel(one: Direction, other: Direction) -> bool:
    """Whether two directions are one, so that no plane lies between them."""
    shared = [name for name in one if name in other]
    across = math.fsum(
        torch.dot(one[name].flatten().double(), other[name].flatten().double()).item() for name in shared
    )
    lengths = [math.fsum(tensor.double().square().sum().item() for tensor in each.values()) for each in (one, other)]
    return across**2 > 0.999 * lengths[0] * lengths[1]


def _filter_lengths(tensor: Tensor) -> Tensor:
    """The length of each filter, shaped to be multiplied with."""
    return tensor.flatten(1).norm(dim=1).view(-1, *[1] * (tensor.dim() - 1))
