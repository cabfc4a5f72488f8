"""The look of a page: every colour is defined, for light and dark paper, and the script finds what it looks for."""

import re

from report.drawings import figure_of

from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.style import CSS, SCRIPT

LIGHT, DARK = (dict(re.findall(r"--(\w+):([^;}]+)", block)) for block in re.findall(r":root\{([^}]*)\}", CSS))


def test_every_variable_that_is_used_is_defined():
    assert {*re.findall(r"var\(--(\w+)\)", CSS)} == LIGHT.keys() | {"c"}


def test_dark_paper_has_every_colour_of_light_paper_as_another():
    assert LIGHT.keys() == DARK.keys()
    assert not LIGHT.items() & DARK.items()


def test_every_block_is_closed():
    for text, opening, closing in ((CSS, "{", "}"), (SCRIPT, "{", "}"), (SCRIPT, "(", ")"), (SCRIPT, "[", "]")):
        assert text.count(opening) == text.count(closing) > 0


def test_nothing_is_fetched():
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\b", CSS + SCRIPT)


def test_the_script_finds_in_a_line_chart_what_it_looks_for():
    chart = figure_of(
        line_chart("t", "", Axis(title="step"), Axis(title="loss"), [Series(points=[(1, 2.0), (2, 1.0)])])
    )
    assert re.findall(r"querySelector(?:All)?\('([^']+)'\)", SCRIPT) == [
        "figure",
        "svg",
        "title",
        "g[data-x]",
        ".readout",
        "thead th",
        "tbody tr",
    ]
    for drawing in chart.iter("svg"):
        assert drawing.find("title") is not None
        (group,) = (node for node in drawing.iter("g") if node.get("data-x"))
        assert len([float(word) for word in group.get("data-x").split()]) == 5, "start, end, low, high, log"
        assert len([float(word) for word in group.get("data-y").split()]) == 2, "top, foot"
    assert chart.find(".//*[@class='readout']") is not None
    assert [len(row) for row in chart.iter("tr")] == [2, 2, 2]
