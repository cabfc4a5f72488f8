"""What a run leaves: a folder that can be read while it is written, by reports and by any reader of JSON."""

import json
import math
import sys

import pytest
import torch

import worldsize
from worldsize.errors import Misuse
from worldsize.report.records import read_records
from worldsize.train.records import FORMAT, Records, machine

FACTS = {"settings": {"model": "mlp"}, "plan": {"steps": 2, "workers": 1}}


@pytest.fixture
def records(tmp_path):
    found = Records(tmp_path / "runs" / "first")
    found.begin(FACTS)
    return found


def test_what_a_run_is_can_be_read_as_soon_as_it_has_begun(records):
    assert records.read() == {"format": FORMAT, **FACTS}
    assert [path.name for path in records.folder.iterdir()] == ["run.json"], "no file is left half-written"


def test_a_report_reads_what_was_written(records):
    records.step(step=1, time_s=0.5, loss=2.0)
    records.event("evaluated", time_s=0.6, epoch=1, accuracy=0.5)
    assert read_records(records.folder).state == "open"
    records.step(step=2, time_s=1.0, loss=1.0)
    records.event("finished", time_s=1.1)
    records.finish({"loss": 1.0})
    found = read_records(records.folder)
    assert found.state == "finished"
    assert list(found.steps) == [{"step": 1, "time_s": 0.5, "loss": 2.0}, {"step": 2, "time_s": 1.0, "loss": 1.0}]
    assert [event["event"] for event in found.events] == ["evaluated", "finished"]
    assert (found.result, found.unreadable) == ({"loss": 1.0}, 0)


def test_numbers_that_json_does_not_know_are_written_as_words(records):
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    records.step(step=1, loss=math.nan)
    records.finish({"loss": -math.inf})
    line, result = ((records.folder / name).read_text() for name in ("steps.jsonl", "result.json"))
    assert json.loads(line, parse_constant=refuse) == {"step": 1, "loss": "nan"}
    assert json.loads(result, parse_constant=refuse) == {"loss": "-inf"}


def test_a_result_is_replaced_as_a_whole(records):
    records.finish({"loss": 2.0, "accuracy": 0.1})
    records.finish({"loss": 1.0})
    assert json.loads((records.folder / "result.json").read_text()) == {"loss": 1.0}
    assert {path.name for path in records.folder.iterdir()} == {"run.json", "result.json"}


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Misuse, match="file/run cannot be written: Not a directory; name another folder") as raised:
        Records(tmp_path / "file" / "run").begin(FACTS)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "holds no run that can be read; name a folder that `worldsize train` wrote"),
        ("{", "holds no run that can be read"),
        ("[]", "is not what `worldsize train` writes; name another run"),
        (f'{{"format": {FORMAT}}}', "is not what `worldsize train` writes"),
        (f'{{"format": {FORMAT + 1}, "settings": {{}}}}', f"has format {FORMAT + 1}, this worldsize reads {FORMAT}"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path, content, says):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(Misuse, match=says) as raised:
        Records(tmp_path).read()
    assert "\n" not in str(raised.value)


def test_the_machine_is_described_in_words_that_json_takes():
    found = machine()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1
    assert (found["torch"], found["worldsize"]) == (torch.__version__, worldsize.__version__)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"].strip()
