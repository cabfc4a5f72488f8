"""Axes: round ticks, and the place of a value on the paper."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from worldsize.report.values import drawable


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows; `title` carries the unit."""

    title: str
    log: bool = False
    zero: bool = False
    whole: bool = False
    tight: bool = False


@dataclass(frozen=True)
class Scale:
    """An axis laid on the paper, from `start` to `end` pixels."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of a value; values outside stay at the border."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    def shows(self, value: float) -> bool:
        """Whether a value can be drawn at all."""
        return drawable(value) and (value > 0 or not self.log)


def lay(axis: Axis, values: Iterable[float], start: float, end: float, count: int) -> Scale:
    """The scale on which all these values have a place, with about `count` ticks."""
    kept = [value for value in values if drawable(value) and (value > 0 or not axis.log)]
    if axis.log:
        low, high = _widened(min(kept, default=1.0), max(kept, default=10.0), log=True)
        ticks = _log_ticks(low, high, count)
    else:
        kept += [0.0] if axis.zero else []
        low, high = _widened(min(kept, default=0.0), max(kept, default=1.0), log=False)
        ticks = round_ticks(low, high, count, axis.whole)
    if not axis.tight:
        low, high = min(low, ticks[0]), max(high, ticks[-1])
    return Scale(low, high, tuple(tick for tick in ticks if low <= tick <= high), axis.log, start, end)


def round_ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that enclose the range.

    >>> round_ticks(0.76, 0.88, 4)
    [0.75, 0.8, 0.85, 0.9]
    >>> round_ticks(1, 4, 6, whole=True)
    [1.0, 2.0, 3.0, 4.0]
    """
    least = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    if whole:
        step = max(1.0, round(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(i * step, digits) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1, 2, 5) if high / low <= 100 else (1,)
    stride = max(1, math.ceil((last - first) / max(1, count)))
    ticks = [float(f"{factor}e{power}") for power in range(first, last + 1, stride) for factor in factors]
    inside = [tick for tick in ticks if tick <= 10.0**last]
    below = max((tick for tick in inside if tick <= low * (1 + 1e-9)), default=inside[0])
    above = min((tick for tick in inside if tick >= high * (1 - 1e-9)), default=inside[-1])
    return [tick for tick in inside if below <= tick <= above]


def _widened(low: float, high: float, log: bool) -> tuple[float, float]:
    """The range itself, or one with some width where all values are (nearly) the same."""
    if log:
        return (low, high) if high > low * 1.001 else (low / 2, high * 2)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-30):
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def tick_texts(scale: Scale) -> list[str]:
    """The labels of the ticks, all with the same number of decimals."""
    largest = max((abs(tick) for tick in scale.ticks), default=0.0)
    steps = [b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)]
    least = min(steps, default=largest or 1.0)
    if scale.log or largest >= 1e7 or least < 1e-4:
        return [_short(tick) for tick in scale.ticks]
    decimals = max(0, -math.floor(math.log10(least) + 1e-9))
    return [f"{tick:,.{decimals}f}" for tick in scale.ticks]


def _short(tick: float) -> str:
    if tick and not 1e-4 <= abs(tick) < 1e7:
        return f"{tick:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    return f"{tick:,.6g}" if abs(tick) < 1e6 else f"{tick:,.0f}"
