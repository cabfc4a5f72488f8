"""Worlds of 64 and 256 workers on one: the very weights that real workers would have, and what the size does."""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import accuracies, curve
from worldsize.plan.statistics import mean_interval
from worldsize.report.axis import Axis
from worldsize.report.charts import line_chart
from worldsize.report.markup import Html
from worldsize.run import pool
from worldsize.train.loop import train_worker
from worldsize.train.settings import Run

WORLDS = (1, 4, 16, 64, 256)
CHECKED = (64, 256)
REAL_WORKERS = (2, 4)
RULES = {"none": "rate not adapted", "sqrt": "square-root rule", "linear": "linear rule"}
JUDGED_AT = "64"


def measure(bench: Bench) -> dict[str, Any]:
    """The accuracy at each size of the world, and for the largest ones the weights from real workers."""
    worlds, epochs = ((1, 64), 1) if bench.quick else (WORLDS, 8)
    common: dict[str, Any] = {
        "model": "mlp",
        "data": "fashion-14",
        "batch_per_replica": 8,
        "reference_batch": 8,
        "lr": 0.01,
    }
    common |= {"epochs": epochs, "evaluate_every": epochs, "warmup": epochs / 4}
    variants = {
        f"{rule} {replicas}": common | {"replicas": replicas, "lr_rule": rule} for rule in RULES for replicas in worlds
    }
    found = accuracies(bench.each(trials.training, variants))
    short = common | {"model": "cnn", "epochs": 1, "warmup": 0.0, "lr_rule": "linear", "device": "cpu"}
    return {
        "accuracy": {rule: {str(n): found[f"{rule} {n}"] for n in worlds} for rule in RULES},
        "weights": {
            str(replicas): {
                str(workers): pool.run_workers(
                    train_worker, Run(**short, replicas=replicas), None, None, pool.tell, workers=workers
                )[0]["weights_sha256"]
                for workers in (1, *REAL_WORKERS)
            }
            for replicas in (CHECKED[:1] if bench.quick else CHECKED)
        },
    }


def judge(measured: dict[str, Any]) -> Finding:
    same = all(len(set(row.values())) == 1 for row in measured["weights"].values())
    rows = measured["accuracy"]
    first = mean_interval(rows["none"]["1"])[0]
    lost = {
        rule: {size: 100 * (first - mean_interval(values)[0]) for size, values in row.items()}
        for rule, row in rows.items()
    }
    at = {rule: row[JUDGED_AT] for rule, row in lost.items()}
    largest = max(rows["none"], key=int)
    said = ", ".join(f"{lost[rule][largest]:.1f} {label}" for rule, label in RULES.items())
    worlds = " and ".join(measured["weights"])
    return Finding(
        holds=same and at["none"] > 1 and at["none"] > 2 * min(at["sqrt"], at["linear"]),
        sentence=f"Worlds of {worlds} replicas have {'the same' if same else 'other'} weights on 1, 2 and 4 real "
        f"workers. From 1 to {JUDGED_AT} replicas of 8 the accuracy falls by {at['none']:.1f} points if the rate is "
        f"not adapted, by {at['sqrt']:.1f} with the square-root rule and by {at['linear']:.1f} with the linear one. "
        f"At {largest}: {said}.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    lines = [
        curve(label, {int(n): values for n, values in measured["accuracy"][rule].items()}, i)
        for i, (rule, label) in enumerate(RULES.items())
    ]
    return [
        line_chart(
            "What the size of the world does to the accuracy",
            "Every replica reads 8 examples a step, so the global batch grows with the world; equal epochs, a "
            "quarter of them warm-up. Computed on one worker, replica by replica; mean over seeds and 95 % interval.",
            Axis(title="replicas", log=True),
            Axis(title="test accuracy"),
            lines,
        )
    ]


EXPERIMENT = Experiment(
    title="A world of 256 on one laptop",
    question="What would 256 workers have trained, and how much of the accuracy would they keep?",
    setting="1 to 256 replicas of 8 examples, emulated exactly on one worker: an MLP on Fashion-MNIST at 14x14 "
    "pixels, 8 epochs, rate 0.01 at batch 8. For 64 and 256 replicas an epoch of the conv net with batch norm, on 1, "
    "2 and 4 real workers.",
    prediction="The weights are the same bits for any number of workers. The accuracy falls with the world if the "
    "rate is not adapted; up to 64 replicas the better of the two rules keeps more than half of what is lost. At 256 "
    "the batch is far beyond the noise scale of this task, and every rule loses.",
    source="The exact emulation is this project's own; the rules are those of Goyal et al., arXiv:1706.02677, and of "
    "Krizhevsky, arXiv:1404.5997.",
    passes="One weights_sha256 for 1, 2 and 4 workers; at 64 replicas more than a point is lost without a rule, and "
    "less than half of that with the better one.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
