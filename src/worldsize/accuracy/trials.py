"""Trials: what the experiments run, in a worker that is alone; each gives numbers that JSON can hold."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from worldsize.errors import NotFinite
from worldsize.plan import rates
from worldsize.train import data, models
from worldsize.train.data import InMemory, Sets
from worldsize.train.job import Job, join
from worldsize.train.loop import train_worker
from worldsize.train.meter import NoiseMeter
from worldsize.train.settings import Run

SEES = 1.1  # a target is looked for at steps that grow by this factor, so that looking costs a share of training


def training(**settings: Any) -> dict[str, Any]:
    """`worldsize train` with these flags: what every evaluation found, and how it ended."""
    curve: list[dict[str, Any]] = []

    def tell(message: dict[str, Any]) -> None:
        if message["kind"] == "evaluated":
            curve.append({name: message[name] for name in ("epoch", "accuracy", "loss")})

    try:
        result = train_worker(Run(workers=1, device="cpu", **settings), None, None, tell)
    except NotFinite as error:
        return {"diverged": True, "curve": curve, "error": str(error)}
    kept = ("accuracy", "loss", "steps", "steps_per_epoch", "learning_rate", "weights_sha256", "train_s")
    return {"diverged": False, "curve": curve, **{name: result[name] for name in kept}}


def accuracy_of(outcome: dict[str, Any], classes: int = 10) -> float:
    """The accuracy at the end; one that diverged is as good as guessing."""
    return 1 / classes if outcome["diverged"] else float(outcome["accuracy"])


def error_of(outcome: dict[str, Any]) -> float:
    """The share of wrong answers at the end."""
    return 1 - accuracy_of(outcome)


@cache
def load(name: str) -> Sets:
    """A data set, read once in each worker."""
    return data.load(name)


def subset(part: InMemory, places: Tensor) -> InMemory:
    """The examples of a set at these places."""
    tensors = tuple(tensor[places] for tensor in part.tensors)
    return InMemory(tensors=tensors, decode=part.decode, classes=part.classes, source=part.source)


def to_targets(
    *,
    targets: Sequence[float],
    batch: int,
    rate: float,
    most_steps: int,
    seed: int,
    momentum: float = 0.0,
    replicas: int = 1,
    model: str = "mlp",
    data_name: str = "fashion-14",
) -> dict[str, Any]:
    """Train with SGD at a constant rate until the test accuracy is at the last target; the steps that each one took.

    With several replicas, also the gradient noise scale between each target and the one before.
    """
    sets = load(data_name)
    torch.manual_seed(seed)
    net = models.build(model, sets)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=momentum)
    steps: dict[str, int | None] = {str(target): None for target in targets}
    noise: dict[str, float | None] = {str(target): None for target in targets}
    accuracy = 0.0
    with join(net, optimizer, replicas=replicas, batch_per_replica=batch // replicas, seed=seed) as job:
        meter = NoiseMeter(job, every=max(1, most_steps // 500)) if replicas > 1 else None
        loss, measures = models.loss_of(sets, net), models.measures_of(sets, net)
        try:
            for done in walk(job, sets.train, loss, looks(most_steps)):
                accuracy = job.evaluate(measures, sets.test)["accuracy"]
                for target in [target for target in targets if steps[str(target)] is None and accuracy >= target]:
                    steps[str(target)] = done
                    if meter:
                        noise[str(target)] = meter.result().scale
                if steps[str(targets[-1])] is not None:
                    break
        except NotFinite:
            accuracy = 0.0
    return {"steps": steps, "noise_scale": noise, "accuracy": accuracy}


def trained(
    *, model: str, batch: int, rate: float, epochs: int, seed: int, momentum: float = 0.9, data_name: str = "fashion-14"
) -> tuple[torch.nn.Module, Sets, float]:
    """A model trained with SGD and a cosine schedule on one replica, its data, and its test accuracy."""
    sets = load(data_name)
    torch.manual_seed(seed)
    net = models.build(model, sets)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=momentum)
    steps = epochs * math.ceil(len(sets.train) / batch)
    schedule = LambdaLR(optimizer, rates.schedule(steps, shape="cosine"))
    with join(net, optimizer, scheduler=schedule, replicas=1, batch_per_replica=batch, seed=seed) as job:
        loss = models.loss_of(sets, net)
        for _ in job.epochs(epochs):
            for x, y in job.batches(sets.train):
                job.backward(loss(x, y))
        return net, sets, job.evaluate(models.measures_of(sets, net), sets.test)["accuracy"]


def looks(most_steps: int) -> list[int]:
    """The steps after which to look: every one at first, then ever fewer.

    >>> looks(40)[-12:]
    [18, 19, 20, 22, 24, 26, 28, 30, 33, 36, 39, 40]
    """
    found = [1]
    while found[-1] < most_steps:
        found.append(min(most_steps, max(found[-1] + 1, math.floor(found[-1] * SEES))))
    return found


def walk(job: Job, train_set: InMemory, loss: Callable[[Tensor, Tensor], Tensor], stops: list[int]) -> Iterator[int]:
    """Train on, epoch after epoch; comes up for air after each of these steps, with its number."""
    waiting = iter(stops)
    stop: int | None = next(waiting)
    while stop is not None:
        for epoch in job.epochs(job.position.epoch + 1):
            for x, y in job.batches(train_set):
                if job.backward(loss(x, y)) and job.position.steps_done == stop:
                    yield stop
                    stop = next(waiting, None)
                    if stop is None:
                        return
            del epoch
