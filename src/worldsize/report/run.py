"""The page of one training run: how it ended, its curves, its events, its settings."""

import math
from pathlib import Path
from statistics import median
from typing import Any

from worldsize.errors import Misuse
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.curves import Point, buckets, smoothed, smoothing_window
from worldsize.report.markup import Html, element
from worldsize.report.page import Section, Tile, facts_table, pair, render_page
from worldsize.report.paper import Reference, Table, plain_table
from worldsize.report.records import Record, Records, read_records
from worldsize.report.values import counted, drawable, duration, fixed, moment, number, part, written

EVENTS_SHOWN = 100
STEP = Axis(title="optimizer step", whole=True, zero=True)


def write_run_page(folder: Path, target: Path | None = None) -> Path:
    """Write the page of the run in this folder, as report.html in the folder unless told otherwise; gives its path."""
    target = target or Path(folder) / "report.html"
    if not target.parent.is_dir():
        raise Misuse(f"--out {target}: there is no folder {target.parent}; name a file in a folder that is there")
    page = run_page(folder)
    target.write_text(page, encoding="utf-8")
    return target


def run_page(folder: Path) -> str:
    """The page of the run whose records lie in this folder."""
    records = read_records(Path(folder))
    model, data = part(records.run, "model", "name"), part(records.run, "data", "name")
    sections = [
        _learning(records),
        _loss(records),
        _pace(records),
        _events(records),
        _result(records),
        _settings(records),
    ]
    return render_page(
        " on ".join(str(name) for name in (model, data) if name) or "A training run",
        _verdict(records),
        _tiles(records),
        [section for section in sections if section],
        _footer(records),
        "run",
        "bad" if records.state == "failed" else "plain",
    )


# ------------------------------------------------------------------------------------------------ verdict


def _evaluations(records: Records) -> list[Record]:
    """One evaluation per epoch, in order; of an epoch that was evaluated twice, the later."""
    found = {number(event.get("epoch")): event for event in records.events if event.get("event") == "evaluated"}
    return [found[epoch] for epoch in sorted(epoch for epoch in found if drawable(epoch))]


def _last(records: Records, measure: str) -> float:
    """The last known value of a measure: from the result, or else from the last evaluation."""
    known = [number(evaluation.get(measure)) for evaluation in _evaluations(records) if measure in evaluation]
    if records.state == "finished" and measure in records.result:
        return number(records.result[measure])
    return known[-1] if known else float("nan")


def _world_sizes(records: Records) -> list[float]:
    """The world size of each session, where it changed."""
    sizes = [part(records.run, "plan", "workers")]
    sizes += [event.get("workers") for event in records.events if event.get("event") == "resumed"]
    known = [number(size) for size in sizes if drawable(number(size))]
    return [size for i, size in enumerate(known) if i == 0 or size != known[i - 1]]


def _team(records: Records) -> str:
    """The workers of the run, in words."""
    *before, last = map(written, _world_sizes(records))
    return ", then ".join([*before, counted(number(last), "worker")])


def _reached(records: Records) -> float:
    """The last step that is known to be done."""
    steps = [number(records.steps[-1]["step"])] if records.steps else []
    steps += [number(records.result.get("steps"))] if records.state == "finished" else []
    return max(filter(drawable, steps), default=0.0)


def _verdict(records: Records) -> str:
    planned = number(part(records.run, "plan", "steps"))
    where = f"step {written(_reached(records))}" + (f" of {written(planned)}" if drawable(planned) else "")
    if records.state == "failed":
        failures = [event.get("error") for event in records.events if event.get("event") == "failed"]
        return f"Failed after {where}: {failures[-1] or 'no reason was recorded'}"
    if records.state in ("stopped", "interrupted"):
        how = "Stopped as asked" if records.state == "stopped" else "Interrupted"
        return f"{how} after {where}. Go on with worldsize train --resume and the folder of this run."
    if records.state == "open":
        return f"Not finished: the records end at {where}. The run is still going, or it was stopped without a word."
    accuracy, loss = _last(records, "accuracy"), _last(records, "loss")
    team = f" on {_team(records)}" if _world_sizes(records) else ""
    if drawable(accuracy):
        ending = f"{fixed(accuracy, 3)} test accuracy"
    else:
        ending = f"a test loss of {written(loss, 4)}" if loss == loss else "no evaluation recorded"
    missing = "" if records.result else " Its result.json is missing."
    return f"Finished: {ending} after {counted(_reached(records), 'step')}{team}.{missing}"


def _tiles(records: Records) -> list[Tile]:
    when = "" if records.state == "finished" else "so far"
    tiles = []
    accuracy, loss = _last(records, "accuracy"), written(_last(records, "loss"), 3)
    tested = part(records.run, "data", "test_examples")
    note = f"on {counted(tested, 'example')}" if tested else ""
    if drawable(accuracy):
        note = f"loss {loss} {note}".strip()
        tiles.append(Tile(figure=fixed(accuracy, 3), label=f"test accuracy {when}".strip(), note=note))
    elif "loss" in records.result or _evaluations(records):
        tiles.append(Tile(figure=loss, label=f"test loss {when}".strip(), note=note))
    rate, note = _speed(records)
    if drawable(rate):
        tiles.append(Tile(figure=written(rate, 3), label="examples per second", note=note))
    if drawable(records.train_s):
        note = f"in {counted(records.sessions, 'session')}" if records.sessions > 1 else ""
        clock = "training time" if records.sessions == 1 and "train_s" in records.result else "wall-clock time"
        tiles.append(Tile(figure=duration(records.train_s), label=f"{clock} {when}".strip(), note=note))
    if sizes := _world_sizes(records):
        replicas = number(part(records.run, "plan", "replicas"))
        note = f"{counted(replicas, 'replica')}" if drawable(replicas) else ""
        tiles.append(Tile(figure=" → ".join(map(written, sizes[-3:])), label="world size", note=note))
    return tiles


def _speed(records: Records) -> tuple[float, str]:
    """Examples per second: of the whole run where it is known, or else the median of the steps."""
    if records.state == "finished" and drawable(number(records.result.get("examples_per_s"))):
        return number(
            records.result["examples_per_s"]
        ), "over the whole run" if records.sessions == 1 else "in the last session"
    rates = [rate for _, rate in _curve(records, "examples_per_s") if drawable(rate)]
    return (median(rates), "median of the steps") if rates else (float("nan"), "")


# ------------------------------------------------------------------------------------------------ sections


def _curve(records: Records, measure: str) -> list[Point]:
    return [(number(step["step"]), number(step.get(measure))) for step in records.steps if measure in step]


def _learning(records: Records) -> Section | None:
    """Accuracy and loss on the test examples, epoch by epoch."""
    evaluations = _evaluations(records)
    if not evaluations:
        return None
    charts = []
    for place, measure in enumerate(("accuracy", "loss")):
        points = [(number(entry["epoch"]), number(entry[measure])) for entry in evaluations if measure in entry]
        if points:
            charts.append(
                line_chart(
                    f"Test {measure}",
                    "One mark per epoch; every test example counts once.",
                    Axis(title="epoch", whole=True),
                    Axis(title=f"test {measure}"),
                    [Series(points=points, colour=place, markers=True)],
                )
            )
    return Section(title="What it learned", content=[pair(*charts)] if len(charts) > 1 else charts)


def _loss(records: Records) -> Section | None:
    """The training loss of every step, and its smoothed course."""
    points = _curve(records, "loss")
    if not points:
        return None
    window = smoothing_window(len(points))
    means, band = buckets(points)
    smooth = [point for point in buckets(smoothed(points, window))[0] if drawable(point[1])]
    raw = f"mean of {math.ceil(len(points) / len(means))} records, with range" if band else "as recorded"
    series = [Series(label=raw, points=means, band=band, colour=1, style="faint")]
    if window > 1:
        series.append(Series(label=f"mean of {window} records", points=smooth, colour=0))
    about = "Mean loss over the global batch, before the update."
    if band:
        about += " There are too many records to draw each: the band shows the lowest and highest of neighbours."
    holes = sum(not drawable(loss) for _, loss in points)
    text = ""
    if holes:
        text = f"{counted(holes, 'step')} had a loss that is infinite or not a number; the line is broken there. "
    if records.repeated:
        text += f"{counted(records.repeated, 'step')} were computed again after a resume and are shown once. "
    chart = line_chart("Training loss, step by step", about, STEP, Axis(title="training loss"), series)
    return Section(title="Training loss", text=text.strip(), content=[chart])


def _pace(records: Records) -> Section | None:
    """Learning rate and throughput of every step."""
    charts = [chart for chart in (_rate(records), _throughput(records)) if chart]
    return Section(title="Rate and speed", content=[pair(*charts)] if len(charts) > 1 else charts) if charts else None


def _rate(records: Records) -> Html | None:
    points = _curve(records, "rate")
    if not points:
        return None
    return line_chart(
        "Learning rate",
        "As recorded, step by step.",
        STEP,
        Axis(title="learning rate", zero=True),
        [Series(points=buckets(points)[0], colour=2)],
    )


def _throughput(records: Records) -> Html | None:
    points = _curve(records, "examples_per_s")
    rates = [rate for _, rate in points if drawable(rate)]
    if not rates:
        return None
    means, band = buckets(points)
    middle = median(rates)
    return line_chart(
        "Throughput",
        "Examples of all workers together. The first steps include warming up.",
        STEP,
        Axis(title="examples per second", zero=True),
        [Series(points=means, band=band, colour=0)],
        [Reference(value=middle, label=f"median {written(middle, 3)}")],
    )


def _events(records: Records) -> Section | None:
    """What happened, in order."""
    rows = [[duration(event.get("time_s")), str(event.get("event", "")), _told(event)] for event in records.events]
    notes = []
    if records.sessions > 1:
        notes.append(f"The run went on in {counted(records.sessions, 'session')}; times count on from one to the next.")
    if records.unreadable:
        notes.append(f"{counted(records.unreadable, 'line')} of the records could not be read and were left out.")
    if len(rows) > EVENTS_SHOWN:
        notes.append(f"The last {EVENTS_SHOWN} of {counted(len(rows), 'event')} are shown.")
    if not rows and not notes:
        return None
    table = [plain_table(Table(["after", "event", ""], rows[-EVENTS_SHOWN:]), "events")] if rows else []
    return Section(title="Events", text=" ".join(notes), content=table)


def _told(event: Record) -> str:
    """The other fields of an event, in the order they were written."""
    told = []
    for key, value in event.items():
        if key not in ("time_s", "event"):
            shown = written(value, 4) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
            told.append(shown if key in ("path", "error") else f"{key.replace('_', ' ')} {shown}")
    return ", ".join(told)


def _result(records: Records) -> Section | None:
    """The end of the run as numbers to compare, hashes among them."""
    if records.state != "finished" or not records.result:
        return None
    facts: dict[str, object] = {}
    session = ", last session" if records.sessions > 1 else ""
    for key, value in _news(records).items():
        name = _named(key) + (session if key in ("train_s", "examples_per_s", "wall_s") else "")
        facts[name] = element("code", value) if key.endswith("sha256") or key == "command" else _plainly(value)
    text = (
        "Another run of this experiment ends with the same hashes on any number of workers, "
        "given the same type of device and the same versions."
    )
    hashed = "weights_sha256" in records.result and part(records.run, "plan", "sync") == "exact"
    return Section(title="Result", text=text if hashed else "", content=[facts_table(facts)])


def _news(records: Records) -> Record:
    """What the result says that the plan did not."""
    plan, data = (part(records.run, name) or {} for name in ("plan", "data"))
    told = {**plan, **data, "data": part(data, "name"), "finished": True, "run": records.result.get("run")}
    return {key: value for key, value in records.result.items() if key not in told or told[key] != value}


def _named(key: str) -> str:
    units = {
        "train_s": "Training time (s)",
        "wall_s": "Wall-clock time (s)",
        "examples_per_s": "Examples per second",
    }
    words = key.replace("_sha256", " SHA-256").replace("_", " ")
    return units.get(key, words[:1].upper() + words[1:])


def _plainly(value: Any) -> str:
    """A setting as one would type it."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "not set"}[value]
    if isinstance(value, list):
        return ", ".join(map(_plainly, value)) or "none"
    return written(value, 6) if isinstance(value, int | float) else str(value)


def _settings(records: Records) -> Section | None:
    """Plan, data, and every flag."""
    tables: list[Html] = []
    for name in ("plan", "model", "data", "settings"):
        found = part(records.run, name)
        if isinstance(found, dict) and found:
            heading = "Flags" if name == "settings" else name.capitalize()
            label = (lambda key: "--" + key.replace("_", "-")) if name == "settings" else _named
            facts = {label(str(key)): _plainly(value) for key, value in found.items()}
            tables += [element("h3", heading), facts_table(facts)]
    return Section(title="Settings", content=tables) if tables else None


def _footer(records: Records) -> dict[str, str]:
    def listed(name: str) -> str:
        found = part(records.run, name)
        return ", ".join(f"{key} {_plainly(value)}" for key, value in found.items()) if isinstance(found, dict) else ""

    facts = {
        "Versions": listed("versions"),
        "Machine": listed("machine"),
        "Command": str(records.run.get("command") or ""),
        "Started": moment(records.run.get("started")),
    }
    return {name: fact for name, fact in facts.items() if fact}
