"""The page of an experiment, and its drawing as a file of its own."""

import re
import xml.etree.ElementTree as ET

from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.experiment import experiment_page, standalone

FIGURE = line_chart("Title <1>", "", Axis(title="x"), Axis(title="y"), [Series(points=[(1, 2), (2, 3)])])
ABOUT = {name: f"The {name}." for name in ("title", "question", "setting", "prediction", "passes", "source")}
RESULT = {"experiment": "momentum", "holds": True, "finding": "It held.", "seeds": 5, "trials": 20, "wall_s": 31.0}


def test_the_page_says_what_was_asked_found_and_how_to_run_it_again():
    page = experiment_page(ABOUT, RESULT, [FIGURE])
    for text in (*ABOUT.values(), "It held.", "worldsize experiment run momentum --quick", ">yes<"):
        assert text in page
    assert ">no<" in experiment_page(ABOUT, RESULT | {"holds": False}, [FIGURE])
    assert "not judged" in experiment_page(ABOUT, RESULT | {"quick": True}, [FIGURE])
    assert not re.search(r"""(src|href)=["']http""", page)


def test_a_drawing_alone_is_an_svg_with_its_own_style():
    drawing = ET.fromstring(standalone(FIGURE))
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    style = drawing.find("{http://www.w3.org/2000/svg}style").text
    assert "--c0" in style
    assert "prefers-color-scheme" in style
    assert drawing.attrib["viewBox"].startswith("0 0 900 ")
