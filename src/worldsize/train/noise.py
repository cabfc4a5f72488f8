"""Gradient noise that is added on purpose, by weighing each example's loss at random."""

import math

import torch
from torch import Tensor

from worldsize.errors import LossError, Misuse


def noisy_mean(losses: Tensor, sigma: float, counted: Tensor | float | None = None) -> Tensor:
    """The mean of the examples' losses, each times 1 + sigma z, with z drawn from N(0, 1) for each example.

    The mean gradient stays, its noise grows (Hoffer et al., arXiv:1705.08741, section 4); `worldsize.plan.noise` says
    in `sigma_for` by how much. The first dimension of `losses` is the example; further ones (tokens) share its z, and
    `counted` says over how many the mean is taken where not all of them count. Drawn from torch's generator, which a
    job has seeded by (seed, epoch, step, replica).
    """
    if not (math.isfinite(sigma) and sigma >= 0):
        raise Misuse(f"gradient noise of {sigma} cannot be; use a finite number of 0 or more")
    if not losses.dim() or not losses.numel():
        raise LossError(
            f"noisy_mean got losses of shape {tuple(losses.shape)}; give one for each example (reduction='none')"
        )
    drawn = torch.randn(len(losses), device=losses.device)
    sums = losses.flatten(1).sum(1) if losses.dim() > 1 else losses
    return (sums * (1 + sigma * drawn)).sum() / (losses.numel() if counted is None else counted)
