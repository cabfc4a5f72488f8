"""Contours: what lies above a level is covered once, and its border is where the level is met."""

import math

import pytest

from worldsize.report.contours import Range, colour, range_of, region_above


def area(polygon):
    pairs = zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in pairs)) / 2


def covered(xs, ys, height, level):
    polygons, border = region_above(xs, ys, [[height(x, y) for y in ys] for x in xs], level)
    return sum(map(area, polygons)), border


SIDE = [i / 4 for i in range(5)]


@pytest.mark.parametrize("level", [-1.0, 0.0, 0.1, 0.25, 0.6, 1.0, 2.0])
def test_a_slope_is_covered_from_the_level_on(level):
    share, border = covered(SIDE, SIDE, lambda x, y: x, level)
    assert share == pytest.approx(min(1.0, max(0.0, 1 - level)))
    for start, end in border:
        assert start[0] == pytest.approx(level)
        assert end[0] == pytest.approx(level)
    length = sum(math.dist(*piece) for piece in border)
    assert length == pytest.approx(1.0 if 0 < level <= 1 else 0.0)


@pytest.mark.parametrize("level", [0.3, 0.7, 1.0, 1.3])
def test_a_slope_across_is_covered_to_the_other_side(level):
    share, _ = covered(SIDE, SIDE, lambda x, y: x + y, level)
    corner = level**2 / 2 if level <= 1 else 1 - (2 - level) ** 2 / 2
    assert share == pytest.approx(1 - corner)


def test_a_round_hill_has_a_round_border_on_a_grid_that_is_not_even():
    xs = [math.sin(i / 20 * math.pi / 2) * 2 - 1 for i in range(21)]
    ys = [i / 15 * 2 - 1 for i in range(16)]
    share, border = covered(xs, ys, lambda x, y: 1 - x * x - y * y, 0.5)
    assert share == pytest.approx(math.pi / 2, rel=0.02)
    assert all(abs(math.hypot(*end) - 0.5**0.5) < 0.02 for piece in border for end in piece)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("high", [1.0, 4.0])
def test_a_saddle_is_joined_where_its_middle_lies_above(turned, high):
    heights = [[high, 0.0], [0.0, high]]
    if turned:
        heights.reverse()
    polygons, border = region_above([0, 1], [0, 1], heights, 1.0)
    cut = 1 / high
    joined = high / 2 >= 1
    assert len(polygons) == (1 if joined else 2)
    assert len(border) == 2
    assert sum(map(area, polygons)) == pytest.approx(1 - cut**2 if joined else (1 - cut) ** 2)
    for start, end in border:
        reach = cut if joined else 1 - cut
        assert math.dist(start, end) == pytest.approx(reach * 2**0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 49.0], Range(1.0, 49.0, False)),
        ([1.0, 51.0], Range(1.0, 51.0, True)),
        ([0.0, 1.0, 51.0], Range(1.0, 51.0, True)),
        ([-1.0, 51.0], Range(-1.0, 51.0, False)),
        ([0.001, 1e200, math.inf, 1e9], Range(0.001, 1000.0, True)),
        ([3.0, 3.0], Range(3.0, 3.3, False)),
        ([0.0], Range(0.0, 1.0, False)),
        ([math.nan], Range(0.0, 1.0, False)),
    ],
)
def test_the_range_is_that_in_which_a_solution_can_be_seen(values, expected):
    found = range_of(values)
    assert (found.low, found.high, found.log) == pytest.approx((expected.low, expected.high, expected.log))


def test_what_cannot_be_drawn_lies_at_the_top_and_the_rest_between():
    for found in (Range(1.0, 100.0, True), Range(-1.0, 100.0, False)):
        assert [found.share(value) for value in (math.nan, math.inf, -math.inf, 1e300, 1e9, 100.0)] == [1.0] * 6
        assert found.share(found.low) == found.share(found.low - 5) == 0.0
    assert Range(1.0, 100.0, True).share(10.0) == pytest.approx(0.5)
    assert Range(0.0, 100.0, False).share(25.0) == pytest.approx(0.25)
    assert range_of([0.1, 500.0], may_log=False) == Range(0.1, 500.0, False)


def test_colours_go_from_dark_to_light():
    def light(text):
        return sum(int(text[k : k + 2], 16) * weight for k, weight in ((1, 0.3), (3, 0.59), (5, 0.11)))

    tones = [light(colour(i / 50)) for i in range(51)]
    assert tones == sorted(tones)
    assert colour(-1) == colour(0)
    assert colour(2) == colour(1)
