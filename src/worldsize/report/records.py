"""The records of one run as a page needs them: read from its folder, sessions joined, damage tolerated."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from worldsize.errors import Misuse
from worldsize.report.values import drawable, number

Record = dict[str, Any]
State = Literal["finished", "failed", "stopped", "interrupted", "open"]
ENDS = ("finished", "failed", "stopped", "interrupted", "resumed")


@dataclass(frozen=True, kw_only=True)
class Records:
    """What a run left on disk. `steps` holds each step once, as it was computed last; times never restart.

    `repeated` counts steps that a resumed session computed again, `unreadable` lines that are no records.
    """

    run: Record
    steps: Sequence[Record]
    events: Sequence[Record]
    result: Record
    sessions: int
    repeated: int
    unreadable: int

    @property
    def state(self) -> State:
        """How the run ended; a result of an earlier session does not count once the run was resumed."""
        ends = [event for event in self.events if event.get("event") in ENDS]
        last = ends[-1] if ends else {}
        if last.get("event") in ("failed", "stopped", "interrupted"):
            return cast(State, last["event"])
        if last.get("event") == "resumed" and not number(self.result.get("steps")) > number(last.get("step")):
            return "open"
        return "finished" if self.result or last.get("event") == "finished" else "open"

    @property
    def train_s(self) -> float:
        """Seconds of training where the result says them, or else the time on the clock over all sessions."""
        if self.sessions == 1 and drawable(number(self.result.get("train_s"))):
            return number(self.result["train_s"])
        return max((number(step.get("time_s")) for step in self.steps), default=float("nan"))


def read_records(folder: Path) -> Records:
    """The records of the run in this folder; refuses a folder that holds none."""
    run = _read_run(folder)
    steps, bad_steps = _lines(folder / "steps.jsonl")
    events, bad_events = _lines(folder / "events.jsonl")
    step_sessions, event_sessions = _sessions(steps), _sessions(events)
    count = max(step_sessions[-1:] + event_sessions[-1:], default=0) + 1
    lengths = [
        max(
            (
                number(record.get("time_s"))
                for records, sessions in ((steps, step_sessions), (events, event_sessions))
                for record, session in zip(records, sessions, strict=True)
                if session == i and drawable(number(record.get("time_s")))
            ),
            default=0.0,
        )
        for i in range(count)
    ]
    before = [sum(lengths[:i]) for i in range(count)]
    placed = list(_shifted(steps, step_sessions, before))
    latest = {number(step.get("step")): step for step in placed if drawable(number(step.get("step")))}
    return Records(
        run=run,
        steps=[latest[step] for step in sorted(latest)],
        events=list(_shifted(events, event_sessions, before)),
        result=_object(folder / "result.json"),
        sessions=count,
        repeated=len(placed) - len(latest),
        unreadable=bad_steps + bad_events,
    )


def _read_run(folder: Path) -> Record:
    if not folder.is_dir():
        raise Misuse(f"no run in {folder}: there is no such folder; give the folder that `worldsize train` wrote")
    if not (folder / "run.json").is_file():
        raise Misuse(f"no run in {folder}: it holds no run.json; give the folder that `worldsize train` wrote")
    run = _object(folder / "run.json")
    if not run:
        raise Misuse(f"no run in {folder}: its run.json is damaged; train again, or give another run's folder")
    return run


def _object(path: Path) -> Record:
    """A JSON object from a file; empty where it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path) -> tuple[list[Record], int]:
    """The records of a file with one per line, and how many lines are none: a crash may cut off the last."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [], 0
    records, bad = [], 0
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        else:
            bad += 1
    return records, bad


def _sessions(records: Sequence[Record]) -> list[int]:
    """For each record the session that wrote it: a new one begins where time goes back."""
    result, session, last = [], 0, float("-inf")
    for record in records:
        time_s = number(record.get("time_s"))
        if drawable(time_s):
            session += time_s < last
            last = time_s
        result.append(session)
    return result


def _shifted(records: Sequence[Record], sessions: Sequence[int], before: Sequence[float]) -> Iterable[Record]:
    """The records with times that count on from session to session."""
    for record, session in zip(records, sessions, strict=True):
        time_s = number(record.get("time_s"))
        yield {**record, "time_s": time_s + before[session]} if drawable(time_s) else record
