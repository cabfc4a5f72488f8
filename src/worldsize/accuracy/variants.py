"""Variants of one training, side by side: what each reached with every seed, and whether two of them are equal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worldsize.accuracy.compare import Question, RunSet, Verdict, compare
from worldsize.accuracy.trials import accuracy_of
from worldsize.plan.statistics import Difference, mean_interval, paired
from worldsize.report.axis import Axis
from worldsize.report.bars import Strip, strip_chart
from worldsize.report.charts import Series
from worldsize.report.markup import Html
from worldsize.report.records import Records

POINT = 0.01  # of accuracy


def accuracies(found: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[float]]:
    """The final accuracy of each variant with each seed; one that diverged is as good as guessing."""
    return {name: [accuracy_of(outcome) for outcome in outcomes] for name, outcomes in found.items()}


def against(accuracy: Mapping[str, Sequence[float]], reference: str, other: str, margin: float) -> Difference:
    """The other variant's accuracy minus the reference's, seed by seed."""
    return paired(accuracy[reference], accuracy[other], margin)


def in_points(difference: Difference, chance: float = 0.95) -> str:
    """A difference of accuracies with its interval.

    >>> in_points(paired([0.8, 0.82, 0.81], [0.79, 0.8, 0.8], 0.01))
    '-1.33 points (-2.77 to +0.10)'
    """
    low, high = difference.interval(chance)
    return f"{difference.mean / POINT:+.2f} points ({low / POINT:+.2f} to {high / POINT:+.2f})"


def times(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """How many times as large the second is, seed by seed: the geometric mean, and its 95 % interval.

    >>> [round(number, 3) for number in times([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])]
    [2.0, 2.0, 2.0]
    """
    sides = [[math.log(max(value, 1e-9)) for value in side] for side in (first, second)]
    difference = paired(sides[0], sides[1], 1.0)
    low, high = difference.interval(0.95)
    return math.exp(difference.mean), math.exp(low), math.exp(high)


def strips(title: str, about: str, accuracy: Mapping[str, Sequence[float]], reference: str) -> Html:
    """One row of dots for each variant, one dot for each seed."""
    rows = []
    for name, values in accuracy.items():
        mean, low, high = mean_interval(values)
        note = f"mean {100 * mean:.2f} ({100 * low:.2f} to {100 * high:.2f})"
        rows.append(Strip(label=name, values=[100 * v for v in values], note=note, highlight=name == reference))
    return strip_chart(title, about, Axis(title="test accuracy, %"), rows, digits=4)


def curve(label: str, rows: Mapping[int, Sequence[float]] | Mapping[float, Sequence[float]], colour: int = 0) -> Series:
    """The mean over seeds at each place, with a band for its 95 % interval."""
    found = {at: mean_interval(values) for at, values in rows.items()}
    return Series(
        label=label,
        points=[(at, mean) for at, (mean, _, _) in found.items()],
        # A logarithmic axis has no place for an interval that reaches below zero.
        band=[(at, max(low, mean / 100), high) for at, (mean, low, high) in found.items()],
        colour=colour,
        markers=True,
    )


def verdicts(accuracy: Mapping[str, Sequence[float]], reference: str, margin: float) -> list[Verdict]:
    """What `worldsize compare` says of every other variant against the reference."""
    sets = {name: _as_set(name, values) for name, values in accuracy.items()}
    others = [one for name, one in sets.items() if name != reference]
    return compare(sets[reference], others, Question(margin=margin))


def capital(sentence: str) -> str:
    """A sentence that begins with a capital letter.

    >>> capital("batch 256 is as good as LAMB")
    'Batch 256 is as good as LAMB'
    """
    return sentence[:1].upper() + sentence[1:]


def _as_set(name: str, values: Sequence[float]) -> RunSet:
    none: dict[str, Any] = {"run": {}, "steps": [], "events": [], "sessions": 1, "repeated": 0, "unreadable": 0}
    runs = {seed: Records(result={"accuracy": value}, **none) for seed, value in enumerate(values)}
    return RunSet(name=name, settings={}, data={}, runs=runs)
