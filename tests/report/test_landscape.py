"""A landscape's page says what was measured, also where the loss has no number."""

import math
import re

import pytest
from report.test_run import tiles, tree_of, verdict

from worldsize.report.landscape import barrier, landscape_page

SIDE = [-1.0, -0.5, 0.0, 0.5, 1.0]
BETWEEN = [-0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
SHAPE = {
    "eigenvalue": {"value": 42.26, "residual": 0.019, "iterations": 7.0, "converged": 1.0},
    "trace": {"value": 126.2, "error": 13.1, "probes": 32.0},
    "sharpness": {"value": 17.18, "loss": 0.5, "highest": 0.76, "epsilon": 0.001, "steps": 10.0},
}


def record(
    *axes, height=lambda x, y: 0.5 + x * x + y * y, runs=("one",), curvature=None, accuracy=True, reestimate=False
):
    def entry(*place):
        found = {"place": list(place), "loss": height(*[*place, 0.0][:2])}
        return found | ({"accuracy": 1 / (1 + max(0.0, found["loss"]))} if accuracy else {})

    places = [(x,) for x in axes[0]] if len(axes) == 1 else [(x, y) for x in axes[0] for y in axes[1]]
    rest = (0.0,) * (len(axes) - 1)
    return {
        "command": "worldsize landscape one",
        "versions": {"worldsize": "0.1.0"},
        "machine": {"cpu": "AMD"},
        "model": {"name": "cnn", "parameters": 24058},
        "data": {"name": "fashion-10k", "on": "train", "of": 10000, "source": "inside"},
        "batch_norm": True,
        "runs": list(runs),
        "axes": [list(axis) for axis in axes],
        "values": [entry(*place) for place in places],
        "marks": [entry(float(i), *rest) for i in range(len(runs))],
        "curvature": curvature or {},
        "key": {
            "weights_sha256": ["ab" * 32] * len(runs),
            "examples": 1000,
            "span": 1.0,
            "seed": 3,
            "reestimate": reestimate,
        },
    }


def double_well(x, y):
    return 0.5 + 16 * x * x * (1 - x) * (1 - x) + y * y


PAGES = {
    "line": record(SIDE),
    "plane": record(SIDE, SIDE),
    "line between": record(BETWEEN, runs=("one", "two"), height=double_well),
    "plane between": record(BETWEEN, SIDE, runs=("one", "two"), height=double_well),
    "shape": record(SIDE, SIDE, curvature=SHAPE),
    "no accuracy": record(SIDE, SIDE, accuracy=False),
    "constant": record(SIDE, SIDE, height=lambda x, y: 1.0),
    "zero": record(SIDE, SIDE, height=lambda x, y: 0.0),
    "huge": record(SIDE, SIDE, height=lambda x, y: math.exp(80 * abs(x) + y)),
    "negative": record(SIDE, height=lambda x, y: x),
    "not finite": record(SIDE, SIDE, height=lambda x, y: math.nan if x > 0.6 else math.inf if y > 0.6 else 1 + y),
    "nothing finite": record(SIDE, height=lambda x, y: math.nan),
    "even": record([-1.0, -0.3, 0.3, 1.0], [-1.0, -0.3, 0.3, 1.0]),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_valid_the_same_twice_and_fetches_nothing(name):
    page = landscape_page(PAGES[name])
    tree_of(page)
    assert page == landscape_page(PAGES[name])
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", page)
    assert not re.search(r'(?:x|y|x1|x2|y1|y2|cx|cy|width|height|d|data-\w+)="[^"]*(?:nan|inf)', page)
    assert len(page) < 120_000


def test_around_a_solution_the_loss_there_is_the_news():
    page = landscape_page(PAGES["plane"])
    assert verdict(page) == "The loss is 0.5 at the trained weights; in this picture it goes from 0.5 to 2.5."
    assert tiles(page) == {"loss at the trained weights": "0.5", "highest loss in this picture": "2.5"}
    assert "the first 1,000 of 10,000 training examples, fashion-10k" in page
    assert "ab" * 32 in page


def test_between_two_solutions_the_barrier_is_the_news():
    for name in ("line between", "plane between"):
        page = landscape_page(PAGES[name])
        assert verdict(page) == "The loss is 0.5 and 0.5 at the two solutions; on the way it rises 1 above them."
        assert tiles(page) == {"loss of one": "0.5", "loss of two": "0.5", "barrier": "1"}


def test_the_barrier_is_measured_from_the_straight_line_between_both_losses():
    def height(x, y):
        return 1 + x + (0.25 if x == 0.5 else 0)

    assert barrier(record(BETWEEN, runs=("a", "b"), height=height)) == pytest.approx(0.25)
    assert barrier(record(BETWEEN, runs=("a", "b"), height=lambda x, y: 1 + x)) == 0
    assert barrier(record(BETWEEN, [-1.0, -0.3, 0.4], runs=("a", "b"))) is None, "no row lies on the line"
    flat = landscape_page(record(BETWEEN, runs=("a", "b"), height=lambda x, y: 1.0))
    assert "hardly rises on the way" in verdict(flat)


def test_the_shape_stands_in_tiles_and_in_words():
    page = landscape_page(PAGES["shape"])
    assert tiles(page) | {"largest Hessian eigenvalue": "42.3", "trace": "126", "sharpness": "17.2"} == tiles(page)
    assert "Hutchinson, 32 probes" in page
    odd = SHAPE | {"eigenvalue": SHAPE["eigenvalue"] | {"converged": 0.0}}
    assert "not converged" in landscape_page(record(SIDE, curvature=odd))


def test_what_is_cut_off_is_said():
    page = landscape_page(PAGES["huge"])
    assert re.search(r"Drawn as high as [\d,]+: 20 places with a loss above", page)
    assert "log" in page
    assert "Drawn as high as 1.5: 9 places with a loss that is not finite." in landscape_page(PAGES["not finite"])
    assert "Drawn as high as" not in landscape_page(PAGES["plane"])
    assert "The line is broken at 5 places with a loss that is not finite." in landscape_page(PAGES["nothing finite"])
    assert verdict(landscape_page(PAGES["nothing finite"])).startswith("No place but the solution itself")


def test_the_loss_on_a_line_is_shown_on_both_axes_the_fitting_one_first():
    for name, first in (("line", "linear"), ("huge line", "logarithmic")):
        page = landscape_page(PAGES["line"] if name == "line" else record(SIDE, height=lambda x, y: 10 ** (3 * abs(x))))
        choice = next(node for node in tree_of(page).iter("div") if node.get("class") == "choice")
        assert choice.findtext("label") == first
        assert [node.get("checked") for node in choice.findall("input")] == ["checked", None]


def test_the_table_holds_every_place_and_the_marks_last():
    rows = [[cell.text for cell in row] for row in tree_of(landscape_page(PAGES["even"])).iter("tr")]
    start = rows.index(["x", "y", "loss", "accuracy"])
    assert rows[start + 1] == ["-1", "-1", "2.5", "0.285714"]
    assert rows[start + 17] == ["0", "0", "0.5", "0.666667"]


@pytest.mark.parametrize(
    ("runs", "reestimate", "words"),
    [
        (("a",), False, "the run's own statistics"),
        (("a", "b"), False, "mixed between both solutions"),
        (("a", "b"), True, "measured anew at every place"),
    ],
)
def test_where_the_statistics_of_batch_norm_come_from_is_said(runs, reestimate, words):
    page = landscape_page(record(SIDE, runs=runs, reestimate=reestimate))
    assert words in "".join(tree_of(page).itertext())


def test_every_text_is_escaped():
    evil = "<script>alert(1)</script>"
    page = landscape_page(record(SIDE, SIDE, runs=(evil, evil)) | {"command": evil, "machine": {evil: evil}})
    assert page.count("<script") == 1
    tree_of(page)
