"""What the workers of the lockstep tests run: a net with all that replicas could mix up, and passes that go wrong."""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import worldsize
from worldsize.parallel import norm
from worldsize.train.job import Job
from worldsize.train.meter import NoiseMeter
from worldsize.train.optimizers import make

CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One small experiment with batch norm across workers."""

    replicas: int = 4
    batch_per_replica: int = 3
    examples: int = 31  # the last step has 7: 2, 2, 2, 1
    optimizer: str = "sgd"
    clip_norm: float | None = None
    counted: bool = False
    autocast: bool = False
    compiled: bool = False


class Net(nn.Module):
    """Dropout, a buffer that stands in two places and that the graph keeps, a weight before and after each norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.norms = nn.ModuleList([nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8), nn.BatchNorm1d(8)])
        self.unused = nn.Linear(2, 2)
        self.register_buffer("seen", torch.ones(8))
        self.other = nn.Module()
        self.other.register_buffer("seen", self.seen)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norms[0](self.first(x))
        with torch.no_grad():
            self.seen += hidden[0]
        hidden = hidden * self.other.seen
        hidden = F.dropout(self.norms[1](self.second(hidden)).relu(), 0.3, self.training)
        return self.head(self.second(self.norms[2](self.second(hidden))) + hidden)


def examples(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(count, 5, generator=generator), torch.randint(CLASSES, (count,), generator=generator)
    )


def job_of(drill: Drill) -> Job:
    torch.manual_seed(1)
    model = norm.convert(Net(), "sync")
    return worldsize.join(
        model,
        make(drill.optimizer, model, 0.1, 1e-3),
        replicas=drill.replicas,
        batch_per_replica=drill.batch_per_replica,
        clip_norm=drill.clip_norm,
        device="cpu",
    )


def loss_of(drill: Drill, model: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=drill.autocast):
            out = model(x + random.random())
            noise = random.random() + float(np.random.rand()) + torch.rand(())  # drawn when others have had their turn
            return F.cross_entropy(out.float(), y) + noise * out.float().square().mean()

    return loss


def train(drill: Drill, plain: bool) -> dict[str, Any]:
    """Everything that must not depend on the number of workers."""
    job = job_of(drill)
    meter = NoiseMeter(job, every=2)
    loss = loss_of(drill, torch.compile(job.model, backend="eager", dynamic=False) if drill.compiled else job.model)
    count = (lambda x, y: (1 + y).sum()) if drill.counted else None
    for _ in job.epochs(1):
        if plain:
            for x, y in job.batches(examples(drill.examples), count=count):
                job.backward(loss(x, y))
        else:
            job.lockstep(loss, examples(drill.examples), count=count)
    found = {"mean": job.mean_loss(), "noise": asdict(meter.result()), "draws": (random.random(), np.random.rand())}
    found["evaluation"] = job.evaluate(lambda x, y: job.model(x).sum(1), examples(20))
    found["unused"] = job.model.unused.weight.grad is None
    found |= job.fingerprint()
    job.sync.close()
    return found


def train_all(drills: list[Drill], workers: int) -> list[dict[str, Any]]:
    """Each drill in lockstep; where each replica has a worker, the plain loop must have given the same."""
    found = []
    for drill in drills:
        found.append(train(drill, plain=False))
        last = drill.examples % (drill.replicas * drill.batch_per_replica)
        if workers == drill.replicas <= last:
            assert train(drill, plain=True) == found[-1], drill
    return found


def go_wrong(job: Job, how: str, step: int = 1, replica: int = 2) -> None:
    """Train with one replica's pass going wrong at one step."""
    loss, calls = loss_of(Drill(), job.model), 0

    def wrong(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        here = replica in job.block and calls == step * len(job.block) + job.block.index(replica)
        calls += 1
        x = x.clone().requires_grad_()
        if here and how == "backward":
            x.register_hook(_stumble)
        if here and how == "elsewhere":
            first, second, third = job.model.norms
            return job.model.head(third(first(second(job.model.first(x))))).mean()
        if here and how == "no norm":
            return job.model.head(job.model.first(x)).mean()
        found = loss(x, y)
        if here and how == "forward":
            _stumble(x)
        return found * (float("nan") if here and how == "nan" else 1)

    job.lockstep(wrong, examples(31))


def nan() -> None:
    go_wrong(job_of(Drill()), "nan")


def _stumble(_: Tensor) -> None:
    raise KeyError("stumbled")
