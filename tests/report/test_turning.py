"""The script of reliefs finds what it looks for, fetches nothing, and its style uses colours that there are."""

import re

from report.drawings import figure_of
from report.test_relief import TABLE, relief

from worldsize.report import style
from worldsize.report.relief import Mark, map_chart, space
from worldsize.report.turning import CSS, SCRIPT


def test_every_block_is_closed():
    for text, opening, closing in ((CSS, "{", "}"), (SCRIPT, "{", "}"), (SCRIPT, "(", ")"), (SCRIPT, "[", "]")):
        assert text.count(opening) == text.count(closing) > 0


def test_nothing_is_fetched():
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\b", CSS + SCRIPT)


def test_every_colour_is_one_of_the_page():
    defined = set(re.findall(r"--(\w+):", style.CSS))
    assert set(re.findall(r"var\(--(\w+)\)", CSS)) <= defined
    assert set(re.findall(r"'--(\w+)'", SCRIPT)) <= defined


def test_the_two_scripts_declare_no_name_twice():
    names = [re.findall(r"^(?:const|let) (\w+)", text, re.MULTILINE) for text in (style.SCRIPT, SCRIPT)]
    assert len(set(names[0] + names[1])) == len(names[0] + names[1])


def test_the_script_finds_what_it_looks_for():
    drawn = relief(marks=[Mark(label="here", x=0.0, y=0.0)])
    surface, chart = figure_of(space("Space", [drawn])), figure_of(map_chart("Loss", "", drawn, TABLE))
    assert (surface.get("data-kind"), chart.get("data-kind")) == ("space", "map")
    looked_for = set(re.findall(r"querySelector(?:All)?\('([^']+)'\)", SCRIPT))
    assert looked_for == {
        *("figure[data-kind=map]", "figure[data-kind=space]", "thead th", "tbody tr"),
        *("svg", "g[data-across]", ".readout", "canvas", "select"),
    }
    (group,) = (node for node in chart.iter("g") if node.get("data-across"))
    assert [len(group.get(name).split()) for name in ("data-across", "data-up")] == [4, 4]
    canvas = surface.find("canvas")
    for name in re.findall(r"canvas\.dataset\.(\w+)", SCRIPT):
        assert canvas.get(f"data-{name}"), name
    option = surface.find(".//option")
    assert float(option.get("data-low")) < float(option.get("data-high"))
    assert option.get("value") in [node.text for node in chart.iter("th")]
    for figure in (surface, chart):
        assert figure.find(".//*[@class='readout']") is not None
