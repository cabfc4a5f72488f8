"""The laws find their own numbers again, from points with and without noise."""

import random

import pytest

from worldsize.errors import Misuse
from worldsize.plan.fits import PowerLaw, Scaling, fit_power_law, fit_scaling

BATCHES = [8, 32, 128, 512, 2048]
SIZES = [150, 300, 600, 1200, 2400, 4800]


@pytest.mark.parametrize("critical", [3.0, 90.0, 4000.0])
def test_the_scaling_law_is_found_from_its_own_points(critical):
    law = Scaling(fewest_steps=120, critical_batch=critical)
    found = fit_scaling(BATCHES, [law.steps(batch) for batch in BATCHES])
    assert found.critical_batch == pytest.approx(critical, rel=1e-3)
    assert found.fewest_steps == pytest.approx(120, rel=1e-3)


@pytest.mark.parametrize("floor", [0.0, 0.03, 0.09])
def test_the_power_law_is_found_from_its_own_points(floor):
    law = PowerLaw(factor=2.0, exponent=0.45, floor=floor)
    found = fit_power_law(SIZES, [law.error(size) for size in SIZES])
    assert found.exponent == pytest.approx(0.45, abs=0.002)
    assert found.floor == pytest.approx(floor, abs=0.001)


def test_noise_of_two_percent_leaves_the_critical_batch_within_a_third():
    dice = random.Random(0)
    law = Scaling(fewest_steps=120, critical_batch=300)
    found = fit_scaling(BATCHES, [law.steps(batch) * (1 + 0.02 * dice.gauss(0, 1)) for batch in BATCHES])
    assert 200 < found.critical_batch < 450


@pytest.mark.parametrize("places", [[8], [8, 8, 8]])
def test_too_few_points_are_refused(places):
    with pytest.raises(Misuse, match="1 points give no law"):
        fit_scaling(places, [100.0] * len(places))
    with pytest.raises(Misuse, match="it takes at least 3"):
        fit_power_law(places, [0.5] * len(places))


def test_numbers_without_a_logarithm_are_refused():
    with pytest.raises(Misuse, match="numbers above zero"):
        fit_scaling([8, 16], [100.0, float("inf")])
