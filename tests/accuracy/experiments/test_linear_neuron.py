"""The linear neuron: theory and descent agree, and a wrong number would be noticed."""

import numpy as np
import pytest

from worldsize.accuracy.experiments import linear_neuron


def test_descent_is_stable_up_to_two_over_the_largest_eigenvalue():
    largest = np.linalg.eigvalsh(linear_neuron.hessian())[-1]
    assert linear_neuron.largest_stable_rate(500) == pytest.approx(2 / largest, rel=0.01)


def test_the_hessian_is_that_of_the_loss():
    inputs, answers, best = linear_neuron.problem()

    def loss(weights):
        return np.mean((inputs @ weights - answers) ** 2)

    step = np.array([0.3, -0.2])
    assert loss(best + step) - loss(best) == pytest.approx(step @ linear_neuron.hessian() @ step / 2)


def test_all_points_end_at_the_best_place_and_too_large_a_rate_nowhere():
    assert linear_neuron.descend(0.02, 0, 3_000)["intercept_off"] < 1e-6
    assert linear_neuron.descend(0.05, 0, 3_000)["diverged"]


def test_a_noise_floor_far_from_theory_does_not_hold():
    measured = {
        "eigenvalues": [0.5, 66.0],
        "largest_stable_rate": 2 / 66,
        "stop": {"step": 80, "intercept": 0.9, "best_intercept": 2.0},
        "floors": {"1": [0.3, 0.2, 0.4]},
        "predicted_floors": {"1": 0.3},
    }
    assert linear_neuron.judge(measured).holds
    assert not linear_neuron.judge(measured | {"predicted_floors": {"1": 0.6}}).holds
    assert not linear_neuron.judge(measured | {"largest_stable_rate": 0.02}).holds
