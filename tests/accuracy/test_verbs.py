"""`worldsize experiment`: lists, draws, runs; a misuse is one line and exit 2."""

import json
import re

import pytest

from worldsize.accuracy.experiment import NAMES
from worldsize.cli import main


def said(capsys) -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1, found.err
    return found.err


def test_list_names_all_with_their_questions_and_findings(capsys):
    assert main(["experiment", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(NAMES)
    assert all(row["question"].endswith("?") and isinstance(row["holds"], bool) for row in rows)


def test_list_in_words_has_a_line_for_each(capsys):
    assert main(["experiment", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("  ")[0] for line in lines if not line.startswith(" ")] == list(NAMES)


def test_a_figure_is_drawn_from_the_published_result(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "figure", "momentum"]) == 0
    assert main(["experiment", "figure", "momentum", "--out", "m.svg"]) == 0
    assert capsys.readouterr().out == "momentum.html\nm.svg\n"
    assert {path.name for path in tmp_path.iterdir()} == {"momentum.html", "m.svg"}


def test_one_is_run_and_gives_its_result(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", "run", "linear-neuron", "--quick", "--json", "--workers", "2"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["experiment"] == "linear-neuron"
    assert (tmp_path / "experiments" / "linear-neuron.html").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "the following arguments are required: list"),
        (["draw"], "invalid choice: 'draw'"),
        (["run"], "`experiment run` needs a name; there are linear-neuron, .*, or all for every one"),
        (["run", "moment"], "unknown experiment 'moment'; there are linear-neuron"),
        (["run", "momentum", "--seeds", "0"], "--seeds 0 cannot be; it must be a whole number of at least 1"),
        (["run", "momentum", "--seeds", "1"], "--seeds 1 has no spread.*; use at least 2"),
        (["run", "momentum", "--seeds", "1001"], "--seeds 1001 are too many: .* from 1000 on; use at most 1,000"),
        (["run", "momentum", "--workers", "0"], "--workers 0 cannot be"),
        (["run", "momentum", "--result", "x"], "`experiment run` has no use for --result; leave it out"),
        (["figure", "momentum", "--quick"], "`experiment figure` has no use for --quick; leave it out"),
        (["list", "--seeds", "3"], "`experiment list` has no use for --seeds; leave it out"),
        (["run", "momentum", "--out", "/proc/x"], "--out /proc/x cannot be written: .*; name another folder"),
        (["figure", "momentum", "--out", "x.png"], "--out x.png is no page and no drawing; let it end in .html or"),
        (["figure", "momentum", "--out", "no/x.svg"], "--out no/x.svg cannot be written: No such file or directory"),
        (["figure", "momentum", "--result", "x.json"], "there is no result x.json; make one with"),
        (["figure", "momentum", "headline", "--out", "x.svg"], "are for one figure, but 2 were named; name one"),
        (["list", "momentum"], "`experiment list` takes no name, but momentum was given"),
    ],
)
def test_a_misuse_is_one_line_and_exit_2_and_writes_nothing(words, expected, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["experiment", *words]) == 2
    assert re.search(expected, said(capsys))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "result",
    [
        {"experiment": "momentum", "measured": {}},
        {"experiment": "momentum", "measured": {"target": [0.8], "steps": {"a": [1, 2]}}},
        {"experiment": "momentum", "measured": {"target": 0.8, "steps": [1]}, "holds": True, "finding": "x"},
    ],
)
def test_a_result_that_lacks_something_is_refused_and_not_drawn(result, tmp_path, capsys):
    (tmp_path / "x.json").write_text(json.dumps(result))
    out = tmp_path / "x.html"
    assert main(["experiment", "figure", "momentum", "--result", str(tmp_path / "x.json"), "--out", str(out)]) == 2
    assert re.search("x.json is no whole result of experiment momentum .*; run it again", said(capsys))
    assert not out.exists()
