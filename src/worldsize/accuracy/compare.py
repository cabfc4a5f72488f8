"""`worldsize compare`: whether sets of runs are equally accurate, within a margin that the user states."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from worldsize.errors import Misuse
from worldsize.plan import statistics
from worldsize.plan.statistics import Difference
from worldsize.report.records import Records, read_records
from worldsize.report.values import number, part
from worldsize.train.settings import MAY_CHANGE, Run

UNITS = {"accuracy": (100.0, "points"), "loss": (1.0, "")}
BETTER = {"accuracy": 1, "loss": -1}


@dataclass(frozen=True, kw_only=True)
class RunSet:
    """Runs that differ in nothing but the seed."""

    name: str
    settings: dict[str, Any]
    data: dict[str, Any]
    runs: dict[int, Records] = field(repr=False)  # by seed

    def values(self, measure: str, seeds: Sequence[int]) -> list[float]:
        return [number(self.runs[seed].result.get(measure)) for seed in seeds]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of two sets."""

    margin: float
    measure: str = "accuracy"
    level: float = 0.05
    target: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.margin) and self.margin > 0):
            raise Misuse(f"a margin of {self.margin} cannot be; state what you would not mind, such as 0.005")
        if self.measure == "accuracy" and self.margin >= 1:
            raise Misuse(
                f"a margin of {self.margin} in accuracy would let anything pass; accuracy runs from 0 to 1, "
                "and half a percentage point is 0.005"
            )
        if not 0 < self.level < 0.5:
            raise Misuse(f"a level of {self.level} cannot be; 0.05 errs once in twenty times")
        if self.target is not None and not math.isfinite(self.target):
            raise Misuse(f"a target of {self.target} is never reached; name an accuracy, such as 0.85")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One comparison with the reference: what was found, and in a sentence what it means."""

    first: str
    second: str
    answer: str  # equivalent | better | worse | undecided
    difference: Difference
    p_equivalent: float  # after Holm, where several sets were compared
    interval: tuple[float, float]
    seeds_needed: int | None
    sentence: str
    to_target: dict[str, Any] | None


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_set(folder: Path) -> RunSet:
    """The runs in a folder, one folder each; refuses what would make a comparison say nothing."""
    if not folder.is_dir():
        raise Misuse(f"there is no folder {folder}; name a folder that holds a run's folder for each seed")
    places = [folder] if (folder / "run.json").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
    if not places:
        raise Misuse(f"{folder} holds no run; train into it with --out {folder}/seed-0, {folder}/seed-1 and so on")
    runs: dict[int, Records] = {}
    for place in places:
        records = read_records(place)
        _refuse_unfinished(place, records)
        seed = part(records.run, "settings", "seed")
        if not isinstance(seed, int):
            raise Misuse(f"{place} does not say its seed; name runs that `worldsize train` wrote")
        if seed in runs:
            raise Misuse(f"{folder} holds two runs with seed {seed}, which say nothing more than one; remove one")
        runs[seed] = records
    if len(runs) < 2:
        raise Misuse(f"{folder} holds one run; a comparison needs at least 2 seeds a side, and 5 to 10 to decide much")
    first, *others = runs.values()
    for place, other in zip(places[1:], others, strict=True):
        odd = _first_difference(_experiment(first), _experiment(other))
        if odd:
            raise Misuse(
                f"{place} differs from {places[0]} in {odd}, but the runs of a set may differ only in the seed; "
                "put them into folders of their own"
            )
    return RunSet(
        name=folder.name or str(folder),
        settings=_experiment(first),
        data=part(first.run, "data") or {},
        runs=dict(sorted(runs.items())),
    )


def _refuse_unfinished(place: Path, records: Records) -> None:
    if records.state == "failed":
        error = next(event.get("error") for event in reversed(records.events) if event.get("event") == "failed")
        raise Misuse(f"{place} failed ({error}); a set without it would look better than it is: name a set that ended")
    if not records.result or records.state != "finished":
        raise Misuse(f"{place} has not finished; go on with: worldsize train --resume {place}")


def _experiment(records: Records) -> dict[str, Any]:
    # A run of an older version lacks the settings that there were not yet: what they are unless set.
    settings = {each.name: each.default for each in fields(Run)} | (part(records.run, "settings") or {})
    return {name: value for name, value in settings.items() if name not in (*MAY_CHANGE, "seed")}


def _first_difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    for name in [*one, *other]:
        if one.get(name) != other.get(name):
            return f"{name} ({one.get(name)} and {other.get(name)})"
    return ""


# ---- comparing -------------------------------------------------------------------------------------------------------


def compare(reference: RunSet, others: Sequence[RunSet], question: Question) -> list[Verdict]:
    """Each of the other sets against the reference; with several, p-values are made stricter (Holm)."""
    differences = [_difference(reference, other, question) for other in others]
    strict = statistics.holm([difference.p_equivalent for difference in differences])
    return [
        _verdict(reference, other, difference, chance, question, len(others))
        for other, difference, chance in zip(others, differences, strict, strict=True)
    ]


def _difference(first: RunSet, second: RunSet, question: Question) -> Difference:
    for name in ("model", "data"):
        one, two = first.settings.get(name), second.settings.get(name)
        if one != two:
            raise Misuse(f"{first.name} trained {name} {one} and {second.name} {two}; compare runs of one {name}")
    if first.data.get("test_examples") != second.data.get("test_examples"):
        raise Misuse(f"{first.name} and {second.name} were tested on different numbers of examples")
    shared = [seed for seed in first.runs if seed in second.runs]
    alike = len(shared) == len(first.runs) == len(second.runs)
    sides = [side.values(question.measure, shared if alike else list(side.runs)) for side in (first, second)]
    for side, values in zip((first, second), sides, strict=True):
        if not all(map(math.isfinite, values)):
            raise Misuse(f"a run of {side.name} has no finite {question.measure}; it diverged, or measures none")
    one, two = sides
    return (statistics.paired if alike else statistics.unpaired)(one, two, question.margin)


def _verdict(
    first: RunSet, second: RunSet, difference: Difference, chance: float, question: Question, comparisons: int
) -> Verdict:
    level = question.level
    interval = difference.interval(1 - 2 * level)
    if chance < level:
        answer = "equivalent"
    elif min(1.0, difference.p_beyond * comparisons) < level:
        answer = "better" if difference.mean * BETTER[question.measure] > 0 else "worse"
    else:
        answer = "undecided"
    needed = None
    if answer == "undecided":
        needed = difference.seeds_needed(level / comparisons)
    return Verdict(
        first=first.name,
        second=second.name,
        answer=answer,
        difference=difference,
        p_equivalent=chance,
        interval=interval,
        seeds_needed=needed,
        sentence=_sentence(first, second, difference, answer, interval, needed, question, comparisons),
        to_target=_to_target(first, second, question.target) if question.target is not None else None,
    )


def _sentence(
    first: RunSet,
    second: RunSet,
    difference: Difference,
    answer: str,
    interval: tuple[float, float],
    needed: int | None,
    question: Question,
    comparisons: int,
) -> str:
    factor, unit = UNITS[question.measure]
    margin = f"{question.margin * factor:.3g} {unit}".rstrip()
    heads = {
        "equivalent": f"{second.name} is as good as {first.name} within {margin} of {question.measure}",
        "better": f"{second.name} is better than {first.name} by more than {margin} of {question.measure}",
        "worse": f"{second.name} is worse than {first.name} by more than {margin} of {question.measure}",
        "undecided": f"Whether {second.name} is as good as {first.name} within {margin} of {question.measure} is "
        "undecided",
    }
    low, high = (f"{bound * factor:+.3g}" for bound in interval)
    seeds = f"{difference.seeds} pairs of seeds" if difference.paired else f"at least {difference.seeds} seeds a side"
    strict = f", Holm over {comparisons}" if comparisons > 1 else ""
    text = (
        f"{heads[answer]}: difference {difference.mean * factor:+.3g} {unit} ".rstrip()
        + f" ({100 * (1 - 2 * question.level):g} % interval {low} to {high}; two one-sided t-tests at "
        f"{question.level:g}{strict}; {seeds})."
    )
    if answer == "undecided":
        text += (
            f" About {needed} seeds a side would decide, were the difference as it looks."
            if needed
            else " More seeds would not show equivalence, were the difference as it looks."
        )
    return text


# ---- how long it took ------------------------------------------------------------------------------------------------


def _to_target(first: RunSet, second: RunSet, target: float) -> dict[str, Any]:
    """Steps and seconds until an evaluation reached the target; a run that never did took longer than any other."""
    found: dict[str, Any] = {"target": target}
    for unit, key in (("steps", "step"), ("seconds", "time_s")):
        sides = [[_reach(records, target, key) for records in side.runs.values()] for side in (first, second)]
        found[unit] = {
            "medians": [_plain(median(side)) for side in sides],
            "reached": [sum(map(math.isfinite, side)) for side in sides],
            "runs": [len(side) for side in sides],
            "ratio": _ratio(*sides),
        }
    return found


def _reach(records: Records, target: float, key: str) -> float:
    """When the first evaluation was at the target; infinite where none was."""
    seen = (event for event in records.events if event.get("event") == "evaluated")
    return next((number(event.get(key)) for event in seen if number(event.get("accuracy")) >= target), math.inf)


def _ratio(first: list[float], second: list[float]) -> dict[str, Any] | None:
    """Second median over the first, with its 95 % interval; None where one side did not get there."""
    if not (math.isfinite(median(second)) and 0 < median(first) < math.inf):
        return None

    def drawn(picked: list[int]) -> float:
        one, two = (median(side[i % len(side)] for i in picked) for side in (first, second))
        return two / one if math.isfinite(one) else 0.0 if math.isfinite(two) else 1.0

    low, high = statistics.bootstrap(max(len(first), len(second)), drawn, 0.95)
    return {"median": median(second) / median(first), "low": low, "high": _plain(high)}


def _plain(value: float) -> float | None:
    """As JSON knows it."""
    return value if math.isfinite(value) else None


# ---- showing ---------------------------------------------------------------------------------------------------------


def as_json(verdict: Verdict) -> dict[str, Any]:
    difference = verdict.difference
    return {
        **{name: value for name, value in asdict(verdict).items() if name != "difference"},
        "mean_difference": difference.mean,
        "standard_error": difference.error,
        "effect": _plain(difference.effect),
        "margin": difference.margin,
        "paired": difference.paired,
        "seeds": difference.seeds,
    }


def show(console: Console, sets: Sequence[RunSet], verdicts: Sequence[Verdict], question: Question) -> None:
    """The sets, then a sentence for each comparison."""
    factor, _unit = UNITS[question.measure]
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("set", "runs", f"{question.measure}, mean", "lowest", "highest"):
        table.add_column(title, justify="left" if title == "set" else "right")
    for one in sets:
        values = [value * factor for value in one.values(question.measure, list(one.runs))]
        numbers = (sum(values) / len(values), min(values), max(values))
        table.add_row(one.name, str(len(values)), *(f"{value:.4g}" for value in numbers))
    console.print(table)
    for verdict in verdicts:
        console.print()
        console.print(verdict.sentence, soft_wrap=True)
        if verdict.to_target:
            for kind in ("steps", "seconds"):
                console.print(_target_line(verdict, kind), soft_wrap=True)


def _target_line(verdict: Verdict, kind: str) -> str:
    assert verdict.to_target is not None
    found = verdict.to_target[kind]
    sides = [
        f"{name} {'never' if middle is None else f'{middle:,.4g}'} ({there} of {runs} reached it)"
        for name, middle, there, runs in zip(
            (verdict.first, verdict.second), found["medians"], found["reached"], found["runs"], strict=True
        )
    ]
    ratio = found["ratio"]
    high = f"to {ratio['high']:.3g}" if ratio and ratio["high"] is not None else "or more"
    said = f"; ratio {ratio['median']:.3g} (95 % interval {ratio['low']:.3g} {high})" if ratio else ""
    return f"median {kind} to accuracy {verdict.to_target['target']:g}: {', '.join(sides)}{said}"
