"""Gradients that are one step old: what lag 1, which hides all communication, costs."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.experiments import linear_neuron
from worldsize.accuracy.variants import POINT, accuracies, against, curve, in_points
from worldsize.errors import NotFinite
from worldsize.plan import rates
from worldsize.report.axis import Axis
from worldsize.report.charts import line_chart
from worldsize.report.markup import Html
from worldsize.train import models
from worldsize.train.job import join

RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)
MARGIN = 0.01


class Lagging(torch.optim.SGD):
    """SGD with momentum that applies the gradients of the step before; at its first step it does nothing."""

    def __init__(self, parameters: Any, rate: float, lag: int) -> None:
        super().__init__(parameters, rate, momentum=0.9)
        self._lag = lag
        self._waiting: list[list[Tensor | None]] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # a closure's loss is not of use here
        parameters: list[nn.Parameter] = [one for group in self.param_groups for one in group["params"]]
        self._waiting.append([None if one.grad is None else one.grad.clone() for one in parameters])
        if len(self._waiting) <= self._lag:
            return
        for parameter, gradient in zip(parameters, self._waiting.pop(0), strict=True):
            parameter.grad = gradient
        super().step()


def train(*, lag: int, rate: float, epochs: int, seed: int) -> dict[str, Any]:
    """Train with gradients that are `lag` steps old; the accuracy at the end."""
    sets = trials.load("fashion-14")
    torch.manual_seed(seed)
    net = models.build("mlp", sets)
    optimizer = Lagging(net.parameters(), rate, lag)
    steps = epochs * math.ceil(len(sets.train) / 64)
    schedule = LambdaLR(optimizer, rates.schedule(steps, shape="cosine"))
    with join(net, optimizer, scheduler=schedule, replicas=4, batch_per_replica=16, seed=seed) as job:
        loss, measures = models.loss_of(sets, net), models.measures_of(sets, net)
        try:
            for _ in job.epochs(epochs):
                for x, y in job.batches(sets.train):
                    job.backward(loss(x, y))
            return {"diverged": False, "accuracy": job.evaluate(measures, sets.test)["accuracy"]}
        except NotFinite:
            return {"diverged": True}


def largest_stable_rate(lag: int) -> float:
    """On the linear neuron, by halving an interval: the rate above which descent with old gradients grows."""
    curvature = linear_neuron.hessian()
    low, high = 0.0, 0.1
    for _ in range(40):
        middle = (low + high) / 2
        gaps = [np.array([1.0, 1.0])] * (lag + 1)
        for _ in range(4_000):
            gaps = [*gaps[1:], gaps[-1] - middle * curvature @ gaps[0]]
            if not np.abs(gaps[-1]).max() < 1e6:
                break
        low, high = (low, middle) if np.abs(gaps[-1]).max() > 10 else (middle, high)
    return low


def measure(bench: Bench) -> dict[str, Any]:
    """The accuracy of both lags at every rate, and on the linear neuron the largest stable rate of both."""
    tried, epochs = ((0.05, 0.1), 1) if bench.quick else (RATES, 8)
    variants = {f"{lag} {rate}": {"lag": lag, "rate": rate, "epochs": epochs} for lag in (0, 1) for rate in tried}
    found = accuracies(bench.each(train, variants))
    return {
        "accuracy": {str(lag): {str(rate): found[f"{lag} {rate}"] for rate in tried} for lag in (0, 1)},
        "stable": {str(lag): largest_stable_rate(lag) for lag in (0, 1)},
    }


def best(measured: dict[str, Any], lag: int) -> str:
    """The rate with the best mean accuracy."""
    rows = measured["accuracy"][str(lag)]
    return max(rows, key=lambda rate: math.fsum(rows[rate]))


def judge(measured: dict[str, Any]) -> Finding:
    chosen = [best(measured, lag) for lag in (0, 1)]
    sides = {str(lag): measured["accuracy"][str(lag)][rate] for lag, rate in enumerate(chosen)}
    difference = against(sides, "0", "1", MARGIN)
    halved = measured["stable"]["1"] / measured["stable"]["0"]
    return Finding(
        holds=difference.p_equivalent < 0.05 and abs(halved - 0.5) < 0.01,
        sentence=f"At the best rate of each (lag 0: {chosen[0]}, lag 1: {chosen[1]}) lag 1 changes accuracy by "
        f"{in_points(difference)}. On the linear neuron lag 1 is stable up to {halved:.3f} of the rate of lag 0.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    rows = measured["accuracy"]
    lines = [
        curve(f"lag {lag}", {float(rate): values for rate, values in rows[str(lag)].items()}, lag) for lag in (0, 1)
    ]
    return [
        line_chart(
            "Old gradients bear a smaller rate",
            "Test accuracy after eight epochs against the rate; mean over seeds and 95 % interval. Lag 1 applies the "
            "gradients of the step before, so that sending them can take a whole step.",
            Axis(title="learning rate (momentum 0.9)", log=True),
            Axis(title="test accuracy"),
            lines,
        )
    ]


EXPERIMENT = Experiment(
    title="Gradients that are one step old",
    question="What does it cost to apply the gradients of the step before (lag 1), which hides all communication?",
    setting="MLP with two hidden layers of 128 on Fashion-MNIST at 14x14 pixels (10,000 images), global batch 64 in "
    "4 replicas, momentum 0.9, 8 epochs, cosine schedule, five rates; and gradient descent on the linear neuron.",
    prediction="At a well-chosen rate the accuracy is the same within a point. On a quadratic the largest stable "
    "rate is exactly half of that of fresh gradients: 1 over the largest eigenvalue instead of 2.",
    source="Kurth et al., arXiv:1810.01993 (lag 0 and lag 1).",
    passes=f"Equivalent within {MARGIN / POINT:g} point at the best rate of each (two one-sided t-tests at 0.05, "
    "paired by seed), and the ratio of the stable rates within 0.01 of a half.",
    seeds=8,
    measure=measure,
    judge=judge,
    draw=draw,
)
