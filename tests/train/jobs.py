"""What the workers of these tests run: small experiments by description, and what has come of them."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import worldsize
from worldsize.run.pool import run_workers
from worldsize.train.data import load
from worldsize.train.job import Job
from worldsize.train.models import Transformer, WideResNet, conv_net, count_of


@dataclass(frozen=True, kw_only=True)
class Case:
    """One small experiment; every field but `folder`, `stop_after` and `speed` ones may change the bits."""

    net: str = "conv"
    optimizer: str = "sgd"
    replicas: int = 4
    batch_per_replica: int = 5
    examples: int = 57  # a short last batch, of at least 2 for each of 4, 6 or 8 replicas
    epochs: int = 2
    loops: int = 1  # loops over the data in one epoch
    sync: str = "exact"
    clip_norm: float | None = None
    precision: str = "fp32"  # "bf16" and "fp16" are autocast
    scheduled: bool = False
    weights: str = "float32"
    augmented: bool = False
    beside: bool = False  # read a second data set beside the first
    device: str | None = None
    # What must change no bit:
    bucket_mb: float = 25.0
    loader_workers: int = 0
    compiler: str = ""
    folder: str | None = None
    save_every: int | None = None
    stop_after: int | None = None  # interrupted after this step
    evaluated: bool = True

    def __str__(self) -> str:
        default = Case()
        other = {name: value for name, value in vars(self).items() if value != getattr(default, name)}
        return ",".join(f"{name}={value}" for name, value in other.items()) or "default"


class Odd(nn.Module):
    """Everything that a model may do to trip up a sync of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 16)
        self.frozen.requires_grad_(False)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight  # tied
        self.never, self.sometimes = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 10)
        self.register_buffer("tenth", torch.tensor([0.1, 1 / 3, 1e-20]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.5 * self.seen + x.mean().detach()  # another tensor in its place
        hidden = self.second(F.relu(self.first(self.frozen(x.flatten(1))))) + self.seen
        if not self.training or x[0, 0, 0, 0] > 0:  # true in some replicas only
            hidden = hidden + self.sometimes(hidden)
        return self.head(hidden)


class Noisy(Dataset):
    """Augmented by all three kinds of random generators, example by example."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] * random.random() + np.random.rand() + torch.randn(()), self.y[index]


class Langevin(torch.optim.SGD):
    """SGD that adds noise to the weights: an optimizer that draws from the random generator."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.001 * torch.randn_like(parameter))


def build(net: str) -> nn.Module:
    torch.manual_seed(7)
    if net == "conv":
        return conv_net(1, 10, dropout=0.2)
    if net == "wrn":
        return WideResNet(1, 10, 1, 0.2, True)
    if net == "transformer":
        return Transformer(15, 12, width=16, layers=2, heads=2, dropout=0.1)
    if net == "odd":
        return Odd()
    dropout = {"mlp": 0.2, "smooth": 0.0}[net]
    act = nn.Tanh if net == "smooth" else nn.ReLU
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), act(), nn.Dropout(dropout), nn.Linear(32, 10))


_loaded: dict[str, Any] = {}


def data_of(case: Case) -> Dataset:
    name = "sums" if case.net == "transformer" else "generated:1600:1x8x8:10"
    if name not in _loaded:
        _loaded[name] = load(name)
    x, y = (part[: case.examples] for part in _loaded[name].train.tensors)
    if x.is_floating_point():
        x = x.to(getattr(torch, case.weights))
    return Noisy(x, y) if case.augmented else TensorDataset(x, y)


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if case.optimizer == "sgd":
        return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-3)
    return {"plain": torch.optim.SGD, "langevin": Langevin, "adamw": torch.optim.AdamW}[case.optimizer](
        parameters, 1e-2
    )


def loss_of(case: Case, out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2).float() if out.dim() == 3 else out, y.flatten(), ignore_index=-100)


def right(model: nn.Module) -> Any:
    def measure(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = model(x)
        exact = (out.argmax(-1) == y).view(len(y), -1).float().mean(1)
        return {"right": exact, "sum": out.flatten(1).sum(1)}

    return measure


def join(case: Case) -> Job:
    model = build(case.net).to(getattr(torch, case.weights))
    optimizer = optimizer_of(case, model)
    # A scale that overflows in fp16 at first, so that a step is skipped.
    scaler = (
        torch.amp.GradScaler(case.device or "cpu", init_scale=2.0**22, growth_interval=3)
        if case.precision == "fp16"
        else None
    )
    return worldsize.join(
        model,
        optimizer,
        replicas=case.replicas,
        batch_per_replica=case.batch_per_replica,
        seed=3,
        sync=case.sync,
        clip_norm=case.clip_norm,
        bucket_mb=case.bucket_mb,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step) if case.scheduled else None,
        scaler=scaler,
        save_to=case.folder,
        save_every=case.save_every,
        device=case.device,
    )


class Interrupted(Exception):
    """The step after which the run was to end has been done."""


def train(case: Case) -> dict[str, Any]:
    """Train as described, in this worker; what is returned must be the same bits for every number of workers."""
    job = join(case)
    if case.folder is not None:
        job.resume(case.folder)
    model = torch.compile(job.model, dynamic=False, backend=case.compiler) if case.compiler else job.model
    train_set = data_of(case)
    losses, scales, steps = [], [], 0

    def after_step(_: Job) -> None:
        nonlocal steps
        steps += 1
        if job.scaler is not None:
            scales.append(job.scaler.get_scale())
        if job.position.steps_done == case.stop_after:
            raise Interrupted

    job.after_step = after_step
    try:
        for _ in job.epochs(case.epochs):
            for _ in range(case.loops):
                train_once(case, job, model, train_set)
            losses.append(job.mean_loss())
    except Interrupted:
        return {"interrupted": job.position.steps_done}
    finally:
        job.sync.close()  # but stay in the world: the next case of this worker uses it again
    sets = load("generated:1600:1x8x8:10").test if case.net != "transformer" else train_set
    if case.weights != "float32":
        sets = TensorDataset(sets.tensors[0].to(getattr(torch, case.weights)), sets.tensors[1])
    found = {"losses": losses, "scales": scales, "steps": steps, **job.fingerprint()}
    if case.evaluated:
        found["evaluation"] = job.evaluate(right(job.model), sets)
    found["grads_none"] = [name for name, parameter in job.model.named_parameters() if parameter.grad is None]
    return found


def train_once(case: Case, job: Job, model: Any, train_set: Dataset) -> None:
    count = count_of(_loaded["sums"]) if case.net == "transformer" else None
    sets = (train_set, TensorDataset(torch.arange(17.0))) if case.beside else (train_set,)
    if case.beside:
        count = None
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision)
    for batch in job.batches(*sets, count=count, loader_workers=case.loader_workers):
        (x, y), other = batch if case.beside else (batch, None)
        with torch.autocast(job.world.device.type, autocast or torch.bfloat16, enabled=autocast is not None):
            loss = loss_of(case, model(x), y)
        job.backward(loss if other is None else loss * (1 + other[0].mean()))


def train_all(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Several experiments after each other in one world."""
    return [train(case) for case in cases]


def sweep(cases: list[Case], workers: Iterable[int]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Every case on each number of workers: what each worker of each world found, case by case."""
    for size in workers:
        found = run_workers(train_all, cases, workers=size, limit_s=300)
        for worker, theirs in enumerate(found):
            for case, mine, first in zip(cases, theirs, found[0], strict=True):
                assert mine == first, f"worker {worker} of {size} differs from worker 0 in {case}"
        yield size, found[0]


def one_result(cases: list[Case], workers: Iterable[int] = (1, 2, 3, 4)) -> list[dict[str, Any]]:
    """What each case gives, having looked that it is the same for each number of workers."""
    first: list[dict[str, Any]] | None = None
    for size, found in sweep(cases, workers):
        first = first or found
        for case, mine, expected in zip(cases, found, first, strict=True):
            assert mine == expected, f"{size} workers differ from the first in {case}"
    assert first is not None
    assert all(result["steps"] > 0 for result in first)
    return first
