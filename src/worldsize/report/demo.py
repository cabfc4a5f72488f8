"""The page of the demo: one model on one worker and on several; the same bits, sooner."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from worldsize.report.axis import Axis
from worldsize.report.bars import Bar, Strip, bar_chart, strip_chart
from worldsize.report.charts import Gap, Series, line_chart
from worldsize.report.curves import Point, buckets
from worldsize.report.markup import Html, element
from worldsize.report.page import Section, Tile, command, commands, facts_table, render_page
from worldsize.report.paper import Reference, Table, plain_table
from worldsize.report.values import (
    counted,
    drawable,
    duration,
    entries,
    fixed,
    moment,
    number,
    part,
    percent,
    written,
)

Record = Mapping[str, Any]
ONE, MANY = 1, 0  # colours: orange for one worker, blue for many


@dataclass(frozen=True)
class _Demo:
    """The result with what every section asks for: the run of one worker, that of many, and whether they agree."""

    result: Record
    one: Record
    many: Record
    workers: int
    same: bool | None

    def setting(self, name: str) -> Any:
        return part(self.result, "experiment", name)

    @property
    def team(self) -> str:
        return counted(self.workers, "worker")

    @property
    def is_crowded(self) -> bool:
        """More workers than cores."""
        return self.workers > number(part(self.result, "machine", "cores"))


def demo_page(result: Record) -> str:
    """The page of `worldsize demo` from its result; parts that are missing are left out."""
    runs = entries(result.get("runs"))
    one: Record = next((run for run in runs if run.get("workers") == 1), {})
    many: Record = next((run for run in reversed(runs) if number(run.get("workers")) > 1), {})
    demo = _Demo(result, one, many, int(many.get("workers") or 2), _agreement(result, one, many))
    sections = [_accuracy(demo, runs), _bits(demo), _speed(demo), _naive(demo), _method(demo), _next(demo)]
    return render_page(
        f"One model, on 1 worker and on {demo.workers}",
        _verdict(demo),
        _tiles(demo),
        [section for section in sections if section],
        _footer(demo),
        "demo",
        "bad" if demo.same is False else "plain",
    )


def _agreement(result: Record, one: Record, many: Record) -> bool | None:
    """Whether both runs ended with the same bits: as measured, and never against the hashes; None if unknown."""
    pairs = [(one.get(key), many.get(key)) for key in ("weights_sha256", "buffers_sha256")]
    told = [a == b for a, b in pairs if a and b]
    if isinstance(result.get("same_bits"), bool):
        told.append(result["same_bits"])
    return all(told) if told else None


# ------------------------------------------------------------------------------------------------ verdict


def _verdict(demo: _Demo) -> str:
    speedup = number(part(demo.result, "speed", "speedup", "median"))
    cores = f" ({counted(part(demo.result, 'machine', 'cores'), 'core')} for them)" if demo.is_crowded else ""
    fast = f"{fixed(speedup, 2)} times as fast{cores}" if drawable(speedup) else ""
    if demo.same is None:
        return f"{demo.team} trained {fast}; the weights were not compared." if fast else "The demo did not finish."
    if not demo.same:
        return f"{demo.team} did not end with the weights of 1 worker" + (f", but trained {fast}." if fast else ".")
    return f"{demo.team} trained the same model as 1 worker, bit for bit" + (f", {fast}." if fast else ".")


def _tiles(demo: _Demo) -> list[Tile]:
    speed = part(demo.result, "speed") or {}
    rounds = len(entries(part(speed, "rounds")))
    over = f" over {counted(rounds, 'round')}" if rounds else ""
    tiles = []
    if drawable(number(part(speed, "speedup", "median"))):
        crowded = f"; {counted(part(demo.result, 'machine', 'cores'), 'core')} for {demo.team}"
        tiles.append(
            Tile(
                figure=f"{fixed(part(speed, 'speedup', 'median'), 2)}×",
                label=f"as fast on {demo.team}",
                note=_range(part(speed, "speedup"), over) + (crowded if demo.is_crowded else ""),
                tone="good" if number(part(speed, "speedup", "median")) > 1 else "plain",
            )
        )
    bits = {True: "Yes", False: "No", None: "Unknown"}[demo.same]
    note = "weights and batch-norm buffers after the last step" if demo.same is not None else "nothing to compare"
    tone = {True: "good", False: "bad", None: "plain"}[demo.same]
    tiles.append(Tile(figure=bits, label="same bits", note=note, tone=tone))  # type: ignore[arg-type]
    accuracy = number(demo.many.get("accuracy", demo.one.get("accuracy")))
    if drawable(accuracy):
        tested = demo.setting("test_examples")
        note = f"on {counted(tested, 'image')} never trained on" if tested else ""
        tiles.append(Tile(figure=fixed(accuracy, 3), label="test accuracy", note=note))
    if drawable(number(part(speed, "efficiency", "median"))):
        label = "of what this machine allows"
        note = _range(part(speed, "efficiency"), "", percent)
        tiles.append(Tile(figure=percent(part(speed, "efficiency", "median")), label=label, note=note))
    return tiles


def _range(spread: object, over: str, write: Any = lambda value: fixed(value, 2)) -> str:
    """The range of a measured ratio, in words."""
    low, high = number(part(spread, "low")), number(part(spread, "high"))
    return f"{write(low)} to {write(high)}{over}" if drawable(low) and drawable(high) else ""


# ------------------------------------------------------------------------------------------------ sections


def _curve(run: Record, x: str, y: str, records: str = "epochs") -> list[Point]:
    return [(number(entry.get(x)), number(entry.get(y))) for entry in entries(run.get(records))]


def _accuracy(demo: _Demo, runs: Sequence[Record]) -> Section | None:
    """Test accuracy against wall-clock time."""
    ends = {id(run): _curve(run, "time_s", "accuracy")[-1:] for run in runs}
    if not any(ends.values()):
        return None
    series = [
        Series(
            label=_name(run),
            points=_curve(run, "time_s", "accuracy"),
            colour=ONE if run is demo.one else MANY if run is demo.many else 2 + i,
            markers=True,
        )
        for i, run in enumerate(runs)
    ]
    gaps = []
    (one, many) = (ends.get(id(demo.one)), ends.get(id(demo.many)))
    if one and many and one[0][1] == many[0][1] and many[0][0] < one[0][0]:
        label = f"same accuracy, {duration(one[0][0] - many[0][0])} earlier"
        gaps.append(Gap(start=many[0][0], end=one[0][0], y=one[0][1], label=label))
    chart = line_chart(
        "Test accuracy against wall-clock time",
        "One mark per epoch, after its evaluation.",
        Axis(title="wall-clock time (s)", zero=True),
        Axis(title="test accuracy"),
        series,
        gaps=gaps,
    )
    same_end = one and many and one[0][1] == many[0][1]
    title = "The same accuracy, sooner" if gaps else "The same accuracy" if same_end else "Accuracy over time"
    return Section(title=title, text=_took(demo, runs), content=[chart])


def _took(demo: _Demo, runs: Sequence[Record]) -> str:
    """How long each run took and where it ended, in a sentence."""
    epochs = demo.setting("epochs")
    begin = f"Every run trained the same experiment for {counted(epochs, 'epoch')}. " if epochs else ""
    ends = "; ".join(
        f"{_name(run)} trained for {duration(run.get('train_s'))} and ended at {fixed(run.get('accuracy'), 4)}"
        for run in runs
    )
    return f"{begin}{ends[:1].upper()}{ends[1:]}."


def _bits(demo: _Demo) -> Section | None:
    """The loss of every step of both runs, one on top of the other, and their hashes."""
    one, many = (_curve(run, "step", "loss", "steps") for run in (demo.one, demo.many))
    if not (one or many or demo.one.get("weights_sha256")):
        return None
    content = []
    if one or many:
        series = [
            Series(label="one worker (wide line)", points=buckets(one, 400)[0], colour=ONE, style="halo"),
            Series(label=f"{demo.team} (thin line)", points=buckets(many, 400)[0], colour=MANY),
        ]
        content.append(
            line_chart(
                "Training loss, step by step",
                "Mean loss over the global batch, before the update. The thin line lies on the wide one.",
                Axis(title="optimizer step", whole=True, zero=True),
                Axis(title="training loss"),
                series,
                digits=9,
            )
        )
    content.append(_hashes(demo))
    title = {True: "The same bits", False: "Not the same bits", None: "The bits"}[demo.same]
    return Section(title=title, text=_losses_compared(one, many) + _end_compared(demo), content=content)


def _losses_compared(one: Sequence[Point], many: Sequence[Point]) -> str:
    """How many of the losses are equal, in a sentence."""
    first, second = dict(one), dict(many)
    both = [step for step in first if step in second]
    if not both:
        return ""
    # NaN is not equal to itself, but two runs that diverge in the same step did the same.
    equal = sum(first[step] == second[step] or (math.isnan(first[step]) and math.isnan(second[step])) for step in both)
    if equal == len(both):
        return f"The training losses of all {counted(len(both), 'recorded step')} are bit for bit the same. "
    return f"The training losses of {written(equal)} of {counted(len(both), 'recorded step')} are the same. "


def _end_compared(demo: _Demo) -> str:
    if demo.same is None:
        return "The weights at the end were not compared."
    if demo.same:
        return (
            "So are the weights and the buffers at the end: gradients are added along a fixed tree over the replicas, "
            "and its order does not depend on the number of workers."
        )
    return "The weights or the buffers at the end differ."


def _hashes(demo: _Demo) -> Html:
    rows: dict[str, object] = {}
    for key, name in (("weights_sha256", "Weights"), ("buffers_sha256", "Buffers")):
        for run in (demo.one, demo.many):
            if run.get(key):
                rows[f"{name}, {_name(run)}"] = element("code", run[key])
    return facts_table(rows)


def _speed(demo: _Demo) -> Section | None:
    """Examples per second of one worker, of many, of the ceiling; and every round."""
    bars = _speed_bars(demo)
    if not bars:
        return None
    rounds = entries(part(demo.result, "speed", "rounds"))
    cores = number(part(demo.result, "machine", "cores"))
    text = ""
    if rounds:
        text += (
            f"Measured in {counted(len(rounds), 'round')}, each of which times every way of working once; a round "
            "gives the median time of its steps. Bars show the median of the rounds, whiskers the lowest and highest. "
        )
    efficiency = number(part(demo.result, "speed", "efficiency", "median"))
    if drawable(efficiency):
        text += (
            f"The ceiling is {demo.team} that compute and exchange nothing; "
            f"training in step reaches {percent(efficiency)} of it. "
        )
    cost = number(part(demo.result, "speed", "replica_cost", "median"))
    if drawable(cost):
        shares = f"{written(demo.setting('replicas'))} replicas of {written(demo.setting('batch_per_replica'))}"
        text += f"Computing {shares} takes {fixed(cost, 2)} times as long as one whole batch on one worker. "
    if demo.is_crowded:
        text += f"This machine has {counted(cores, 'core')}, which {demo.team} share: no gain can be expected from it."
    charts = [
        bar_chart(
            "Training speed",
            "Longer is better.",
            Axis(title="examples per second"),
            bars,
            digits=3,
        )
    ]
    ratios = [(number(entry.get("one_s")) / (number(entry.get("many_s")) or math.nan)) for entry in rounds]
    if sum(map(drawable, ratios)) > 1:
        charts.append(
            strip_chart(
                "Speed-up, round by round",
                f"Step time of one worker over that of {demo.team}, in the same round. The tall mark is the median.",
                Axis(title="times as fast as one worker"),
                [Strip(label=demo.team, values=ratios, highlight=True)],
                [Reference(value=1.0, label="one worker")] if min(filter(drawable, ratios)) < 1.5 else [],
            )
        )
    return Section(title="Speed", text=text.strip(), content=charts)


def _speed_bars(demo: _Demo) -> list[Bar]:
    batch = number(demo.setting("global_batch"))
    rounds = entries(part(demo.result, "speed", "rounds"))
    ways = [
        ("joined_s", "One worker, one batch", f"no replicas: {written(batch)} at once", False),
        ("one_s", "One worker", "replicas one after the other", False),
        ("many_s", demo.team, "the replicas shared out", True),
        ("ceiling_s", f"Ceiling for {demo.team}", "computing, no exchange", False),
    ]
    bars = []
    for key, label, note, highlight in ways:
        rates = [batch / number(entry.get(key)) for entry in rounds if number(entry.get(key)) > 0]
        rates = [rate for rate in rates if drawable(rate)]
        if rates:
            ends = (min(rates), max(rates)) if len(rates) > 1 else (math.nan, math.nan)
            bars.append(
                Bar(label=label, value=median(rates), low=ends[0], high=ends[1], note=note, highlight=highlight)
            )
    if bars:
        return bars
    known = [run for run in (demo.one, demo.many) if drawable(number(run.get("examples_per_s")))]
    return [Bar(label=_name(run), value=number(run["examples_per_s"]), highlight=run is demo.many) for run in known]


def _naive(demo: _Demo) -> Section | None:
    """What becomes of the accuracy in ports that look right and are not."""
    ports = entries(demo.result.get("naive"))
    if not ports:
        return None
    series = [
        Series(label=_name(port), points=_curve(port, "epoch", "accuracy"), colour=_colour(i, port), markers=True)
        for i, port in enumerate(ports)
    ]
    target = number(demo.one.get("accuracy"))
    reference = [Reference(value=target, label=f"one worker: {fixed(target, 3)}")] if drawable(target) else []
    content = []
    if any(one.points for one in series):
        content.append(
            line_chart(
                "Test accuracy of each port, epoch by epoch",
                "One mark per epoch.",
                Axis(title="epoch", whole=True),
                Axis(title="test accuracy"),
                series,
                reference,
            )
        )
    bars = [Bar(label=_name(port), value=number(port.get("accuracy")), highlight=_is_ours(port)) for port in ports]
    content.append(
        bar_chart("Test accuracy at the end", "Bars begin at zero.", Axis(title="test accuracy"), bars, reference)
    )
    content.append(_ports_table(ports))
    text = (
        "A training program started on several workers runs without an error even when it no longer does what it did. "
        "Either every worker reads everything, and the extra workers buy nothing; or each reads its shard, the global "
        "batch grows, and the old learning rate no longer fits."
    )
    return Section(title="What a naive port would have given", text=text, content=content)


def _ports_table(ports: Sequence[Record]) -> Html:
    head = ["port", "workers", "accuracy", "examples read", "useful share", "what happens"]
    rows = [
        [
            _name(port),
            written(port.get("workers")) if port.get("workers") else "",
            fixed(port.get("accuracy"), 3),
            written(port.get("examples_read")) if port.get("examples_read") else "",
            percent(port.get("useful_share")) if port.get("useful_share") is not None else "",
            str(port.get("note") or ""),
        ]
        for port in ports
    ]
    return plain_table(Table(head, rows), "ports")


def _name(run: Record) -> str:
    return str(run.get("name") or "a run without a name")


def _is_ours(port: Record) -> bool:
    return _name(port).lower().startswith("worldsize")


def _colour(place: int, port: Record) -> int:
    """Blue stays with worldsize."""
    return MANY if _is_ours(port) else 1 + place % 5


def _method(demo: _Demo) -> Section:
    """How this was measured, as a table."""
    facts: dict[str, object] = {}
    if demo.setting("model"):
        facts["Model"] = f"{demo.setting('model')}, {counted(demo.setting('parameters'), 'parameter')}"
    if demo.setting("data"):
        found = f" ({demo.setting('source')})" if demo.setting("source") else ""
        facts["Data"] = f"{demo.setting('data')}{found}"
    if demo.setting("train_examples"):
        facts["Examples"] = (
            f"{written(demo.setting('train_examples'))} to train, {written(demo.setting('test_examples'))} to test"
        )
    if demo.setting("replicas"):
        facts["Global batch"] = (
            f"{written(demo.setting('global_batch'))} = {counted(demo.setting('replicas'), 'replica')} "
            f"of {written(demo.setting('batch_per_replica'))}"
        )
    if demo.setting("optimizer"):
        rule = f", rule {demo.setting('rule')}" if demo.setting("rule") else ""
        facts["Optimizer"] = (
            f"{demo.setting('optimizer')}, learning rate {written(demo.setting('learning_rate'))}{rule}"
        )
    for key, name in (("schedule", "Schedule"), ("sync", "Sync")):
        if demo.setting(key):
            facts[name] = str(demo.setting(key))
    for key, name in (("epochs", "Epochs"), ("seed", "Seed")):
        if demo.setting(key) is not None:
            facts[name] = written(demo.setting(key))
    for run in (demo.one, demo.many):
        if run:
            facts[f"Run: {_name(run)}"] = (
                f"{duration(run.get('train_s'))}, {written(run.get('examples_per_s'))} examples/s, "
                f"accuracy {fixed(run.get('accuracy'), 4)}, loss {fixed(run.get('loss'), 4)}"
            )
    facts["Speed"] = "ratios within one round; their median and range over the rounds"
    facts["Same bits"] = "SHA-256 over names, dtypes, shapes and bytes of all parameters; the buffers likewise"
    return Section(title="How this was measured", content=[facts_table(facts)])


def _next(demo: _Demo) -> Section:
    flags = [
        f"--{key.replace('_', '-')} {demo.setting(key)}"
        for key in ("model", "data", "epochs", "replicas", "batch_per_replica")
        if demo.setting(key) is not None
    ]
    shares = number(demo.setting("replicas"))
    another = next((count for count in (4, 3, 2) if count != demo.workers and count <= shares), 1)
    steps = {
        "Train it yourself; the hash of the weights is the same for any number of workers:": command(
            "worldsize train", [*flags, f"--workers {another}"]
        ),
        "Start your own script on several workers:": f"worldsize run --workers {demo.workers} train.py",
        "Ask whether a machine is ready for several workers:": "worldsize doctor",
    }
    return Section(title="What to do next", content=[commands(steps)])


def _footer(demo: _Demo) -> dict[str, str]:
    result, machine = demo.result, demo.result.get("machine") or {}
    versions = [
        f"{name} {version}"
        for name, version in (
            ("worldsize", result.get("worldsize") or part(machine, "worldsize")),
            ("torch", part(machine, "torch")),
            ("Python", part(machine, "python")),
        )
        if version
    ]
    cores = counted(part(machine, "cores"), "core") if part(machine, "cores") else ""
    hardware = [
        str(fact) for fact in (part(machine, "cpu"), cores, part(machine, "system"), part(machine, "device")) if fact
    ]
    facts = {
        "Versions": ", ".join(versions),
        "Machine": ", ".join(hardware),
        "Command": str(result.get("command") or ""),
        "Started": moment(result.get("started")),
    }
    return {name: fact for name, fact in facts.items() if fact}
