"""How many steps it takes to an accuracy, against the batch: from perfect scaling to none."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import curve
from worldsize.plan.fits import fit_scaling
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.markup import Html

TARGETS = (0.7, 0.75, 0.8)
# Batch: the rates tried, and the most steps a trial may take.
BATCHES = {
    8: ((0.0125, 0.025, 0.05, 0.1, 0.2), 6_000),
    32: ((0.025, 0.05, 0.1, 0.2, 0.4), 3_000),
    128: ((0.05, 0.1, 0.2, 0.4, 0.8), 1_500),
    512: ((0.1, 0.2, 0.4, 0.8, 1.6), 800),
    2048: ((0.1, 0.2, 0.4, 0.8, 1.6), 600),
    8192: ((0.1, 0.2, 0.4, 0.8, 1.6), 500),
}

QUICK = {64: ((0.1, 0.2), 200), 256: ((0.2, 0.4), 100), 1024: ((0.4,), 60)}


def at_best_rates(bench: Bench) -> dict[int, dict[str, Any]]:
    """For each batch its best rate, and the steps to each target with each seed."""
    batches = QUICK if bench.quick else BATCHES
    variants = {
        str(batch): {"targets": list(TARGETS), "batch": batch, "most_steps": most}
        for batch, (_, most) in batches.items()
    }
    rates: dict[str, Sequence[float]] = {str(batch): rates for batch, (rates, _) in batches.items()}
    best = bench.tune(trials.to_targets, variants, "rate", rates, _steps_to_last, seeds=1 if bench.quick else 2)
    found = bench.each(trials.to_targets, {name: task | {"rate": best[name]} for name, task in variants.items()})
    return {
        int(name): {
            "rate": best[name],
            "at_the_edge_of_its_rates": best[name] in (rates[name][0], rates[name][-1]),
            "steps": {str(target): [one["steps"][str(target)] for one in outcomes] for target in TARGETS},
        }
        for name, outcomes in found.items()
    }


def _steps_to_last(outcome: dict[str, Any]) -> float:
    steps = outcome["steps"][str(TARGETS[-1])]
    return math.inf if steps is None else float(steps)


def means(measured: dict[str, Any], target: float) -> dict[int, float]:
    """Of each batch whose every seed reached this target: the mean of its steps."""
    rows = {int(batch): row["steps"][str(target)] for batch, row in measured["batches"].items()}
    return {batch: sum(steps) / len(steps) for batch, steps in rows.items() if None not in steps}


def measure(bench: Bench) -> dict[str, Any]:
    return {"batches": at_best_rates(bench)}


def slopes(measured: dict[str, Any]) -> list[float]:
    """How fast the steps fall from each batch to the next, in powers of the batch; perfect scaling is -1."""
    points = sorted(means(measured, TARGETS[-1]).items())
    return [math.log(t / s) / math.log(c / b) for (b, s), (c, t) in pairwise(points)]


def judge(measured: dict[str, Any]) -> Finding:
    found, points = slopes(measured), sorted(means(measured, TARGETS[-1]).items())
    if len(found) < 2:
        return Finding(
            holds=False,
            sentence=f"{len(points)} batches reached {TARGETS[-1]:g} with every seed, and it takes 3 to see a bend.",
        )
    (small, most), (large, fewest) = points[0], points[-1]
    return Finding(
        holds=found[0] < -0.75 and abs(found[-1]) < 0.25 and all(slope < 0.25 for slope in found),
        sentence=f"To accuracy {TARGETS[-1]:g}, from batch {small} to {large} steps fall from {most:,.0f} to "
        f"{fewest:,.0f}, with slope {found[0]:.2f} among the smallest and {found[-1]:.2f} among the largest batches "
        f"(-1 is perfect scaling); examples read grow {large * fewest / small / most:,.0f} times.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    lines = []
    for i, target in enumerate(TARGETS):
        points = means(measured, target)
        rows = {batch: measured["batches"][str(batch)]["steps"][str(target)] for batch in points}
        lines.append(curve(f"accuracy {target:g}", rows, i))
    points = means(measured, TARGETS[-1])
    return [_steps_chart(lines, points), _examples_chart(measured), _rates_chart(measured)]


def _steps_chart(lines: list[Series], points: dict[int, float]) -> Html:
    more = []
    if len(points) > 1:
        law = fit_scaling(list(points), list(points.values()))
        label = f"law with critical batch {law.critical_batch:,.0f}"
        fitted = [(batch, law.steps(batch)) for batch in points]
        perfect = [(batch, points[min(points)] * min(points) / batch) for batch in points]
        more = [
            Series(label="perfect scaling", points=perfect, colour=3, style="dashed"),
            Series(label=label, points=fitted, colour=4, style="dashed"),
        ]
    return line_chart(
        "Steps to an accuracy, against the batch",
        "At each batch the best of five learning rates, chosen on seeds of their own; the mean and its 95 % "
        "interval. At first twice the batch takes half the steps, then less is won, then nothing.",
        Axis(title="global batch", log=True),
        Axis(title="optimizer steps", log=True),
        [*lines, *more],
    )


def _examples_chart(measured: dict[str, Any]) -> Html:
    lines = [
        Series(
            label=f"accuracy {target:g}",
            points=[(batch, batch * steps) for batch, steps in means(measured, target).items()],
            colour=i,
            markers=True,
        )
        for i, target in enumerate(TARGETS)
    ]
    return line_chart(
        "The price: examples read",
        "Steps times batch: what the machines have to compute.",
        Axis(title="global batch", log=True),
        Axis(title="examples", log=True),
        lines,
    )


def _rates_chart(measured: dict[str, Any]) -> Html:
    points = [(int(batch), row["rate"]) for batch, row in measured["batches"].items()]
    return line_chart(
        "The best rate grows with the batch, up to a point",
        "Of five rates each, by factors of two.",
        Axis(title="global batch", log=True),
        Axis(title="learning rate", log=True),
        [Series(points=points, markers=True)],
    )


EXPERIMENT = Experiment(
    title="A larger batch saves steps only up to a point",
    question="How many steps does it take to an accuracy, at the best rate for each batch?",
    setting="MLP with two hidden layers of 128 on Fashion-MNIST at 14x14 pixels (10,000 images), plain SGD at a "
    "constant rate, batches of 8 to 8,192; the rate of each batch is the best of five.",
    prediction="Three regimes: at small batches steps fall as one over the batch, then ever less, then not at all.",
    source="Shallue et al., arXiv:1811.03600.",
    passes="Slope of log steps against log batch below -0.75 between the two smallest batches, within 0.25 of zero "
    "between the two largest, and nowhere above 0.25; a batch counts if every seed reached the target.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
