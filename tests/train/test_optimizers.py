"""Optimizers by name: what is decayed, and which settings of the command line each can be made with."""

from dataclasses import fields

import pytest
import torch
from torch import nn

from worldsize.run.pool import run_workers, tell
from worldsize.train import loop, optimizers
from worldsize.train.optimizers import groups
from worldsize.train.settings import Run


def test_norms_and_biases_stand_apart():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    weights, vectors = groups(model, 0.05)
    assert [parameter.dim() for parameter in weights["params"]] == [4, 2]
    assert len(vectors["params"]) == 3
    assert (weights["weight_decay"], vectors["weight_decay"], vectors["layerwise"]) == (0.05, 0.0, False)
    assert len(groups(nn.Linear(2, 2, bias=False), 0.0)) == 1


RATES = {"sgd": 0.05, "adamw": 0.05, "lars": 0.5, "lamb": 0.05, "novograd": 0.02}  # for this small problem


@pytest.mark.parametrize("name", optimizers.KINDS)
def test_every_optimizer_learns_and_decays_weights_alone(name):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    made = optimizers.make(name, model, RATES[name], 0.01)
    x = torch.randn(64, 4)
    losses = []
    for _ in range(60):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        made.zero_grad()
        loss.backward()
        made.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert [group["weight_decay"] for group in made.param_groups] == [0.01, 0.0]


@pytest.mark.parametrize(("name", "kind"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_torchs_own_have_the_rate_that_was_asked_for_and_are_not_fused(name, kind):
    made = optimizers.make(name, nn.Linear(1, 1), 0.3, 0.25)
    assert type(made) is kind
    assert [(group["lr"], group["fused"]) for group in made.param_groups] == [(0.3, None)] * 2


def test_the_command_line_knows_them_all():
    (field,) = (each for each in fields(Run) if each.name == "optimizer")
    assert set(field.metadata["choices"]) == set(optimizers.KINDS)


def trained(run: Run, workers: int) -> str:
    return run_workers(loop.train_worker, run, None, None, tell, workers=workers, limit_s=60)[0]["weights_sha256"]


@pytest.mark.parametrize("name", ["lars", "lamb", "novograd"])
def test_one_to_three_workers_give_one_hash(name):
    run = Run(
        model="cnn",
        data="generated:100:1x8x8:4",
        optimizer=name,
        replicas=6,
        batch_per_replica=4,
        epochs=1,
        weight_decay=0.01,
        dropout=0.1,
        drop_short=True,
    )
    assert len({trained(run, workers) for workers in (1, 2, 3)}) == 1
