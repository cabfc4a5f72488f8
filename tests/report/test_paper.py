"""What all charts stand on: two sizes of one drawing, and its numbers in a table."""

import xml.etree.ElementTree as ET

import pytest

from worldsize.report.axis import Axis, lay
from worldsize.report.markup import element
from worldsize.report.paper import (
    LETTER_PX,
    Table,
    figure,
    grid_below,
    grid_left,
    lettering,
    plain_table,
    polygon,
    wrapped,
)

WORDS = "the quick brown fox jumps over the lazy dog and comes back again"


@pytest.mark.parametrize("width_px", [0.0, 60.0, 150.0, 1000.0])
def test_a_text_is_broken_into_lines_that_fit_and_what_is_cut_off_is_marked(width_px):
    lines = wrapped(WORDS, width_px)
    assert 1 <= len(lines) <= 3
    assert all(len(line) <= max(4, width_px / LETTER_PX) for line in lines)
    assert lines[-1].endswith("…") or " ".join(lines) == WORDS


def test_no_text_is_one_empty_line():
    assert wrapped("", 100.0) == [""]


def test_lines_stand_below_each_other():
    read = ET.fromstring(lettering(["one", "two"], 5.0, 20.0, class_="label"))
    assert [(span.text, span.get("x"), span.get("y")) for span in read] == [("one", "5", "20"), ("two", "5", "36")]
    assert ET.fromstring(lettering(["one"], 5.0, 20.0)).text == "one"


def test_a_polygon_is_a_path_through_its_points():
    assert polygon([(0, 1), (2.25, 3)]) == "M0,1L2.2,3"
    assert polygon([(0, 1), (2, 3)], closed=True) == "M0,1L2,3Z"


@pytest.mark.parametrize("across", [True, False])
def test_a_grid_has_a_line_and_a_label_at_each_tick(across):
    axis = Axis(title="loss")
    scale = lay(axis, [1, 4], 0, 100, 5)
    grid = grid_below(scale, axis, 0, 50) if across else grid_left(scale, 0, 50)
    read = ET.fromstring(element("g", grid))
    places = [float(line.get("x1" if across else "y1")) for line in read.iter("line")]
    assert places == pytest.approx([scale.place(tick) for tick in scale.ticks], abs=0.06)
    labels = [text.text for text in read.iter("text")]
    assert len(labels) == len(scale.ticks) + across
    assert (axis.title in labels) == across


def test_a_figure_draws_the_same_on_both_sheets_and_unfolds_its_numbers():
    drawn = []

    def draw(sheet):
        drawn.append(sheet)
        return sheet.width / 2, element("g")

    read = ET.fromstring(figure("speed", "", draw, Table(["step"], [["1"], ["2"]]), data_kind="rows"))
    assert [drawing.get("viewBox") for drawing in read.iter("svg")] == ["0 0 900 450", "0 0 400 200"]
    assert [sheet.is_wide for sheet in drawn] == [True, False]
    assert read.get("data-kind") == "rows"
    assert [row[0].text for row in read.find("details").iter("tr")] == ["step", "1", "2"]
    assert read.find("p") is None, "nothing was said about it"


def test_a_table_without_a_head_has_rows_alone():
    read = ET.fromstring(plain_table(Table([], [["a", "b"]])))
    assert read.find(".//thead") is None
    assert [cell.text for cell in read.iter("td")] == ["a", "b"]
