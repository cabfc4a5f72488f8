"""Stale gradients: lag 0 is plain SGD bit for bit, lag 1 applies the gradient of the step before."""

import pytest
import torch

from worldsize.accuracy.experiments import stale_gradients
from worldsize.accuracy.experiments.stale_gradients import Lagging


def walk(make) -> list[float]:
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = make([weight])
    places = []
    for gradient in (1.0, 10.0, 100.0):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
        places.append(weight.item())
    return places


def test_lag_0_is_sgd():
    assert walk(lambda p: Lagging(p, 0.1, 0)) == walk(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))


def test_lag_1_waits_a_step_and_then_follows_the_older_gradients():
    assert walk(lambda p: Lagging(p, 0.1, 1)) == pytest.approx([1.0, 0.9, 0.9 - 0.1 * (0.9 * 1 + 10)])


def test_on_a_quadratic_lag_1_is_stable_up_to_half_the_rate():
    fresh, stale = (stale_gradients.largest_stable_rate(lag) for lag in (0, 1))
    assert stale / fresh == pytest.approx(0.5, abs=0.005)


def measured(lost: float, halved: float = 0.5) -> dict:
    rows = {"0": {"0.1": [0.85, 0.852, 0.848]}, "1": {"0.1": [0.85 - lost, 0.852 - lost, 0.849 - lost]}}
    return {"accuracy": rows, "stable": {"0": 0.03, "1": 0.03 * halved}}


def test_a_loss_of_accuracy_or_another_stable_rate_fails():
    assert stale_gradients.judge(measured(0.0)).holds
    assert not stale_gradients.judge(measured(0.02)).holds
    assert not stale_gradients.judge(measured(0.0, halved=0.8)).holds
