"""Ticks are round, enclose the values, and every value has a place on the paper."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize.report.axis import Axis, lay, tick_texts

VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5)


@given(VALUES, st.booleans(), st.booleans(), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_values_get_an_axis(values, log, zero, whole, tight):
    scale = lay(Axis(title="", log=log, zero=zero, whole=whole, tight=tight), values, 0, 100, 5)
    assert len(scale.ticks) <= 40
    assert len(tick_texts(scale)) == len(scale.ticks)
    assert all(0 <= scale.place(value) <= 100 for value in values if scale.shows(value))


@pytest.mark.parametrize(("low", "high"), [(0.7812, 0.8712), (1, 160), (0, 5872), (-3, 4), (1e-7, 3e-7)])
def test_ticks_enclose_the_values(low, high):
    scale = lay(Axis(title=""), [low, high], 0, 100, 5)
    assert scale.ticks[0] <= low < high <= scale.ticks[-1]


def test_labels_have_the_same_number_of_decimals():
    assert tick_texts(lay(Axis(title=""), [0.76, 0.88], 0, 100, 5)) == ["0.75", "0.80", "0.85", "0.90"]
    assert tick_texts(lay(Axis(title="", zero=True), [5872], 0, 100, 5))[-1] == "6,000"


def test_a_value_outside_stays_at_the_border():
    scale = lay(Axis(title="", tight=True), [1, 2], 10, 90, 5)
    assert [scale.place(value) for value in (0, 1, 2, 3)] == [10, 10, 90, 90]


def test_a_logarithmic_axis_gives_equal_room_to_equal_ratios():
    scale = lay(Axis(title="", log=True), [1, 100], 0, 100, 5)
    assert math.isclose(scale.place(10), 50)
    assert not scale.shows(0)
