"""The linear neuron: what curvature does to gradient descent, and what the batch does to its noise."""

import math
from typing import Any

import numpy as np

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.plan.statistics import mean_interval
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.markup import Html
from worldsize.report.paper import Reference

RATE = 0.001  # far below the largest stable one, so that the noise has a simple formula
BATCHES = (1, 2, 8, 32)
STOPS_AT = 0.001  # the usual early stop: the loss fell by less than this share in an epoch


def problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The 100 points of data set `line`: inputs with a column of ones, answers, and the best slope and intercept."""
    x, y = (part.double().numpy() for part in trials.load("line").train.tensors)
    inputs = np.concatenate([x, np.ones_like(x)], axis=1)
    best, *_ = np.linalg.lstsq(inputs, y, rcond=None)
    return inputs, y[:, 0], best[:, 0]


def hessian() -> np.ndarray:
    inputs, _, _ = problem()
    return 2 * inputs.T @ inputs / len(inputs)


def descend(rate: float, batch: int, steps: int, seed: int = 0) -> dict[str, Any]:
    """Descend from zero, on batches drawn anew each step (0: on all points); the loss above the best one."""
    inputs, answers, best = problem()
    curvature, dice = hessian(), np.random.default_rng(seed)
    weights = np.zeros(2)
    curve: list[list[float]] = []
    late: list[float] = []
    stops = set(trials.looks(steps))
    for step in range(1, steps + 1):
        drawn = dice.integers(len(inputs), size=batch) if batch else slice(None)
        x, y = inputs[drawn], answers[drawn]
        weights = weights - rate * 2 * x.T @ (x @ weights - y) / len(x)
        gap = weights - best
        excess = float(gap @ curvature @ gap / 2)
        if not excess < 1e12:
            return {"diverged": True, "curve": curve, "floor": math.inf, "intercept_off": math.inf}
        if step in stops:
            curve.append([step, excess])
        if step > steps / 2:
            late.append(excess)
    return {"diverged": False, "curve": curve, "floor": float(np.mean(late)), "intercept_off": float(abs(gap[1]))}


def largest_stable_rate(steps: int) -> float:
    """By halving an interval: the rate above which full-batch descent ends farther away than it began."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        result = descend(middle, 0, steps)
        grew = result["diverged"] or result["curve"][-1][1] > result["curve"][0][1]
        low, high = (low, middle) if grew else (middle, high)
    return low


def stops_early() -> dict[str, float]:
    """Full-batch descent until its loss falls by less than a thousandth a step: when that is, and what is missing."""
    inputs, answers, best = problem()
    weights, before, step = np.zeros(2), math.inf, 0
    while True:
        loss = float(np.mean((inputs @ weights - answers) ** 2))
        if before - loss < STOPS_AT * before:
            return {"step": step, "intercept": float(weights[1]), "best_intercept": float(best[1])}
        weights, before, step = (
            weights - RATE * 2 * inputs.T @ (inputs @ weights - answers) / len(inputs),
            loss,
            step + 1,
        )


def measure(bench: Bench) -> dict[str, Any]:
    """Eigenvalues, the largest stable rate, descent in the slow direction, the noise floor of each batch."""
    low, high = (float(value) for value in np.linalg.eigvalsh(hessian()))
    inputs, answers, best = problem()
    noise = float(np.mean((inputs @ best - answers) ** 2))
    steps = 4_000 if bench.quick else 40_000
    whole = descend(RATE, 0, steps)
    found = bench.each(descend, {str(batch): {"rate": RATE, "batch": batch, "steps": steps} for batch in BATCHES})
    return {
        "eigenvalues": [low, high],
        "largest_stable_rate": largest_stable_rate(2_000),
        "stop": stops_early(),
        "whole": whole["curve"],
        "curves": {name: outcomes[0]["curve"] for name, outcomes in found.items()},
        "floors": {name: mean_interval([one["floor"] for one in outcomes]) for name, outcomes in found.items()},
        # Gradient noise at the best point is 2 s^2 H / batch, so that a small rate r keeps the loss r s^2 tr(H) / 2
        # batch above the best one.
        "predicted_floors": {str(batch): RATE * noise * (low + high) / (2 * batch) for batch in BATCHES},
    }


def judge(measured: dict[str, Any]) -> Finding:
    low, high = measured["eigenvalues"]
    stable, stop = measured["largest_stable_rate"], measured["stop"]
    ratios = [measured["floors"][name][0] / wanted for name, wanted in measured["predicted_floors"].items()]
    missing = abs(stop["intercept"] - stop["best_intercept"])
    holds = abs(stable * high / 2 - 1) < 0.02 and missing > 0.5 and all(0.75 < ratio < 1.34 for ratio in ratios)
    return Finding(
        holds=holds,
        sentence=f"With eigenvalues {low:.3g} and {high:.3g} the largest stable rate is {stable:.4g}, and 2 over the "
        f"larger one is {2 / high:.4g}. The usual early stop ends at step {stop['step']} with the intercept off by "
        f"{missing:.2g}. The noise floor is {min(ratios):.2f} to {max(ratios):.2f} of what theory says, for batches "
        f"of 1 to {max(BATCHES)}.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    floors, predicted = measured["floors"], measured["predicted_floors"]
    curves = [
        Series(label=f"batch {name}", points=[tuple(point) for point in curve], colour=i, style="faint")
        for i, (name, curve) in enumerate(measured["curves"].items())
    ]
    whole = Series(label="all 100 points", points=[tuple(point) for point in measured["whole"]], colour=5)
    return [
        line_chart(
            "The batch sets the noise floor, the curvature sets the pace",
            "First the steep direction is done, within a few hundred steps; the flat one takes thousands. A small "
            "batch then stays above the best loss for ever, at a height that falls with the batch.",
            Axis(title="optimizer step", log=True),
            Axis(title="loss above the best one", log=True),
            [*curves, whole],
            [Reference(value=value, label=f"theory, batch {name}") for name, value in predicted.items()][:1],
        ),
        line_chart(
            "The noise floor falls as one over the batch",
            "The mean loss above the best one over the second half of the run, with its 95 % interval over seeds.",
            Axis(title="batch", log=True),
            Axis(title="loss above the best one", log=True),
            [
                Series(
                    label="measured",
                    points=[(int(name), mean) for name, (mean, _, _) in floors.items()],
                    band=[(int(name), low, high) for name, (_, low, high) in floors.items()],
                    markers=True,
                ),
                Series(
                    label="theory",
                    points=[(int(name), value) for name, value in predicted.items()],
                    colour=1,
                    style="dashed",
                ),
            ],
        ),
    ]


EXPERIMENT = Experiment(
    title="Curvature sets the pace, the batch sets the noise",
    question="How do conditioning and batch size shape descent on a model of two parameters?",
    setting="One linear unit on 100 noisy points of a line (data set `line`), mean squared error, from zero, rate "
    f"{RATE}; batches of {', '.join(map(str, BATCHES))} drawn anew at each step, and all points.",
    prediction="Full-batch descent is stable below 2 over the largest eigenvalue; an early stop on the loss ends "
    "long before the flat direction is done; the noise floor is rate x noise x trace of the Hessian / (2 x batch).",
    source="Textbook theory of gradient descent on a quadratic; the stationary noise as in Mandt et al., "
    "arXiv:1704.04289.",
    passes="Largest stable rate within 2 %, noise floors within a third of theory for every batch, and the early "
    "stop misses the intercept by more than 0.5.",
    seeds=10,
    measure=measure,
    judge=judge,
    draw=draw,
)
