"""Grow the batch where a schedule would cut the rate: as accurate, with fewer updates."""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import POINT, accuracies, capital, strips, verdicts
from worldsize.report.markup import Html

EPOCHS, RATE, MARGIN = 8, 0.05, 0.005
CUT, GROWN, CONSTANT = "a rate cut twice by ten", "a batch that grows", "a constant rate"
SCHEDULES = {CUT: "step", GROWN: "grow", CONSTANT: "constant"}


def measure(bench: Bench) -> dict[str, Any]:
    """The accuracy and the updates of each schedule, with every seed."""
    epochs = 4 if bench.quick else EPOCHS
    common = {"model": "cnn", "data": "fashion-14", "epochs": epochs, "evaluate_every": epochs, "lr": RATE}
    common |= {"replicas": 4, "batch_per_replica": 8, "reference_batch": 32, "warmup": 0.5}
    found = bench.each(trials.training, {name: common | {"schedule": kind} for name, kind in SCHEDULES.items()})
    updates = {name: max(outcome.get("steps", 0) for outcome in outcomes) for name, outcomes in found.items()}
    return {"accuracy": accuracies(found), "updates": updates}


def judge(measured: dict[str, Any]) -> Finding:
    grown, constant = verdicts(measured["accuracy"], CUT, MARGIN)
    updates = measured["updates"]
    saved = updates[CUT] / max(updates[GROWN], 1)
    return Finding(
        holds=grown.answer == "equivalent" and constant.difference.interval(0.95)[1] < 0 and saved > 1.7,
        sentence=f"Growing the batch takes {updates[GROWN]:,} updates instead of {updates[CUT]:,}, {saved:.1f} times "
        f"fewer. {capital(grown.sentence)} {capital(constant.sentence)}",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    updates = measured["updates"]
    rows = {f"{name}: {updates[name]:,} updates": values for name, values in measured["accuracy"].items()}
    about = "8 epochs; the change comes after a half and after three quarters of them. One dot per seed."
    return [strips("The batch can grow instead of the rate being cut", about, rows, next(iter(rows)))]


EXPERIMENT = Experiment(
    title="Grow the batch instead of cutting the rate",
    question="Is a batch that grows as good as a rate that is cut, with fewer updates?",
    setting="Small conv net with batch norm on Fashion-MNIST at 14x14 pixels (10,000 images), 8 epochs, batch 32 in "
    "4 replicas, momentum 0.9. After a half and after three quarters the rate is divided by ten, or the batch grows "
    "by as much, up to a tenth of the data (then the rate is cut for what is left). The cuts count from the end of "
    "the warm-up, half an epoch; the growth waits for whole epochs.",
    prediction="Equal accuracy with about half of the updates.",
    source="Smith et al., arXiv:1711.00489.",
    passes=f"`compare` calls them equivalent within {MARGIN / POINT:g} points; a constant rate is behind (95 % "
    "interval); at least 1.7 times fewer updates.",
    seeds=8,
    measure=measure,
    judge=judge,
    draw=draw,
)
