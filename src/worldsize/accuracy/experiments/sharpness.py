"""Do large batches end in sharper minima, and generalise worse, at an equal training loss?"""

from typing import Any

import torch

from worldsize.accuracy import curvature, trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import times
from worldsize.plan.statistics import mean_interval, paired
from worldsize.report.axis import Axis
from worldsize.report.bars import Bar, bar_chart
from worldsize.report.markup import Html
from worldsize.train import models
from worldsize.train.job import join

SMALL, LARGE, ADAPTED = "batch 32, rate 0.1", "batch 2048, rate 0.1", "batch 2048, rate 0.8"
VARIANTS = {SMALL: (32, 0.1), LARGE: (2048, 0.1), ADAPTED: (2048, 0.8)}
LOSS = 0.3  # of training, at which all stop
EXAMPLES = 1_000  # on which the curvature is measured
MEASURES = {"eigenvalue": "largest eigenvalue of the Hessian", "sharpness": "Keskar's sharpness", "gap": "gap, points"}


def descend(*, batch: int, rate: float, loss: float, seed: int, most_steps: int = 6_000) -> dict[str, Any]:
    """Train with plain SGD down to a training loss; how sharp the place is, and how much worse the test set does."""
    sets = trials.load("fashion-14")
    torch.manual_seed(seed)
    net = models.build("mlp", sets)
    mean_loss, measures = models.loss_of(sets, net), models.measures_of(sets, net)
    few = trials.subset(sets.train, torch.arange(2_000))
    optimizer = torch.optim.SGD(net.parameters(), rate)
    with join(net, optimizer, replicas=1, batch_per_replica=batch, seed=seed) as job:
        for _ in trials.walk(job, sets.train, mean_loss, list(range(20, most_steps + 1, 20))):
            if job.evaluate(measures, few)["loss"] <= loss:
                break
        sides = {name: job.evaluate(measures, part) for name, part in (("train", sets.train), ("test", sets.test))}
    batches = [sets.train.take(torch.arange(EXAMPLES))]
    top = curvature.eigenvalues(net, mean_loss, batches, tolerance=0.01, seed=seed)[0]
    return {
        "steps": job.position.steps_done,
        "train_loss": sides["train"]["loss"],
        "accuracy": sides["test"]["accuracy"],
        "gap": 100 * (sides["train"]["accuracy"] - sides["test"]["accuracy"]),
        "eigenvalue": top.value,
        "trace": curvature.trace(net, mean_loss, batches, probes=20, seed=seed).value,
        "sharpness": curvature.sharpness(net, mean_loss, batches, seed=seed).value,
    }


def measure(bench: Bench) -> dict[str, Any]:
    """Each variant with every seed."""
    loss = 1.5 if bench.quick else LOSS
    tasks = {name: {"batch": batch, "rate": rate, "loss": loss} for name, (batch, rate) in VARIANTS.items()}
    found = bench.each(descend, tasks)
    return {name: {key: [one[key] for one in outcomes] for key in outcomes[0]} for name, outcomes in found.items()}


def judge(measured: dict[str, Any]) -> Finding:
    eigenvalue, keskar = (times(measured[SMALL][key], measured[LARGE][key]) for key in ("eigenvalue", "sharpness"))
    gap = paired(measured[SMALL]["gap"], measured[LARGE]["gap"], 1.0)
    low, high = gap.interval(0.95)
    reached = all(abs(loss - LOSS) < 0.05 for name in VARIANTS for loss in measured[name]["train_loss"])
    adapted = times(measured[LARGE]["eigenvalue"], measured[ADAPTED]["eigenvalue"])
    return Finding(
        holds=reached and eigenvalue[1] > 1 and keskar[1] > 1 and low > 0,
        sentence="At one rate and an equal training loss batch 2048 ends where the largest eigenvalue is "
        f"{eigenvalue[0]:.2f} times ({eigenvalue[1]:.2f} to {eigenvalue[2]:.2f}) that of batch 32 and Keskar's "
        f"sharpness {keskar[0]:.2f} times ({keskar[1]:.2f} to {keskar[2]:.2f}); its gap between training and test "
        f"accuracy differs by {gap.mean:+.2f} points ({low:+.2f} to {high:+.2f}). Eight times the rate makes the "
        f"eigenvalue {adapted[0]:.2f} times as large.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    figures = []
    for key, title in MEASURES.items():
        bars = []
        for name in VARIANTS:
            mean, low, high = mean_interval(measured[name][key])
            bars.append(Bar(label=name, value=mean, low=low, high=high, highlight=name == SMALL))
        about = "At a training loss of 0.3, on 1,000 training images; mean and 95 % interval over seeds."
        if key == "gap":
            about = (
                "Training accuracy minus test accuracy at a training loss of 0.3; mean and 95 % interval over seeds."
            )
        figures.append(bar_chart(title[0].upper() + title[1:], about, Axis(title=title), bars))
    return figures


EXPERIMENT = Experiment(
    title="Large batches and sharp minima",
    question="At an equal training loss, does a large batch end in a sharper place, and generalise worse?",
    setting="MLP with two hidden layers of 128 on Fashion-MNIST at 14x14 pixels (10,000 images), plain SGD at a "
    "constant rate down to a training loss of 0.3: batch 32, batch 2048 at the same rate, batch 2048 at eight times "
    "the rate. The loss is looked at every 20 steps on 2,000 images; curvature on 1,000.",
    prediction="Batch 2048 at the same rate ends sharper, by the largest eigenvalue and by Keskar's measure, and its "
    "gap between training and test accuracy is larger.",
    source="Keskar et al., arXiv:1609.04836. Hoffer et al., arXiv:1705.08741, find the gap to be one of too few steps.",
    passes="All end within 0.05 of the training loss asked for; ratios of eigenvalue and sharpness above 1, and the "
    "gap's difference above 0 (95 % intervals over seeds).",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
