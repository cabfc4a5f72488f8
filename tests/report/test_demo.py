"""The demo's page says what its result says, and no more."""

import copy
import math
import re
import xml.etree.ElementTree as ET

import pytest

from worldsize.report.demo import demo_page


def tree_of(page):
    start, end = page.index("<script>"), page.index("</script>") + len("</script>")
    return ET.fromstring(page[:start].removeprefix("<!doctype html>\n") + page[end:])


def tiles(page):
    return {
        tile.findtext("dt"): tile.findtext("dd") for tile in tree_of(page).iter("div") if tile.find("dt") is not None
    }


def verdict(page):
    return next(node.text for node in tree_of(page).iter("p") if node.get("class", "").startswith("verdict"))


def headings(page):
    return [node.text for node in tree_of(page).iter("h2")]


def rows_after(page, title):
    """The table of the chart with this title."""
    figure = next(node for node in tree_of(page).iter("figure") if node.findtext("figcaption/b") == title)
    return [[cell.text or "" for cell in row] for row in figure.iter("tr")]


def test_tiles_and_verdict_show_the_results_numbers(result):
    page = demo_page(result)
    assert tiles(page) == {
        "as fast on 2 workers": "1.84×",
        "same bits": "Yes",
        "test accuracy": "0.871",
        "of what this machine allows": "95 %",
    }
    assert verdict(page) == "2 workers trained the same model as 1 worker, bit for bit, 1.84 times as fast."


def test_the_page_is_small_and_the_same_bytes_twice(result):
    page = demo_page(result)
    assert page == demo_page(copy.deepcopy(result))
    assert 30_000 < len(page.encode()) < 100_000


def test_both_losses_stand_in_the_table_to_the_last_bit_of_single_precision(result):
    rows = rows_after(demo_page(result), "Training loss, step by step")
    for step, row in zip(result["runs"][0]["steps"], rows[1:], strict=True):
        assert int(row[0]) == step["step"]
        assert row[1] == row[2]
        assert math.isclose(float(row[1]), step["loss"], rel_tol=1e-8)


def test_hashes_are_shown_in_full(result):
    page = demo_page(result)
    assert page.count(result["runs"][0]["weights_sha256"]) == 2
    assert page.count(result["runs"][1]["buffers_sha256"]) == 2


def test_bars_are_the_global_batch_over_the_median_step(result):
    rows = rows_after(demo_page(result), "Training speed")
    steps = sorted(entry["many_s"] for entry in result["speed"]["rounds"])
    shown = next(row for row in rows if row[0] == "2 workers")
    expected = [256 / steps[3], 256 / steps[-1], 256 / steps[0]]
    assert [float(cell) for cell in shown[1:]] == pytest.approx(expected, rel=1e-5)


def test_different_bits_are_said_loudly(result):
    result["same_bits"] = False
    page = demo_page(result)
    assert verdict(page).startswith("2 workers did not end with the weights of 1 worker")
    assert tiles(page)["same bits"] == "No"
    assert 'class="verdict bad"' in page


def test_a_claim_against_the_hashes_is_not_believed(result):
    result["runs"][1]["weights_sha256"] = "0" * 64
    assert tiles(demo_page(result))["same bits"] == "No"


def test_one_different_loss_is_counted(result):
    result["runs"][1]["steps"][7]["loss"] += 1e-12
    assert "The training losses of 159 of 160 recorded steps are the same." in demo_page(result)


def test_one_core_is_explained(result):
    result["machine"]["cores"] = 1
    result["speed"]["speedup"] = {"median": 0.93, "low": 0.9, "high": 0.97}
    page = demo_page(result)
    assert "0.93 times as fast (1 core for them)" in verdict(page)
    assert "This machine has 1 core, which 2 workers share" in page


def test_more_workers_are_named_by_their_number(result):
    result["runs"][1] |= {"workers": 16, "name": "16 workers"}
    assert verdict(demo_page(result)).startswith("16 workers trained")


def without(tree, path):
    pruned = copy.deepcopy(tree)
    node = pruned
    for key in path[:-1]:
        node = node[key]
    del node[path[-1]]
    return pruned


def paths_of(tree, path=()):
    """Every place in a result; of long lists the first entry stands for all."""
    pairs = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:2] if isinstance(tree, list) else ()
    for key, value in pairs:
        yield (*path, key)
        yield from paths_of(value, (*path, key))


def test_any_part_may_be_missing(result):
    for path in paths_of(result):
        tree_of(demo_page(without(result, path)))


def test_any_part_may_be_nothing_or_nonsense(result):
    for path in paths_of(result):
        for value in (None, [], "words"):
            broken = copy.deepcopy(result)
            node = broken
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
            demo_page(broken)


def test_an_empty_result_makes_a_page():
    page = demo_page({})
    assert verdict(page) == "The demo did not finish."
    assert headings(page) == ["How this was measured", "What to do next"]


def test_losses_that_are_not_finite_are_shown_as_such(result):
    for run in result["runs"]:
        run["steps"][5]["loss"] = math.nan
        run["steps"][6]["loss"] = math.inf
    page = demo_page(result)
    assert "The training losses of all 160 recorded steps are bit for bit the same." in page
    rows = rows_after(page, "Training loss, step by step")
    assert rows[6][1] == "not a number"
    assert rows[7][1] == "infinite"


def test_names_are_escaped(result):
    evil = "<script>alert(1)</script>"
    result["machine"]["cpu"] = result["experiment"]["model"] = result["command"] = evil
    for run in result["runs"] + result["naive"]:
        run["name"] = evil
    page = demo_page(result)
    assert page.count("<script") == 1
    tree_of(page)


def test_no_address_is_fetched(result):
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", demo_page(result))
