"""What the workers of the job's tests run: one thing that goes wrong, or one that is looked at, each."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from train.jobs import Case, data_of, join, loss_of

import worldsize
from worldsize.errors import WorldsizeError
from worldsize.parallel.world import current
from worldsize.train.job import Job


def small_job(replicas: int = 4, batch_per_replica: int = 2, **options: Any) -> tuple[Job, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return worldsize.join(model, optimizer, replicas=replicas, batch_per_replica=batch_per_replica, **options), model


def numbers(count: int, start: float = 0.0) -> TensorDataset:
    return TensorDataset(torch.arange(start, start + count).unsqueeze(1))


def with_backward(job: Job, data: TensorDataset) -> Iterator[tuple[Tensor, ...]]:
    for batch in job.batches(data):
        job.backward(job.model(batch[0]).mean())
        yield batch


def backwards(job: Job, do: Callable[[Job, Tensor], Any]) -> None:
    for (x,) in job.batches(numbers(8)):
        do(job, x)


def joined(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> Job:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return worldsize.join(model, optimizer, **options)


def close_any() -> None:
    if current() is not None:
        current().leave()


def reads(case: Case, resume_from: str | None = None) -> list[tuple[int, int, int, list[float]]]:
    """(epoch, step, replica, examples) of everything that this worker reads."""
    job, model = small_job(case.replicas, case.batch_per_replica, save_to=case.folder, save_every=case.save_every)
    if resume_from is not None:
        job.resume(resume_from)
    found = []
    for epoch in job.epochs(case.epochs):
        for loop in range(case.loops):
            for (x,), (other,) in job.batches(numbers(case.examples), numbers(7)):
                assert job._now is not None
                found.append(
                    (epoch, job.position.step, job._now.replica, [loop, *x.flatten().tolist(), *other.tolist()])
                )
                job.backward(model(x).mean())
                if job.position.steps_done == case.stop_after:
                    return found
    return found


def reads_growing(examples: int, folder: str, stop_after: int | None) -> list[tuple[int, int, int, list[float]]]:
    """(epoch, step, replica, examples) of what this worker reads while the batch doubles with each epoch."""
    job, model = small_job(5, 2, save_to=folder, save_every=1)
    job.resume(folder)
    found = []
    for epoch in job.epochs(3):
        for (x,) in job.batches(numbers(examples), batch_per_replica=2 * 2**epoch):
            assert job._now is not None
            found.append((epoch, job.position.step, job._now.replica, x.flatten().tolist()))
            job.backward(model(x).mean())
            if job.position.steps_done == stop_after:
                return found
    return found


def diverge(bad_step: int, bad_replica: int) -> None:
    """One replica's loss becomes NaN at one step."""
    job, model = small_job()
    for (x,) in job.batches(numbers(64)):
        assert job._now is not None
        bad = job.position.steps_done == bad_step and job._now.replica == bad_replica
        job.backward(model(x).mean() * (float("nan") if bad else 1.0))


def read_different_data() -> None:
    job, model = small_job()
    for (x,) in job.batches(numbers(64, start=float(job.world.worker))):
        job.backward(model(x).mean())


def differ_in(name: str) -> None:
    """The workers give different arguments to join."""
    from worldsize.parallel.world import join_world

    options = {"seed": 1, "keep_short": True, "clip_norm": 1.0, "batch_per_replica": 2}
    if join_world().worker == 1:
        options[name] = {"seed": 2, "keep_short": False, "clip_norm": 2.0, "batch_per_replica": 3}[name]
    small_job(**options)


def draws_between(case: Case) -> list[tuple[float, float, float]]:
    """What random numbers the user's own code gets after a loop and after an evaluation."""
    job = join(case)
    found = []

    def draw() -> None:
        found.append((torch.rand(()).item(), np.random.rand(), random.random()))

    for _ in job.epochs(2):
        for x, y in job.batches(data_of(case)):
            job.backward(loss_of(case, job.model(x), y))
        draw()
        job.evaluate(lambda x, y: job.model(x).sum(1), data_of(case))
        draw()
    return found


def skip_the_last_replica_and_save(folder: str) -> tuple[int, list[str]]:
    """The last replica's batch counts nothing at every step, and each step is saved."""
    job, model = small_job(save_to=folder, save_every=1)
    last = set(torch.randperm(8, generator=torch.Generator().manual_seed(0))[3::4].tolist())

    def count(x: torch.Tensor) -> float:
        return 0.0 if set(x.flatten().tolist()) <= last else float(len(x))

    for _ in job.epochs(1):
        for (x,) in job.batches(numbers(8), count=count):
            job.backward(model(x).mean())
    return job.position.steps_done, sorted(path.name for path in Path(folder).iterdir())


def steps_seen(replicas: int, examples: int) -> list[int]:
    seen: list[int] = []
    job, model = small_job(replicas, after_step=lambda job: seen.append(job.position.steps_done))
    for (x,) in job.batches(numbers(examples)):
        job.backward(model(x).mean())
    return seen


def evaluate_alone(examples: int) -> tuple[float, dict[str, float], list[float]]:
    """An evaluation that notes which examples this worker has read, with random numbers and buffers in it."""
    case = Case(replicas=6)
    job = join(case)
    for x, y in job.batches(data_of(case)):
        job.backward(F.cross_entropy(job.model(x), y))
    seen: list[float] = []

    def measure(place: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
        seen.extend(place.tolist())
        return {"out": job.model(x).sum(1), "noise": torch.rand(len(x))}

    x = torch.randn(examples, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    found = job.evaluate(measure, TensorDataset(torch.arange(examples), x))
    mean = job.evaluate(lambda place, x: place.double(), TensorDataset(torch.arange(examples), x))
    return mean, found, seen


def refit(examples: int) -> dict[str, Any]:
    """What statistics two norms have in an evaluation with `norms_from`, and after it."""
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.BatchNorm1d(1))
    job = joined(model, replicas=2, batch_per_replica=10)
    for (x,) in job.batches(numbers(60)):
        job.backward(model(x).mean())
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        model[0].bias.fill_(1.0)

    def statistics() -> list[float]:
        return [t.item() for t in (model[1].running_mean, model[1].running_var, model[2].running_mean)]

    data = numbers(examples)
    job.evaluate(lambda x: model(x)[:, 0], data, norms_from=data)
    fitted = statistics()
    job.fingerprint()
    out = 1 + 3 * data.tensors[0][:, 0][torch.randperm(examples, generator=torch.Generator().manual_seed(0))]
    parts = out.split(250)
    by_hand = sum(len(part) * part.var(correction=0).item() for part in parts) / examples
    return {"fitted": fitted, "by_hand": by_hand, "afterwards": statistics()}


def error_of(function: Any, *arguments: Any) -> WorldsizeError:
    try:
        function(*arguments)
    except WorldsizeError as error:
        return error
    raise AssertionError("it should have been refused")
