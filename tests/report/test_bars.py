"""Bars begin at zero, strips show every round, and both say what they could not show."""

import math

import pytest
from report.drawings import figure_of, texts

from worldsize.report.axis import Axis
from worldsize.report.bars import Bar, Strip, bar_chart, strip_chart
from worldsize.report.paper import Reference

X = Axis(title="speed")


def rows_of(chart):
    return [[cell.text or "" for cell in row] for row in figure_of(chart).iter("tr")]


def shapes(chart, name, kind):
    """The shapes of this class in the wide drawing."""
    wide = next(figure_of(chart).iter("svg"))
    return [node for node in wide.iter(name) if kind in node.get("class", "").split()]


def test_a_bar_without_a_value_says_so():
    assert "not measured" in texts(bar_chart("t", "", X, [Bar(label="a", value=math.nan)]), "text")


def test_the_table_of_bars_holds_value_and_range():
    bars = [Bar(label="one", value=2.0, low=1.5, high=2.5), Bar(label="many", value=math.nan)]
    assert rows_of(bar_chart("t", "", X, bars)) == [
        ["", "speed", "lowest", "highest"],
        ["one", "2", "1.5", "2.5"],
        ["many", "", "", ""],
    ]


def test_twice_the_value_is_twice_the_bar():
    chart = bar_chart("t", "", X, [Bar(label="a", value=95.0), Bar(label="b", value=190.0)])
    short, long = (float(bar.get("width")) for bar in shapes(chart, "rect", "bar"))
    assert long == pytest.approx(2 * short, abs=0.2)


def test_only_the_bar_that_is_meant_stands_out():
    chart = bar_chart("t", "", X, [Bar(label="a", value=1.0), Bar(label="b", value=2.0, highlight=True)])
    (bar,) = shapes(chart, "rect", "highlight")
    assert bar.findtext("title") == "b: 2"


def test_a_strip_has_a_dot_for_each_round_and_tells_the_median():
    chart = strip_chart("t", "", X, [Strip(label="a", values=[1.0, 9.0, 2.0, math.nan])])
    assert len(shapes(chart, "circle", "dot")) == 3
    assert "median 2" in texts(chart, "text")


def test_the_table_of_strips_has_a_row_for_each_round_of_the_longest():
    chart = strip_chart("t", "", X, [Strip(label="a", values=[1.0]), Strip(label="b", values=[2.0, math.inf])])
    assert rows_of(chart) == [["round", "a", "b"], ["1", "1", "2"], ["2", "", "infinite"]]


def test_a_strip_without_a_value_says_so():
    assert "not measured" in texts(strip_chart("t", "", X, [Strip(label="a", values=[math.nan])]), "text")


def test_no_reference_line_runs_through_the_text_of_a_row():
    chart = bar_chart("t", "", X, [Bar(label="a", value=1.0)], [Reference(value=1.03, label="target")])
    wide = next(figure_of(chart).iter("svg"))
    (line,) = shapes(chart, "line", "reference")
    (value,) = (text for text in wide.iter("text") if text.get("class") == "value")
    assert float(value.get("x")) > float(line.get("x1"))
