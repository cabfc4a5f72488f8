"""Two laws with few numbers, fitted to a few points: steps against the batch, error against the examples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from worldsize.errors import Misuse

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Steps to a target: fewest x (1 + critical batch / batch), from McCandlish et al., arXiv:1812.06162."""

    fewest_steps: float
    critical_batch: float

    def steps(self, batch: float) -> float:
        return self.fewest_steps * (1 + self.critical_batch / batch)


def fit_scaling(batches: Sequence[float], steps: Sequence[float]) -> Scaling:
    """The law through these points, as near as it gets in ratios.

    >>> fit_scaling([10, 100, 1000], [1100, 200, 110])
    Scaling(fewest_steps=100.0, critical_batch=100.0)
    """
    _refuse(batches, steps, least=2)

    def fewest(critical: float) -> float:
        return math.exp(fmean(math.log(s / (1 + critical / b)) for b, s in zip(batches, steps, strict=True)))

    def miss(log_critical: float) -> float:
        law = Scaling(fewest_steps=fewest(math.exp(log_critical)), critical_batch=math.exp(log_critical))
        return sum(math.log(s / law.steps(b)) ** 2 for b, s in zip(batches, steps, strict=True))

    critical = math.exp(_lowest(miss, math.log(min(batches) / 1e3), math.log(max(batches) * 1e3)))
    return Scaling(fewest_steps=round(fewest(critical), 6), critical_batch=round(critical, 6))


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """An error that falls as factor x examples ^ -exponent, down to a floor (Hestness et al., arXiv:1712.00409)."""

    factor: float
    exponent: float
    floor: float

    def error(self, examples: float) -> float:
        return self.factor * examples**-self.exponent + self.floor


def fit_power_law(examples: Sequence[float], errors: Sequence[float]) -> PowerLaw:
    """The law through these points, as near as it gets in ratios; its floor lies between zero and the lowest error.

    >>> fit_power_law([100, 1_000, 10_000], [0.42, 0.22, 0.14])
    PowerLaw(factor=2.0833, exponent=0.3979, floor=0.0867)
    """
    _refuse(examples, errors, least=3)

    def law(floor: float) -> PowerLaw:
        xs, ys = [math.log(m) for m in examples], [math.log(e - floor) for e in errors]
        middle = fmean(xs)
        slope = sum((x - middle) * y for x, y in zip(xs, ys, strict=True)) / sum((x - middle) ** 2 for x in xs)
        return PowerLaw(factor=math.exp(fmean(ys) - slope * middle), exponent=-slope, floor=floor)

    def miss(floor: float) -> float:
        found = law(floor)
        return sum(math.log(e / found.error(m)) ** 2 for m, e in zip(examples, errors, strict=True))

    # The miss may have two low places, one of them without a floor.
    edge = min(errors) * (1 - 1e-6)
    cuts = [edge * i / 20 for i in range(21)]
    start = min(range(21), key=lambda i: miss(cuts[i]))
    best = law(_lowest(miss, cuts[max(start - 1, 0)], cuts[min(start + 1, 20)]))
    found = min(best, law(0.0), key=lambda one: miss(one.floor))
    return PowerLaw(factor=round(found.factor, 4), exponent=round(found.exponent, 4), floor=round(found.floor, 4))


def _refuse(places: Sequence[float], values: Sequence[float], least: int) -> None:
    if len(set(places)) < least or not all(0 < v < math.inf for v in (*places, *values)):
        raise Misuse(f"{len(set(places))} points give no law; it takes at least {least}, with numbers above zero")


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one low place is lowest, by golden section."""
    for _ in range(60):  # to twelve digits
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return (low + high) / 2
