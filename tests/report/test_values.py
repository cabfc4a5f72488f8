"""Values: a record may hold anything, and each way of writing it gives words or a number that reads back."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldsize.report import values

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.none()),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e149, max_value=1e149)


@given(ANYTHING)
@example(10**400)
def test_whatever_a_record_holds_there_are_words_for_it(anything):
    for words in (
        values.written(anything),
        values.fixed(anything, 2),
        values.percent(anything),
        values.duration(anything),
        values.counted(anything, "step"),
        values.moment(anything),
        values.exact(values.number(anything)),
    ):
        assert words
        assert "nan" not in words or isinstance(anything, str)


@given(FINITE)
@example(1234.5)
def test_a_number_of_a_table_can_be_copied(value):
    assert float(values.exact(value)) == pytest.approx(value, rel=1e-5)
    assert "," not in values.exact(value)


@given(FINITE)
def test_a_number_for_people_is_right_to_its_digits(value):
    assert float(values.written(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "drawn"), [(1e149, True), (-1e149, True), (1e150, False), (math.inf, False), (math.nan, False)]
)
def test_only_what_has_a_place_in_a_chart_is_drawn(value, drawn):
    assert values.drawable(value) is drawn


def test_numbers_that_are_none_are_said_in_words():
    assert [values.written(value) for value in (math.inf, -math.inf, "x")] == [
        "infinite",
        "minus infinite",
        "not a number",
    ]
    assert [values.fixed(value, 1) for value in (-math.inf, None)] == ["minus infinite", "not known"]
    assert values.percent(None) == values.duration("soon") == values.moment("") == "not known"


def test_a_part_that_is_missing_on_the_way_is_none():
    record = {"plan": {"workers": 2}, "data": None}
    assert values.part(record, "plan", "workers") == 2
    assert values.part(record, "plan", "rule", "name") is None
    assert values.part(record, "data", "name") is None


def test_of_a_list_only_the_records_count():
    assert values.entries([{"a": 1}, None, [], "words"]) == [{"a": 1}]
    assert values.entries({"a": 1}) == []
