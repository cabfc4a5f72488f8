"""A run's page tells how the run ended, from whatever it left on disk."""

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from worldsize.report.run import run_page, write_run_page


def tree_of(page):
    start, end = page.index("<script>"), page.index("</script>") + len("</script>")
    return ET.fromstring(page[:start].removeprefix("<!doctype html>\n") + page[end:])


def tiles(page):
    return {
        tile.findtext("dt"): tile.findtext("dd") for tile in tree_of(page).iter("div") if tile.find("dt") is not None
    }


def verdict(page):
    return next(node.text for node in tree_of(page).iter("p") if node.get("class", "").startswith("verdict"))


def rows_after(page, title):
    figure = next(node for node in tree_of(page).iter("figure") if node.findtext("figcaption/b") == title)
    return [[cell.text or "" for cell in row] for row in figure.iter("tr")]


def append(folder, name, text):
    with (folder / name).open("a") as file:
        file.write(text)


def test_a_finished_run_shows_its_results_numbers(make_run):
    folder = make_run()
    result = json.loads((folder / "result.json").read_text())
    page = run_page(folder)
    assert verdict(page) == f"Finished: {result['accuracy']:.3f} test accuracy after 160 steps on 2 workers."
    assert tiles(page) == {
        "test accuracy": f"{result['accuracy']:.3f}",
        "examples per second": "5,043",
        "training time": "8.0 s",
        "world size": "2",
    }
    assert result["weights_sha256"] in page
    rows = rows_after(page, "Test accuracy")
    assert [row[0] for row in rows] == ["epoch", "1", "2", "3", "4"]
    assert float(rows[4][1]) == pytest.approx(result["accuracy"], rel=1e-5)


def test_the_result_does_not_repeat_the_plan(make_run):
    folder = make_run()
    result = json.loads((folder / "result.json").read_text()) | {"replicas": 8, "data": "fashion-10k", "finished": True}
    (folder / "result.json").write_text(json.dumps(result))
    section = next(node for node in tree_of(run_page(folder)).iter("section") if node.findtext("h2") == "Result")
    names = [node.text for node in section.iter("th")]
    assert "Weights SHA-256" in names
    assert not {"Replicas", "Data", "Finished", "Workers"} & set(names)


def test_the_same_records_give_the_same_bytes(make_run):
    folder = make_run()
    assert run_page(folder) == run_page(folder)


def test_the_page_is_written_beside_the_records_or_where_told(make_run, tmp_path):
    folder = make_run()
    assert write_run_page(folder) == folder / "report.html"
    assert write_run_page(folder, tmp_path / "other.html").read_text() == (folder / "report.html").read_text()


def test_a_long_run_makes_a_page_of_the_same_size(make_run):
    page = run_page(make_run(steps=6000, epochs=12))
    assert len(page.encode()) < 110_000
    assert "There are too many records to draw each" in page


def test_a_resumed_run_is_one_run(make_run):
    page = run_page(make_run(resumed_at=100))
    assert "13 steps were computed again after a resume" in page
    assert verdict(page).endswith("after 160 steps on 2, then 3 workers.")
    assert tiles(page)["world size"] == "2 → 3"


def test_a_run_without_a_result_is_not_finished(make_run):
    folder = make_run()
    (folder / "result.json").unlink()
    events = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join(events[:-1]))
    assert verdict(run_page(folder)).startswith("Not finished: the records end at step 160 of 160.")
    assert "test accuracy so far" in tiles(run_page(folder))


def test_a_missing_result_of_a_finished_run_is_said(make_run):
    folder = make_run()
    (folder / "result.json").unlink()
    assert verdict(run_page(folder)).endswith("Its result.json is missing.")


def test_a_failure_is_the_verdict(make_run):
    folder = make_run()
    (folder / "result.json").unlink()
    append(
        folder, "events.jsonl", json.dumps({"time_s": 9, "event": "failed", "error": "worker 1 was <killed>"}) + "\n"
    )
    page = run_page(folder)
    assert verdict(page) == "Failed after step 160 of 160: worker 1 was <killed>"
    assert 'class="verdict bad"' in page


@pytest.mark.parametrize(("event", "words"), [("stopped", "Stopped as asked"), ("interrupted", "Interrupted")])
def test_a_run_that_was_stopped_says_how_to_go_on(make_run, event, words):
    folder = make_run()
    (folder / "result.json").unlink()
    append(folder, "events.jsonl", json.dumps({"time_s": 9, "event": event}) + "\n")
    assert verdict(run_page(folder)).startswith(f"{words} after step 160 of 160. Go on with worldsize train --resume")


def test_an_older_result_does_not_count_after_a_resume(make_run):
    folder = make_run()
    append(folder, "events.jsonl", json.dumps({"time_s": 0.1, "event": "resumed", "step": 160, "workers": 4}) + "\n")
    assert verdict(run_page(folder)).startswith("Not finished")


@pytest.mark.parametrize("tail", ['{"step": 161, "lo', "\n\n", "null\n", "[1, 2]\n", '{"step": "x"}\n', "\x00\xff\n"])
def test_damaged_lines_are_left_out(make_run, tail):
    folder = make_run()
    for name in ("steps.jsonl", "events.jsonl"):
        append(folder, name, tail)
    tree_of(run_page(folder))


def test_a_cut_line_is_mentioned(make_run):
    folder = make_run()
    append(folder, "steps.jsonl", '{"step": 161, "lo')
    assert "1 line of the records could not be read and were left out." in run_page(folder)


@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl", "result.json"])
@pytest.mark.parametrize("content", [None, "", "{"])
def test_any_other_file_may_be_missing_empty_or_damaged(make_run, name, content):
    folder = make_run()
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    tree_of(run_page(folder))


def test_a_run_that_has_just_begun_has_a_page(make_run):
    folder = make_run()
    for name in ("steps.jsonl", "events.jsonl", "result.json"):
        (folder / name).unlink()
    assert verdict(run_page(folder)).startswith("Not finished: the records end at step 0 of 160.")


def test_a_bare_run_json_is_enough(make_run):
    folder = make_run()
    (folder / "run.json").write_text('{"format": 1}')
    assert tree_of(run_page(folder)).findtext(".//h1") == "A training run"


def test_losses_that_are_not_finite_are_counted(make_run):
    folder = make_run()
    append(folder, "steps.jsonl", json.dumps({"step": 161, "time_s": 9, "loss": math.nan}) + "\n")
    append(folder, "steps.jsonl", json.dumps({"step": 162, "time_s": 9, "loss": -math.inf}) + "\n")
    page = run_page(folder)
    assert "2 steps had a loss that is infinite or not a number" in page
    tree_of(page)


def test_a_run_without_accuracy_shows_its_loss(make_run):
    folder = make_run()
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("accuracy", None)
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = json.loads((folder / "result.json").read_text())
    del result["accuracy"]
    (folder / "result.json").write_text(json.dumps(result))
    page = run_page(folder)
    assert tiles(page)["test loss"] == f"{result['loss']:.3g}"
    assert verdict(page).startswith(f"Finished: a test loss of {result['loss']:.4g}")


def test_every_text_of_the_records_is_escaped(make_run):
    folder = make_run()
    evil = "<script>alert(1)</script>"
    run = json.loads((folder / "run.json").read_text())
    run["model"]["name"] = run["command"] = run["started"] = evil
    run["settings"] = {evil: evil}
    (folder / "run.json").write_text(json.dumps(run))
    append(folder, "events.jsonl", json.dumps({"event": evil, evil: evil}) + "\n")
    page = run_page(folder)
    assert page.count("<script") == 1
    assert tree_of(page).findtext(".//h1").startswith(evil)


def test_no_address_is_fetched(make_run):
    assert not re.findall(r"""(?:src|href)\s*=|url\(|@import|https?://""", run_page(make_run()))
