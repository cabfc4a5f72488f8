"""Gradient noise on purpose: the mean gradient stays, and its variance becomes that of a smaller batch."""

import math

import pytest
import torch
from torch import Tensor

from worldsize.errors import LossError, Misuse
from worldsize.plan.noise import sigma_for
from worldsize.train.noise import noisy_mean

DIMENSIONS, SIGNAL, DEVIATION = 20, 1.0, 1.5
NOISE_SCALE = DEVIATION**2 / SIGNAL**2  # small, so that the square of the mean gradient shows in the variance
TURNS = 2000


def gradients(batch: int, sigma: float) -> Tensor:
    """The gradients of so many noisy means over batches of examples whose own gradients are normal."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    found = []
    weights = torch.zeros(DIMENSIONS, requires_grad=True)
    for rows in SIGNAL + DEVIATION * torch.randn(TURNS, batch, DIMENSIONS, generator=generator):
        found += torch.autograd.grad(noisy_mean(rows @ weights, sigma), weights)
    return torch.stack(found).double()


def test_a_large_batch_gets_the_gradient_noise_of_the_reference_and_keeps_its_mean():
    reference, plain = gradients(4, 0.0), gradients(32, 0.0)
    noisy = gradients(32, sigma_for(32, 4, NOISE_SCALE))
    assert plain.var(0).sum().item() == pytest.approx(reference.var(0).sum().item() / 8, rel=0.05)
    assert noisy.var(0).sum().item() == pytest.approx(reference.var(0).sum().item(), rel=0.05)
    assert noisy.mean().item() == pytest.approx(SIGNAL, rel=0.05)


def test_the_weights_of_the_examples_are_those_that_the_generator_gives():
    losses = torch.tensor([1.0, 2.0, 4.0])
    torch.manual_seed(3)
    drawn = torch.randn(3)
    torch.manual_seed(3)
    assert noisy_mean(losses, 0.5) == pytest.approx(((1 + 0.5 * drawn) * losses).mean().item())
    assert noisy_mean(losses, 0.0) == pytest.approx(7 / 3)


def test_the_tokens_of_an_example_share_its_weight_and_only_those_counted_divide():
    losses = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]])
    torch.manual_seed(3)
    one, two = (1 + 0.5 * torch.randn(2)).tolist()
    torch.manual_seed(3)
    assert noisy_mean(losses, 0.5, counted=3).item() == pytest.approx((3 * one + 3 * two) / 3)


@pytest.mark.parametrize(
    ("losses", "sigma", "kind", "says"),
    [
        (torch.ones(2), -0.1, Misuse, "gradient noise of -0.1 cannot be; use a finite number of 0 or more"),
        (torch.ones(2), math.nan, Misuse, "gradient noise of nan cannot be"),
        (torch.tensor(1.0), 0.1, LossError, r"losses of shape \(\); give one for each example \(reduction='none'\)"),
        (torch.ones(0), 0.1, LossError, r"losses of shape \(0,\)"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(losses, sigma, kind, says):
    with pytest.raises(kind, match=says):
        noisy_mean(losses, sigma)
