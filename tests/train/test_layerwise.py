"""LARS, LAMB, NovoGrad: ten steps equal to the papers' formulas, written out a second time in numpy."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from worldsize.errors import Misuse
from worldsize.train.layerwise import LAMB, LARS, NovoGrad

STEPS = 10
RATES = [0.1 * (1 - step / 20) for step in range(STEPS)]  # a schedule: where the rate stands in a formula shows


def norm(array: np.ndarray) -> float:
    return math.sqrt(float((array * array).sum()))


def lars(weights, gradients, *, momentum=0.9, decay=0.0, trust=0.001, clip=False, layerwise=True):
    velocity = 0 * weights
    for rate, gradient in zip(RATES, gradients, strict=True):
        local = trust * norm(weights) / (norm(gradient) + decay * norm(weights)) if layerwise else 1.0
        step = min(local, rate) if clip and layerwise else rate * local
        velocity = momentum * velocity + step * (gradient + decay * weights)
        weights = weights - velocity
    return weights


def lamb(weights, gradients, *, betas=(0.9, 0.999), eps=1e-6, decay=0.0, layerwise=True):
    first = second = 0 * weights
    for turn, (rate, gradient) in enumerate(zip(RATES, gradients, strict=True), 1):
        first = betas[0] * first + (1 - betas[0]) * gradient
        second = betas[1] * second + (1 - betas[1]) * gradient**2
        step = (first / (1 - betas[0] ** turn)) / (np.sqrt(second / (1 - betas[1] ** turn)) + eps) + decay * weights
        weights = weights - rate * (norm(weights) / norm(step) if layerwise else 1.0) * step
    return weights


def novograd(weights, gradients, *, betas=(0.95, 0.98), eps=1e-8, decay=0.0, averaging=False, layerwise=True):
    del layerwise  # it normalises every tensor
    first, second = 0 * weights, None
    for rate, gradient in zip(RATES, gradients, strict=True):
        square = norm(gradient) ** 2
        second = square if second is None else betas[1] * second + (1 - betas[1]) * square
        new = gradient / (math.sqrt(second) + eps) + decay * weights
        first = betas[0] * first + (1 - betas[0] if averaging else 1) * new
        weights = weights - rate * first
    return weights


CASES = [
    (LARS, lars, {}),
    (LARS, lars, {"weight_decay": 0.1, "trust": 0.02, "momentum": 0.8}),
    (LARS, lars, {"weight_decay": 0.1, "trust": 0.2, "clip": True}),
    (LARS, lars, {"trust": 0.001, "clip": True}),
    (LAMB, lamb, {}),
    (LAMB, lamb, {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-3}),
    (NovoGrad, novograd, {}),
    (NovoGrad, novograd, {"weight_decay": 0.1, "betas": (0.8, 0.5), "averaging": True}),
]


@pytest.mark.parametrize("layerwise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("optimizer", "formula", "settings"), CASES)
def test_ten_steps_equal_the_formula(optimizer, formula, settings, dtype, layerwise):
    draw = np.random.default_rng(0)
    weights = draw.normal(size=(5, 3))
    gradients = [draw.normal(size=(5, 3)) * scale for scale in np.geomspace(0.1, 3, STEPS)]
    parameter = nn.Parameter(torch.tensor(weights, dtype=dtype))
    ours = optimizer([{"params": [parameter], "layerwise": layerwise}], 1.0, **settings)
    for rate, gradient in zip(RATES, gradients, strict=True):
        ours.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient, dtype=dtype)
        ours.step()
    named = {"decay" if name == "weight_decay" else name: value for name, value in settings.items()}
    expected = formula(weights, gradients, layerwise=layerwise, **named)
    error = norm(parameter.detach().double().numpy() - expected) / norm(expected)
    assert error < (1e-6 if dtype == torch.float32 else 1e-14)
    assert norm(expected - weights) > 1e-4, "the steps are large enough to show a difference"


@pytest.mark.parametrize("optimizer", [LARS, LAMB, NovoGrad])
def test_zero_weights_and_zero_gradients_give_no_nan(optimizer):
    parameters = [nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3))]
    parameters[0].grad, parameters[1].grad = torch.ones(3, 3), torch.zeros(3, 3)
    optimizer(parameters, 0.1).step()
    assert all(parameter.isfinite().all() for parameter in parameters)
    assert not torch.equal(parameters[0], torch.zeros(3, 3)), "a layer that starts at zero learns too"


@pytest.mark.parametrize("optimizer", [LARS, LAMB, NovoGrad])
def test_a_state_that_was_loaded_goes_on_with_the_same_bits(optimizer):
    def start() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter = nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3))
        return parameter, optimizer([parameter], 0.1)

    def step(parameter: nn.Parameter, ours: torch.optim.Optimizer) -> None:
        parameter.grad = parameter.detach().cos()
        ours.step()

    whole, ours = start()
    for _ in range(4):
        step(whole, ours)
    part, before = start()
    step(part, before)
    step(part, before)
    rest, after = start()
    rest.data.copy_(part.data)
    after.load_state_dict(before.state_dict())
    step(rest, after)
    step(rest, after)
    assert torch.equal(rest, whole)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: LARS(p, -0.1), "LARS: lr is -0.1, but must be 0 or more"),
        (lambda p: LARS(p, 0.1, trust=-1), "LARS: trust is -1"),
        (lambda p: LARS(p, 0.1, momentum=1.0), "LARS: momentum is 1.0, but must be at least 0 and below 1"),
        (lambda p: LAMB(p, float("nan")), "LAMB: lr is nan"),
        (lambda p: LAMB(p, betas=(0.9, 1.0)), "LAMB: betas is .0.9, 1.0., but must be at least 0 and below 1"),
        (lambda p: NovoGrad(p, weight_decay=-1), "NovoGrad: weight_decay is -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, words):
    with pytest.raises(Misuse, match=words):
        make([nn.Parameter(torch.ones(2))])
