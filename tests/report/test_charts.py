"""Charts are valid, say what they show, and hold the numbers they were given."""

import math
import re
from itertools import pairwise

import pytest
from report.drawings import figure_of, texts

from worldsize.report.axis import Axis
from worldsize.report.bars import Bar, Strip, bar_chart, strip_chart
from worldsize.report.charts import Gap, Series, line_chart
from worldsize.report.paper import Reference

X, Y = Axis(title="step"), Axis(title="loss")
EVIL = "<script>alert(1)</script> & \"quoted\" 'single' \x00"


CHARTS = {
    "line": lambda name: line_chart(
        name,
        name,
        Axis(title=name),
        Axis(title=name),
        [Series(label=name, points=[(1, 2.0), (2, 1.0)], band=[(1, 1.0, 3.0), (2, 0.5, 1.5)], markers=True)],
        [Reference(value=1.5, label=name)],
        [Gap(start=1, end=2, y=1.0, label=name)],
    ),
    "bar": lambda name: bar_chart(
        name,
        name,
        Axis(title=name),
        [Bar(label=name, value=3.0, low=2.5, high=3.5, note=name)],
        [Reference(value=2.0, label=name)],
    ),
    "strip": lambda name: strip_chart(name, name, Axis(title=name), [Strip(label=name, values=[1.0, 2.0])]),
}


@pytest.mark.parametrize("kind", CHARTS)
def test_every_text_is_escaped(kind):
    chart = CHARTS[kind](EVIL)
    assert "<script" not in chart
    assert figure_of(chart).find(".//script") is None
    assert "\x00" not in chart


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_an_image_with_a_name_a_description_and_a_table(kind):
    figure = figure_of(CHARTS[kind]("speed"))
    drawings = list(figure.iter("svg"))
    assert [drawing.get("class") for drawing in drawings] == ["wide", "narrow"]
    for drawing in drawings:
        assert drawing.get("role") == "img"
        assert drawing.findtext("title") == "speed"
        assert drawing.findtext("desc") == "speed"
    assert len(list(figure.iter("tr"))) > 1


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_the_same_bytes_twice(kind):
    assert CHARTS[kind]("a") == CHARTS[kind]("a")


def test_the_table_holds_the_numbers_of_all_lines_at_their_places():
    series = [Series(label="a", points=[(1, 0.5), (2, 0.25)]), Series(label="b", points=[(2, 0.75), (3.5, 1e-7)])]
    rows = [[cell.text or "" for cell in row] for row in figure_of(line_chart("t", "", X, Y, series)).iter("tr")]
    assert rows == [["step", "a", "b"], ["1", "0.5", ""], ["2", "0.25", "0.75"], ["3.5", "", "1e-07"]]


def test_a_line_is_broken_where_a_value_is_not_finite():
    points = [(1, 1.0), (2, 2.0), (3, math.nan), (4, 3.0), (5, 4.0), (6, math.inf), (7, 5.0)]
    chart = line_chart("t", "", X, Y, [Series(label="a", points=points)])
    lines = re.findall(r'd="([^"]*)" class="line plain c0"', chart)
    assert "nan" not in "".join(lines)
    # Two pieces of two points and a single one, in the wide drawing; in the narrow one also the legend's sample.
    assert len(lines) == 2 + 2 + 1
    assert chart.count('r="2.5"') == 2
    assert "not a number" in texts(chart, "td")
    assert "infinite" in texts(chart, "td")


@pytest.mark.parametrize("points", [[], [(1, math.nan)], [(math.nan, 1)], [(math.inf, math.inf)]])
def test_nothing_to_draw_is_said(points):
    assert "nothing recorded" in texts(line_chart("t", "", X, Y, [Series(label="a", points=points)]), "text")


def test_charts_without_any_series_are_drawn():
    for chart in (line_chart("t", "", X, Y, []), bar_chart("t", "", X, []), strip_chart("t", "", X, [])):
        figure_of(chart)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e140, 1e300, math.nan, math.inf])
def test_odd_values_are_drawn_inside_the_sheet(value):
    charts = [
        line_chart("t", "", X, Y, [Series(label="a", points=[(0, value), (1, 1.0)])]),
        line_chart("t", "", Axis(title="", log=True), Axis(title="", log=True), [Series(points=[(value, value)])]),
        bar_chart("t", "", X, [Bar(label="a", value=value, low=value, high=1.0)]),
        strip_chart("t", "", X, [Strip(label="a", values=[value, 1.0])]),
    ]
    for chart in charts:
        assert not re.search(r'(?:x|y|x1|x2|y1|y2|cx|cy|width|height|d)="[^"]*(?:nan|inf)', chart)


def test_labels_at_the_ends_of_lines_do_not_overlap():
    series = [Series(label=f"run {i}", points=[(0, 1.0), (1, 2.0)], colour=i) for i in range(6)]
    wide = next(figure_of(line_chart("t", "", X, Y, series)).iter("svg"))
    heights = sorted(float(text.get("y")) for text in wide.iter("text") if text.get("class") == "label")
    assert len(heights) == 6
    assert all(b - a >= 14 for a, b in pairwise(heights))
