"""The linear rule wants a warm-up, and a warm-up shows nothing unless it is completed."""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import POINT, accuracies, against, in_points, strips
from worldsize.report.markup import Html

EPOCHS, RATE = 8, 0.1
REFERENCE, NONE, DONE = "batch 32, rate 0.1", "rate 1.6, no warm-up", "rate 1.6, warm-up over 2 epochs"
UNDONE, SMALLER = "warm-up to 1.6 that is a quarter done at the end", "constant rate 0.2, no warm-up"
MARGIN = 0.005


def measure(bench: Bench) -> dict[str, Any]:
    """Final accuracy with each kind of warm-up, with every seed."""
    epochs = 2 if bench.quick else EPOCHS
    common = {"model": "cnn", "data": "fashion-14", "epochs": epochs, "evaluate_every": epochs, "reference_batch": 32}
    common |= {"batch_per_replica": 32, "lr": RATE, "warmup": 0.0}
    grown = common | {"replicas": 16, "lr_rule": "linear"}
    variants = {
        REFERENCE: common | {"replicas": 1},
        NONE: grown,
        DONE: grown | {"warmup": epochs / 4},
        # The first quarter of a warm-up four times as long as the run; its mean rate is that of the last variant, and
        # neither ends with a small one.
        UNDONE: grown | {"lr": RATE / 4, "warmup": float(epochs)},
        SMALLER: grown | {"lr": RATE / 8, "schedule": "constant"},
    }
    return {"accuracy": accuracies(bench.each(trials.training, variants))}


def judge(measured: dict[str, Any]) -> Finding:
    accuracy = measured["accuracy"]
    gain = against(accuracy, NONE, DONE, MARGIN)
    shown = against(accuracy, SMALLER, UNDONE, MARGIN)
    return Finding(
        holds=gain.interval(0.95)[0] > 0 and shown.interval(0.9)[1] < MARGIN,
        sentence=f"A completed warm-up changes the accuracy of the linear rule by {in_points(gain)}. One that is "
        f"never completed differs by {in_points(shown)} from a smaller rate without any: it shows the smaller rate, "
        "not the warm-up.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    about = "Batch 512 but for the first row; 8 epochs, cosine schedule. One dot per seed."
    return [strips("A warm-up helps once it is completed", about, measured["accuracy"], DONE)]


EXPERIMENT = Experiment(
    title="A warm-up helps if it is completed",
    question="Does the linear rule need a warm-up, and what does one show that the run never completes?",
    setting="Small conv net with batch norm on Fashion-MNIST at 14x14 pixels (10,000 images), 8 epochs, cosine "
    "schedule, momentum 0.9; rate 0.1 at batch 32, sixteen times both with the linear rule. Warm-up per step from "
    "zero.",
    prediction="At the scaled rate a completed warm-up raises the accuracy. A warm-up that ends at a quarter of the "
    "way is no better than a constant rate of the same mean.",
    source="Goyal et al., arXiv:1706.02677.",
    passes="The gain of the completed warm-up is above zero (95 % interval over seeds), and the unfinished one is "
    f"better than the smaller rate by less than {MARGIN / POINT:g} points (one-sided, at 0.05).",
    seeds=8,
    measure=measure,
    judge=judge,
    draw=draw,
)
