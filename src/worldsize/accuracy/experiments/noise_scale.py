"""Does the gradient noise scale, which is nearly free to measure, tell the critical batch, which is not?"""

import math
from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.experiments import steps_to_target
from worldsize.plan.fits import fit_scaling
from worldsize.plan.statistics import jackknife, mean_interval
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.markup import Html

TARGETS = steps_to_target.TARGETS
WITHIN = 4.0
MEASURED_AT = (128, 512)


def measure(bench: Bench) -> dict[str, Any]:
    """Steps to targets at every batch, for the critical batch; the noise scale on the way, at two batches."""
    batches = steps_to_target.at_best_rates(bench)
    at = (256,) if bench.quick else MEASURED_AT
    most = {
        batch: steps_to_target.QUICK[batch][1] if bench.quick else steps_to_target.BATCHES[batch][1] for batch in at
    }
    tasks = {
        str(batch): {
            "targets": list(TARGETS),
            "batch": batch,
            "rate": batches[batch]["rate"],
            "most_steps": most[batch],
            "replicas": 8,
        }
        for batch in at
    }
    found = bench.each(trials.to_targets, tasks)
    noise = {
        str(target): [
            one["noise_scale"][str(target)]
            for outcomes in found.values()
            for one in outcomes
            if one["noise_scale"][str(target)] is not None
        ]
        for target in TARGETS
    }
    return {"batches": batches, "noise_scale": noise}


def critical(measured: dict[str, Any], target: float) -> tuple[float, float, float] | None:
    """The critical batch for this target, from a fit over all batches, and its 95 % interval over seeds."""
    reached = steps_to_target.means(measured, target)
    if len(reached) < 3:
        return None
    rows = [measured["batches"][str(batch)]["steps"][str(target)] for batch in reached]

    def fitted(picked: list[int]) -> float:
        steps = [sum(row[i] for i in picked) / len(picked) for row in rows]
        return fit_scaling(list(reached), steps).critical_batch

    seeds = list(range(len(rows[0])))
    low, high = jackknife(len(seeds), lambda picked: math.log(fitted(picked)))
    return fitted(seeds), math.exp(low), math.exp(high)


def noise(measured: dict[str, Any], target: float) -> tuple[float, float, float] | None:
    """The noise scale on the way to this target: its geometric mean over seeds, and the 95 % interval of that."""
    logs = [math.log(value) for value in measured["noise_scale"][str(target)] if value is not None and value > 0]
    if not logs:
        return None
    mean, low, high = (math.exp(value) for value in mean_interval(logs))
    return mean, low, high


def judge(measured: dict[str, Any]) -> Finding:
    pairs = [(target, noise(measured, target), critical(measured, target)) for target in TARGETS]
    known = [(target, one, two) for target, one, two in pairs if one is not None and two is not None]
    if len(known) < 2:
        return Finding(holds=False, sentence="Too few targets were reached to compare noise scale and critical batch.")
    ratios = [one[0] / two[0] for _, one, two in known]
    rise = known[-1][1][0] > known[0][1][0] and known[-1][2][0] > known[0][2][0]
    said = "; ".join(
        f"to {target:g} noise scale {one[0]:,.0f}, critical batch {two[0]:,.0f}" for target, one, two in known
    )
    return Finding(
        holds=rise and all(1 / WITHIN < ratio < WITHIN for ratio in ratios),
        sentence=f"On the way {said}: {min(ratios):.2f} to {max(ratios):.2f} of each other, and "
        f"{'both grow' if rise else 'they do not both grow'} as the model gets better.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    series = []
    for i, (label, found) in enumerate(
        (("noise scale, measured on the way", noise), ("critical batch, fitted", critical))
    ):
        rows = [(target, found(measured, target)) for target in TARGETS]
        known = [(target, row) for target, row in rows if row is not None]
        series.append(
            Series(
                label=label,
                points=[(target, row[0]) for target, row in known],
                band=[(target, row[1], row[2]) for target, row in known],
                colour=i,
                markers=True,
            )
        )
    return [
        line_chart(
            "The noise scale foretells where larger batches stop to pay",
            "The noise scale comes from gradients that are there anyway; the critical batch takes a training for "
            "each batch, rate and seed. Bands: 95 % intervals over seeds.",
            Axis(title="test accuracy aimed at"),
            Axis(title="examples", log=True),
            series,
        )
    ]


EXPERIMENT = Experiment(
    title="The noise scale tells the critical batch",
    question="Does the gradient noise scale agree with the batch at which larger ones stop to pay?",
    setting=f"{steps_to_target.EXPERIMENT.setting} The noise scale is measured at batches of 128 and 512, in 8 "
    "replicas, between one target accuracy and the next.",
    prediction="Both are of one order, and both grow as the loss falls.",
    source="McCandlish et al., arXiv:1812.06162.",
    passes=f"Their ratio is between {1 / WITHIN:g} and {WITHIN:g} for every target, and both are larger for the last "
    "target than for the first.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
