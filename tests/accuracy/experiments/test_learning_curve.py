"""The learning curve: a power law holds, a curve that bends the other way does not."""

from worldsize.accuracy.experiments import learning_curve
from worldsize.plan.fits import PowerLaw

LAW = PowerLaw(factor=1.5, exponent=0.4, floor=0.08)


def measured(error) -> dict:
    return {"errors": {str(size): [error(size) * (1 + 0.01 * i) for i in (-1, 0, 1)] for size in learning_curve.SIZES}}


def test_a_power_law_holds_and_its_exponent_is_found():
    found, (low, high) = learning_curve.law(measured(LAW.error))
    assert low - 1e-9 <= found.exponent <= high + 1e-9
    assert abs(found.exponent - 0.4) < 0.02
    assert learning_curve.judge(measured(LAW.error)).holds


def test_an_error_that_does_not_fall_as_a_power_fails():
    assert not learning_curve.judge(measured(lambda size: 0.3 if size < 2000 else 0.15)).holds
    assert not learning_curve.judge(measured(lambda size: 0.3)).holds
