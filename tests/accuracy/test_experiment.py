"""Experiments: each says what it asks, its published result is what its code says of it today, and it is drawn."""

import json
import re
import runpy
import shutil
from pathlib import Path

import pytest
from proof import write_table
from rich.console import Console

from worldsize.accuracy import experiment
from worldsize.errors import Misuse


@pytest.mark.parametrize("name", experiment.NAMES)
def test_each_says_what_it_asks_sets_predicts_and_when_it_holds(name):
    found = experiment.named(name)
    assert found.question.endswith("?")
    assert all(not text[0].islower() and text[-1] in ".?" for key, text in found.about.items() if key != "title")
    assert re.search(r"arXiv:\d{4}\.\d{5}", found.source)
    assert found.seeds >= 5


@pytest.mark.parametrize("name", experiment.NAMES)
def test_its_published_result_is_whole_and_judged_and_drawn_as_its_code_does_today(name, tmp_path):
    result = experiment.read_result(experiment.published(name), name)
    finding = experiment.named(name).judge(result["measured"])
    assert (result["holds"], result["finding"]) == (finding.holds, finding.sentence)
    assert (result["quick"], result["seeds"]) == (False, experiment.named(name).seeds)
    assert result["command"] == f"worldsize experiment run {name}"
    for suffix in ("html", "svg"):
        experiment.write_figure(name, result, tmp_path / f"x.{suffix}")
        assert "nothing recorded" not in (tmp_path / f"x.{suffix}").read_text()


def test_the_page_and_drawings_of_the_docs_are_those_of_the_published_results(repository: Path, tmp_path):
    folder = repository / "docs" / "experiments"
    shutil.copy(folder / "draw.py", tmp_path)
    runpy.run_path(str(tmp_path / "draw.py"))["main"](None)
    drawn = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert drawn.keys() == {path.name for path in folder.iterdir() if path.is_file()}
    stale = [name for name, text in drawn.items() if (folder / name).read_text() != text]
    assert not stale, "draw them again: make drawings"


def test_every_file_of_the_room_is_a_named_experiment():
    folder = Path(experiment.__file__).parent / "experiments"
    files = {path.stem.replace("_", "-") for path in folder.glob("*.py")} - {"--init--"}
    assert files == set(experiment.NAMES)


def test_one_is_run_kept_and_drawn(tmp_path):
    out = {"out": tmp_path, "console": Console(quiet=True)}
    result = experiment.run_experiment("linear-neuron", workers=2, seeds=None, quick=True, **out)
    assert json.loads((tmp_path / "linear-neuron.json").read_text()) == result
    assert (result["seeds"], result["trials"], result["computed"], result["quick"]) == (2, 8, 8, True)
    assert "not judged" in (tmp_path / "linear-neuron.html").read_text()
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 8
    again = experiment.run_experiment("linear-neuron", workers=1, seeds=None, quick=True, **out)
    assert (again["computed"], again["measured"]) == (0, result["measured"])
    assert "8 trials had been kept" in (tmp_path / "linear-neuron.html").read_text()


@pytest.mark.proof
def test_the_quick_mode_of_every_experiment_runs(repository: Path, tmp_path):
    rows = []
    for name in experiment.NAMES:
        result = experiment.run_experiment(
            name, workers=2, seeds=None, quick=True, out=tmp_path, console=Console(quiet=True)
        )
        assert result["quick"]
        rows.append([name, result["trials"], result["seeds"], f"`{result['command']}`"])
    columns = {"experiment": "---", "trials": "---:", "seeds": "---:", "command": "---"}
    text = "A small part of each experiment, run to its page; what it finds is not judged."
    write_table(repository, "experiments", "The quick mode of every experiment", text, columns, rows)


def test_what_is_no_result_is_refused(tmp_path):
    for content, message in (
        (None, "there is no result .*; make one with: worldsize experiment run momentum"),
        ("{", "does not read as JSON"),
        ("[]", "is no result of experiment momentum"),
        ('{"experiment": "headline", "measured": {}}', "is no result of experiment momentum"),
    ):
        path = tmp_path / "x.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(Misuse, match=message):
            experiment.read_result(path, "momentum")


def test_json_knows_no_infinity():
    assert experiment.plain({1: (float("inf"), 2), "a": [float("nan")]}) == {"1": [None, 2], "a": [None]}
