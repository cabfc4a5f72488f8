"""The records of a run: sessions become one, damage is left out and counted, and the end is told from the events."""

import json
import math
import shutil

import pytest

from worldsize.errors import Misuse
from worldsize.report.records import read_records


def append(folder, name, *records):
    with (folder / name).open("a") as file:
        file.writelines(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records)


def test_the_sessions_of_a_resumed_run_become_one(make_run):
    records = read_records(make_run(resumed_at=100))
    assert [step["step"] for step in records.steps] == list(range(1, 161))
    assert (records.sessions, records.repeated) == (2, 13)
    times = [event["time_s"] for event in records.events]
    assert times == sorted(times)
    # 113 steps of 0.05 s, then 60 more.
    assert records.train_s == pytest.approx(113 * 0.05 + 60 * 0.05)


def test_of_a_step_that_was_computed_twice_the_later_counts(make_run):
    folder = make_run(steps=8)
    append(folder, "steps.jsonl", {"step": 8, "time_s": 0.01, "loss": 99.0})
    records = read_records(folder)
    assert (len(records.steps), records.steps[-1]["loss"], records.repeated) == (8, 99.0, 1)


def test_a_run_of_one_session_knows_its_training_time_from_its_result(make_run):
    folder = make_run()
    assert read_records(folder).train_s == json.loads((folder / "result.json").read_text())["train_s"]
    (folder / "result.json").unlink()
    assert read_records(folder).train_s == pytest.approx(160 * 0.05), "or else from the clock of its steps"
    (folder / "steps.jsonl").unlink()
    assert math.isnan(read_records(folder).train_s)


@pytest.mark.parametrize(
    ("events", "with_result", "state"),
    [
        ([], True, "finished"),
        ([], False, "open"),
        (["evaluated", "saved"], False, "open"),
        (["finished"], False, "finished"),
        (["failed"], True, "failed"),
        (["stopped", "saved"], False, "stopped"),
        (["stopped", "resumed"], False, "open"),
        (["stopped", "resumed", "finished"], False, "finished"),
        (["resumed", "interrupted"], False, "interrupted"),
    ],
)
def test_the_last_event_that_is_an_end_tells_how_a_run_ended(make_run, events, with_result, state):
    folder = make_run()
    (folder / "events.jsonl").unlink()
    append(folder, "events.jsonl", *({"time_s": i, "event": event} for i, event in enumerate(events)))
    if not with_result:
        (folder / "result.json").unlink()
    assert read_records(folder).state == state


@pytest.mark.parametrize(("resumed_at", "state"), [(160, "open"), (100, "finished")])
def test_a_result_counts_after_a_resume_only_when_it_is_of_a_later_step(make_run, resumed_at, state):
    folder = make_run()
    append(folder, "events.jsonl", {"time_s": 0.1, "event": "resumed", "step": resumed_at, "workers": 4})
    assert read_records(folder).state == state


@pytest.mark.parametrize(
    ("tail", "unreadable"),
    [
        ('{"step": 161, "lo', 1),
        ("\n\n", 0),
        ("null\n", 1),
        ("[1, 2]\n", 1),
        ('{"step": "x"}\n', 0),
        ("\x00\xff\n", 1),
    ],
)
def test_damaged_lines_are_left_out_and_counted(make_run, tail, unreadable):
    folder = make_run()
    for name in ("steps.jsonl", "events.jsonl"):
        append(folder, name, tail)
    records = read_records(folder)
    assert len(records.steps) == 160
    assert records.unreadable == 2 * unreadable


def test_a_folder_without_a_run_is_refused_in_one_line(make_run, tmp_path):
    folder = make_run()
    with pytest.raises(Misuse, match="no such folder; give the folder that `worldsize train` wrote"):
        read_records(tmp_path / "nowhere")
    with pytest.raises(Misuse, match=r"holds no run\.json"):
        read_records(tmp_path)
    (folder / "run.json").write_text('{"format": 1, "sta')
    with pytest.raises(Misuse, match=r"run\.json is damaged") as refusal:
        read_records(folder)
    assert "\n" not in str(refusal.value)
    shutil.rmtree(folder)
