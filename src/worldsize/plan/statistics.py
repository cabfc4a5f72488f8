"""Statistics of a few seeds: Student's t, two one-sided tests of equivalence, Holm, a bootstrap."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

DRAWS = 2000  # of a bootstrap
MOST_SEEDS = 10_000  # more than anybody would run: beyond it, "more seeds" is no advice


# ---- Student's t -----------------------------------------------------------------------------------------------------


def student_below(t: float, freedom: float) -> float:
    """The chance that Student's t with so many degrees of freedom is at most this.

    >>> round(student_below(2.262, 9), 4)
    0.975
    """
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    square = t * t
    if square < freedom:  # near the middle, where a tail's first argument would round to 1
        return 0.5 + math.copysign(0.5 * _beta_below(square / (freedom + square), 0.5, freedom / 2), t)
    tail = 0.5 * _beta_below(freedom / (freedom + square), freedom / 2, 0.5)
    return 1 - tail if t > 0 else tail


def student_quantile(chance: float, freedom: float) -> float:
    """The t that is not exceeded with this chance.

    >>> round(student_quantile(0.95, 9), 3)
    1.833
    """
    low, high = -1.0, 1.0
    while student_below(low, freedom) > chance:
        low *= 2
    while student_below(high, freedom) < chance:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if student_below(middle, freedom) < chance else (low, middle)
    return (low + high) / 2


def _beta_below(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # there the fraction of the mirrored function converges faster
        return 1 - _beta_below(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny, upper, lower, value = 1e-300, 1.0, 0.0, 1.0
    for i in range(1000):
        half = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = half * (b - half) * x / ((a + i - 1) * (a + i))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + i - 1) * (a + i))
        lower = 1 / (1 + term * lower or tiny)
        upper = 1 + term / upper or tiny
        value *= upper * lower
        if i and abs(upper * lower - 1) < 1e-15:
            break
    return front * (value - 1)


def mean_interval(values: Sequence[float], chance: float = 0.95) -> tuple[float, float, float]:
    """The mean, and where the true one lies with this chance; one value alone has no interval but itself.

    >>> [round(number, 3) for number in mean_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    reach = student_quantile((1 + chance) / 2, len(values) - 1) * math.sqrt(variance(values) / len(values))
    return mean, mean - reach, mean + reach


# ---- are two means the same, within a margin? ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of two means (second minus first), how sure it is, and what it says about equivalence."""

    mean: float
    error: float  # standard error
    spread: float  # standard deviation of one pair's difference
    freedom: float
    margin: float
    paired: bool
    seeds: int  # of the smaller side

    def _above(self, bound: float) -> float:
        """How surprising the difference would be if the truth were at most this: a one-sided p-value."""
        gap = self.mean - bound
        if self.error == 0:
            return 0.5 if gap == 0 else 0.0 if gap > 0 else 1.0
        return 1 - student_below(gap / self.error, self.freedom)

    @property
    def p_equivalent(self) -> float:
        """Two one-sided tests (Schuirmann 1987): the larger p-value of "not below -margin" and "not above margin"."""
        return max(self._above(-self.margin), 1 - self._above(self.margin))

    @property
    def p_beyond(self) -> float:
        """The p-value of "outside of the margin", on the side on which the mean lies, doubled for having looked."""
        return min(1.0, 2 * min(self._above(self.margin), 1 - self._above(-self.margin)))

    def interval(self, chance: float) -> tuple[float, float]:
        """Where the true difference lies, with this chance."""
        if self.error == 0:
            return self.mean, self.mean
        reach = student_quantile((1 + chance) / 2, self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def effect(self) -> float:
        """The difference in standard deviations of one pair's difference."""
        return self.mean / self.spread if self.spread else math.copysign(math.inf, self.mean) if self.mean else 0.0

    def seeds_needed(self, level: float, power: float = 0.8, truth: float | None = None) -> int | None:
        """How many seeds a side would show equivalence so often, were this the truth (what was seen unless told).

        None where no number would: the truth is not inside the margin.
        """
        room = self.margin - abs(self.mean if truth is None else truth)
        if room <= 0:
            return None
        # With the truth in the middle both tests can fail, so each may do so half as often.
        miss = (1 - power) / 2 if truth == 0 else 1 - power
        for seeds in range(2, MOST_SEEDS):
            freedom = (seeds - 1) * (1 if self.paired else 2)
            error = self.spread / math.sqrt(seeds)
            if (student_quantile(1 - level, freedom) + student_quantile(1 - miss, freedom)) * error <= room:
                return seeds
        return None


def paired(first: Sequence[float], second: Sequence[float], margin: float) -> Difference:
    """From pairs that share a seed: what the seed does to both is not counted as noise."""
    gaps = [b - a for a, b in zip(first, second, strict=True)]
    spread = math.sqrt(variance(gaps))
    return Difference(
        mean=fmean(gaps),
        error=spread / math.sqrt(len(gaps)),
        spread=spread,
        freedom=len(gaps) - 1,
        margin=margin,
        paired=True,
        seeds=len(gaps),
    )


def unpaired(first: Sequence[float], second: Sequence[float], margin: float) -> Difference:
    """From two sets of seeds that share none (Welch: their spreads may differ)."""
    parts = [variance(side) / len(side) for side in (first, second)]
    total = sum(parts)
    weights = sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return Difference(
        mean=fmean(second) - fmean(first),
        error=math.sqrt(total),
        spread=math.sqrt(variance(first) + variance(second)),
        freedom=total**2 / weights if weights else len(first) + len(second) - 2,
        margin=margin,
        paired=False,
        seeds=min(len(first), len(second)),
    )


def holm(chances: Sequence[float]) -> list[float]:
    """p-values of several comparisons, each made larger so that all of them together err at most so often (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    adjusted, highest = [0.0] * len(chances), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[i]))
        adjusted[i] = highest
    return adjusted


# ---- what has no formula ---------------------------------------------------------------------------------------------


def bootstrap(draw_from: int, statistic: Callable[[list[int]], float], chance: float) -> tuple[float, float]:
    """The interval of a statistic over what was drawn again, with replacement, from so many places; the same always."""
    dice = random.Random(0)
    found = sorted(statistic(dice.choices(range(draw_from), k=draw_from)) for _ in range(DRAWS))
    cut = int(DRAWS * (1 - chance) / 2)
    return found[cut], found[-cut - 1]


def jackknife(draw_from: int, statistic: Callable[[list[int]], float], chance: float = 0.95) -> tuple[float, float]:
    """The interval of a smooth statistic of few places, from what it is without each of them (Tukey 1958).

    Of five places a bootstrap's interval of 95 % holds the truth only about 81 % of the time.
    """
    every = list(range(draw_from))
    whole = statistic(every)
    if draw_from < 2:
        return whole, whole
    without = [statistic([i for i in every if i != left]) for left in every]
    _, low, high = mean_interval([draw_from * whole - (draw_from - 1) * one for one in without], chance)
    return low, high
