"""Curves of many steps keep their extremes, their straightness and their holes."""

import math

import pytest

from worldsize.report.curves import buckets, smoothed, smoothing_window


def test_buckets_keep_the_extremes_of_a_long_curve():
    points = [(float(i), float(i % 100)) for i in range(10_000)]
    means, band = buckets(points, most=100)
    assert len(means) == len(band) == 100
    assert {(low, high) for _, low, high in band} == {(0.0, 99.0)}
    assert {mean for _, mean in means} == {49.5}


def test_smoothing_leaves_a_straight_line_straight():
    points = [(float(i), 3.0 * i) for i in range(50)]
    assert smoothed(points, 9)[2:-2] == points[2:-2]


def test_what_cannot_be_drawn_is_left_out_of_a_mean_and_a_bucket_of_it_is_a_hole():
    points = [(1, 1.0), (2, math.nan), (3, math.inf), (4, math.nan), (5, 2.0), (6, 4.0)]
    means, band = buckets(points, most=3)
    assert means[::2] == [(2, 1.0), (6, 3.0)]
    assert math.isnan(means[1][1])
    assert band == [(2, 1.0, 1.0), (6, 2.0, 4.0)]
    assert dict(smoothed(points, 3))[5] == 3.0


@pytest.mark.parametrize("count", [0, 1, 160, 161, 12_345])
def test_there_are_never_more_points_than_asked_for_and_the_last_is_among_them(count):
    points = [(float(i), 1.0) for i in range(count)]
    means, _ = buckets(points, most=160)
    assert len(means) <= 160
    assert means[-1:] == points[-1:]


def test_a_window_has_a_middle():
    assert all(smoothing_window(count) % 2 == 1 for count in range(1000))
