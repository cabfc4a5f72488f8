"""Is it momentum that helps, or the larger step that comes with it?"""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.plan.statistics import mean_interval
from worldsize.report.axis import Axis
from worldsize.report.bars import Bar, bar_chart
from worldsize.report.markup import Html

TARGET, RATE = 0.8, 0.02
PLAIN, CONFOUNDED, FAIR = "no momentum, rate 0.02", "momentum 0.9, rate 0.02", "no momentum, rate 0.2"
VARIANTS = {
    PLAIN: {"momentum": 0.0, "rate": RATE},
    CONFOUNDED: {"momentum": 0.9, "rate": RATE},
    FAIR: {"momentum": 0.0, "rate": 10 * RATE},
    "momentum 0.5, rate 0.1": {"momentum": 0.5, "rate": 5 * RATE},
}


def measure(bench: Bench) -> dict[str, Any]:
    """Steps to the target with and without momentum, at one rate and at one effective step."""
    common = {"targets": [0.6 if bench.quick else TARGET], "batch": 64, "most_steps": 200 if bench.quick else 8_000}
    found = bench.each(trials.to_targets, {name: common | variant for name, variant in VARIANTS.items()})
    return {
        "target": common["targets"],
        "steps": {name: [next(iter(one["steps"].values())) for one in outcomes] for name, outcomes in found.items()},
    }


def judge(measured: dict[str, Any]) -> Finding:
    steps = measured["steps"]
    if any(None in row for row in steps.values()):
        return Finding(holds=False, sentence="Not every seed of every variant reached the target.")
    means = {name: sum(row) / len(row) for name, row in steps.items()}
    seeming, real = means[PLAIN] / means[CONFOUNDED], means[FAIR] / means[CONFOUNDED]
    return Finding(
        holds=seeming > 3 and 0.75 < real < 1.34,
        sentence=f"At one rate momentum 0.9 seems {seeming:.1f} times as fast; against ten times the rate without "
        f"momentum, which is the same effective step, it is {real:.2f} times as fast.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    bars = []
    for name, row in measured["steps"].items():
        reached = [steps for steps in row if steps is not None]
        mean, low, high = mean_interval(reached) if reached else (float("nan"),) * 3
        note = "effective step 0.02" if name == PLAIN else "effective step 0.2"
        bars.append(Bar(label=name, value=mean, low=low, high=high, note=note, highlight=name == CONFOUNDED))
    return [
        bar_chart(
            "Equal effective steps take equally many of them",
            "The effective step is rate / (1 - momentum). Mean and 95 % interval over seeds.",
            Axis(title=f"optimizer steps to accuracy {measured['target'][0]:g}"),
            bars,
        )
    ]


EXPERIMENT = Experiment(
    title="Momentum 0.9 is ten times the rate",
    question="Does momentum speed training up, or does the larger step that it brings?",
    setting="MLP with two hidden layers of 128 on Fashion-MNIST at 14x14 pixels (10,000 images), global batch 64, "
    "constant rate; momentum 0, 0.5 and 0.9, at one rate and at one effective step, rate / (1 - momentum).",
    prediction="At this small batch the speed is that of the effective step: adding momentum at an unchanged rate "
    "only makes the step ten times larger.",
    source="Shallue et al., arXiv:1811.03600: momentum is no faster at small batches, and is at large ones.",
    passes="Momentum 0.9 is more than 3 times as fast at one rate, and 0.75 to 1.33 times as fast at one effective "
    "step.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
