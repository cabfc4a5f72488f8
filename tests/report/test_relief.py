"""A map and a surface are valid, escape what they are given, and hold what their script looks for."""

import re

import pytest
from report.drawings import figure_of, texts

from worldsize.report.axis import Axis
from worldsize.report.contours import range_of
from worldsize.report.paper import Table
from worldsize.report.relief import LEVELS, Mark, Relief, map_chart, space

EVIL = "<script>alert(1)</script> & \"quoted\" 'single'"


def relief(name="loss", height=lambda x, y: x * x + y, sides=((-1.0, 0.0, 1.0), (0.0, 0.5, 1.0)), **more):
    xs, ys = sides
    values = [[height(x, y) for y in ys] for x in xs]
    found = range_of([value for row in values for value in row])
    return Relief(
        measure=name, x=Axis(title=name), y=Axis(title=name), xs=xs, ys=ys, values=values, range=found, **more
    )


TABLE = Table(["x", "y", "loss"], [["0", "0", "1"]])


def test_every_text_is_escaped():
    evil = relief(EVIL, marks=[Mark(label=EVIL, x=0.0, y=0.0)])
    for drawing in (map_chart(EVIL, EVIL, evil, TABLE), space(EVIL, [evil])):
        assert "<script" not in drawing
        figure_of(drawing)


def test_a_map_paints_each_level_over_those_below():
    figure = figure_of(map_chart("Loss", "", relief(height=lambda x, y: x), TABLE))
    assert [svg.get("class") for svg in figure.iter("svg")] == ["narrow"]
    regions = [node.get("d") for node in figure.iter("path") if node.get("fill")]
    assert len(regions) == LEVELS - 1
    left = [min(float(x) for x, _ in re.findall(r"([\d.]+),([\d.]+)", path)) for path in regions]
    assert left == sorted(left)
    assert left[0] == pytest.approx(52 + 268 / LEVELS, abs=0.1)
    assert "52 320 -1 1" in [node.get("data-across") for node in figure.iter("g")]


def test_marks_lie_at_their_places_with_their_names():
    marks = [Mark(label="here", x=0.0, y=0.5), Mark(label="there", x=1.0, y=1.0)]
    figure = figure_of(map_chart("Loss", "", relief(marks=marks), TABLE))
    spots = [(float(node.get("cx")), float(node.get("cy"))) for node in figure.iter("circle")]
    assert spots == [(186, 160), (320, 26)]
    assert {"here", "there"} <= set(texts(map_chart("Loss", "", relief(marks=marks), TABLE), "text"))


@pytest.mark.parametrize("value", [0.0, 1e300, float("nan"), float("inf")])
def test_odd_values_stay_inside_the_map(value):
    chart = map_chart("Loss", "", relief(height=lambda x, y: value if x > 0 else 1.0 + y), TABLE)
    figure_of(chart)
    assert not re.search(r'(?:x|y|cx|cy|width|height|d|data-\w+)="[^"]*(?:nan|inf)', chart)


def test_a_flat_relief_is_one_colour():
    figure = figure_of(map_chart("Loss", "", relief(height=lambda x, y: 2.0), TABLE))
    assert not [node for node in figure.iter("path") if node.get("fill")]


def test_a_surface_is_hidden_until_its_script_runs_and_offers_every_measure():
    steep = relief(height=lambda x, y: 10 ** (2 + 2 * x), marks=[Mark(label="here", x=0.0, y=0.0)])
    figure = figure_of(space("Space", [steep, relief("accuracy")]))
    assert figure.get("hidden")
    options = [(node.text, node.get("value"), node.get("data-log")) for node in figure.iter("option")]
    assert options == [("loss, log", "loss", "1"), ("loss", "loss", None), ("accuracy", "accuracy", None)]
    canvas = figure.find("canvas")
    assert canvas.get("tabindex") == "0"
    assert "Arrow keys turn it" in canvas.get("aria-label")
    assert (canvas.get("data-grid"), canvas.get("data-marks")) == ("3 3", "0,0,here")
    assert len(canvas.get("data-palette").split()) == 64
