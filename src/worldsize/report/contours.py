"""Filled contours of values on a grid: the range they are drawn in, the region above a level, and its border."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worldsize.report.values import drawable

Spot = tuple[float, float]
WIDE = 50.0  # from this ratio of the largest to the smallest value on, colours follow the logarithm
WIDEST = 1e6

# Viridis (van der Walt and Smith): even steps to the eye, also to colour-blind ones and in grey.
PALETTE = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")


@dataclass(frozen=True)
class Range:
    """The values that colours stand for, `log` or not; what lies outside has the colour of the nearer end."""

    low: float
    high: float
    log: bool

    def share(self, value: float) -> float:
        """How far up a value lies, from 0 to 1; what is not finite lies at the top."""
        if not drawable(value):
            return 1.0
        at = min(self.high, max(self.low, value))
        if self.log:
            return math.log(at / self.low) / math.log(self.high / self.low)
        return (at - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        if self.log:
            return self.low * (self.high / self.low) ** share
        return self.low + share * (self.high - self.low)


def range_of(values: Iterable[float], may_log: bool = True) -> Range:
    """The range of these values; of a very wide one only the lower part, where a solution lies.

    >>> range_of([0.5, 2.0, float("nan")])
    Range(low=0.5, high=2.0, log=False)
    >>> range_of([0.01, 5.0, 1e30])
    Range(low=0.01, high=10000.0, log=True)
    """
    finite = [value for value in values if drawable(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    least = min((value for value in finite if value > 0), default=high)
    if may_log and low >= 0 and high > WIDE * least:
        return Range(least, min(high, WIDEST * least), True)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        high = low + (abs(low) * 0.1 or 1.0)
    return Range(low, high, False)


def colour(share: float) -> str:
    """The colour between 0 and 1.

    >>> colour(0), colour(0.5), colour(1)
    ('#440154', '#21918c', '#fde725')
    """
    at = min(1.0, max(0.0, share)) * (len(PALETTE) - 1)
    left = min(int(at), len(PALETTE) - 2)
    ends = [[int(PALETTE[i][k : k + 2], 16) for k in (1, 3, 5)] for i in (left, left + 1)]
    mixed = (round(a + (b - a) * (at - left)) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def region_above(
    xs: Sequence[float], ys: Sequence[float], heights: Sequence[Sequence[float]], level: float
) -> tuple[list[list[Spot]], list[tuple[Spot, Spot]]]:
    """Polygons that cover what is at least as high as `level`, and the pieces of its border.

    heights[i][j] is that at (xs[i], ys[j]); between them it changes evenly.
    """
    polygons: list[list[Spot]] = []
    border: list[tuple[Spot, Spot]] = []
    for j in range(len(ys) - 1):
        whole_from = None  # cells in a row that lie above as a whole are one polygon
        for i in range(len(xs)):
            corners = []
            if i < len(xs) - 1:
                spots = ((i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1))
                corners = [((xs[a], ys[b]), heights[a][b]) for a, b in spots]
            whole = bool(corners) and all(height >= level for _, height in corners)
            if whole and whole_from is None:
                whole_from = i
            elif not whole and whole_from is not None:
                left, right = xs[whole_from], xs[i]
                polygons.append([(left, ys[j]), (right, ys[j]), (right, ys[j + 1]), (left, ys[j + 1])])
                whole_from = None
            if not whole and any(height >= level for _, height in corners):
                parts, lines = _cell(corners, level)
                polygons += parts
                border += lines
    return polygons, border


def _cell(corners: Sequence[tuple[Spot, float]], level: float) -> tuple[list[list[Spot]], list[tuple[Spot, Spot]]]:
    """The part of one cell above the level: one polygon, or two opposite corners of a saddle that do not meet."""
    walk: list[Spot] = []
    crossings: list[Spot] = []
    above = [height >= level for _, height in corners]
    for k in range(4):
        (here, low), (there, high) = corners[k], corners[(k + 1) % 4]
        if above[k]:
            walk.append(here)
        if above[k] != above[(k + 1) % 4]:
            share = (level - low) / (high - low)
            spot = (here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1]))
            walk.append(spot)
            crossings.append(spot)
    if len(crossings) == 2:
        return [walk], [(crossings[0], crossings[1])]
    joined = sum(height for _, height in corners) / 4 >= level
    # Each pair of neighbouring crossings cuts off the corner between them.
    cut = [1, 3] if above[0] == joined else [0, 2]
    lines = [(crossings[k - 1], crossings[k]) for k in cut]
    if joined:
        return [walk], lines
    return [[crossings[k - 1], corners[k][0], crossings[k]] for k in cut], lines
