"""Curves of many steps made readable: bucketed to what a page can show, and smoothed."""

import math
from collections.abc import Sequence

from worldsize.report.values import drawable

Point = tuple[float, float]
Band = tuple[float, float, float]


def buckets(points: Sequence[Point], most: int = 160) -> tuple[list[Point], list[Band]]:
    """At most `most` points, each the mean of its neighbours, and the lowest and highest of each; short curves as is.

    >>> buckets([(1, 4.0), (2, 2.0), (3, 1.0), (4, 3.0)], most=2)
    ([(2, 3.0), (4, 2.0)], [(2, 2.0, 4.0), (4, 1.0, 3.0)])
    """
    if len(points) <= most:
        return list(points), []
    width = math.ceil(len(points) / most)
    means: list[Point] = []
    bands: list[Band] = []
    for start in range(0, len(points), width):
        group = points[start : start + width]
        x, finite = group[-1][0], [y for _, y in group if drawable(y)]
        # A bucket with nothing to draw keeps its hole.
        means.append((x, math.fsum(finite) / len(finite) if finite else math.nan))
        bands += [(x, min(finite), max(finite))] if finite else []
    return means, bands


def smoothed(points: Sequence[Point], window: int) -> list[Point]:
    """The mean over `window` neighbouring points, centred; near both ends over fewer, at least half, and then none.

    >>> smoothed([(1, 1.0), (2, 2.0), (3, 6.0)], window=3)
    [(1, nan), (2, 3.0), (3, nan)]
    """
    result = []
    for i, (x, _) in enumerate(points):
        # As many on the left as on the right, or a falling curve would begin too low.
        reach = min(window // 2, i, len(points) - 1 - i)
        group = [y for _, y in points[i - reach : i + reach + 1] if drawable(y)]
        enough = group and reach >= (window // 2 + 1) // 2
        result.append((x, math.fsum(group) / len(group) if enough else math.nan))
    return result


def smoothing_window(count: int) -> int:
    """How many of `count` points are averaged: about a twentieth, an odd number.

    >>> smoothing_window(10), smoothing_window(160), smoothing_window(5000)
    (1, 9, 251)
    """
    return max(1, count // 20 + (1 - count // 20 % 2))
