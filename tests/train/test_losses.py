"""Losses: their mean is the mean over the examples, and one that is not finite is named with its place."""

import math

import pytest
import torch
from train import trials
from train.trials import backwards, numbers, with_backward

from worldsize.errors import LossError, NotFinite
from worldsize.parallel.world import World
from worldsize.run.pool import run_workers
from worldsize.train.losses import Losses


def losses_alone() -> Losses:
    return Losses(World(worker=0, size=1, device=torch.device("cpu"), backend="none", ours=False), replicas=2)


def test_the_mean_loss_is_the_mean_over_examples_step_by_step(job):
    job.model.weight.data.fill_(1.0)
    job.model.bias.data.fill_(0.0)
    for group in job.optimizer.param_groups:
        group["lr"] = 0.0
    for _ in with_backward(job, numbers(11)):  # eight examples, then three
        pass
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0)).double()
    assert job.mean_loss() == pytest.approx((order[:8].mean() + order[8:].mean()).item() / 2, rel=1e-6)
    assert math.isnan(job.mean_loss())


def test_losses_that_nobody_asks_for_are_not_kept_for_ever(job):
    for _ in job.epochs(5):
        for _ in with_backward(job, numbers(40)):
            pass
    assert len(job._losses) <= 2 * 5 * 4


def test_what_is_given_beside_the_loss_has_a_mean_over_the_steps_that_gave_it():
    losses = losses_alone()
    for step, accuracy in enumerate([0.25, None, 0.75]):
        for replica, weight in enumerate([0.75, 0.25]):
            others = {} if accuracy is None else {"accuracy": torch.tensor(accuracy)}
            losses.add(torch.tensor(4.0 * replica), others, step=step, replica=replica, weight=weight)
    assert losses.means() == {"loss": 1.0, "accuracy": 0.5}
    assert len(losses) == 0
    assert math.isnan(losses.means()["loss"]), "since the last time there was none"


def test_only_what_is_older_is_forgotten():
    losses = losses_alone()
    for step in range(4):
        losses.add(torch.tensor(float(step)), {}, step=step, replica=0, weight=1.0)
    losses.forget(before=2)
    assert losses.means() == {"loss": 2.5}


def test_a_loss_that_is_kept_keeps_no_graph():
    losses = losses_alone()
    loss = torch.ones(1, requires_grad=True) * 2
    losses.add(loss, {"norm": loss}, step=0, replica=0, weight=1.0)
    assert losses.means() == {"loss": 2.0, "norm": 2.0}


def test_beside_the_loss_there_may_be_what_is_not_finite_but_no_more_than_one_number():
    losses = losses_alone()
    losses.add(torch.tensor(1.0), {"ratio": torch.tensor(math.inf)}, step=0, replica=0, weight=1.0)
    assert losses.means() == {"loss": 1.0, "ratio": math.inf}
    with pytest.raises(LossError, match=r"job.backward got ratio of shape \(2,\); give its mean over the batch"):
        losses.add(torch.tensor(1.0), {"ratio": torch.ones(2)}, step=0, replica=0, weight=1.0)


def test_a_loss_that_is_infinite_is_refused_before_its_backward_pass(job):
    with pytest.raises(
        NotFinite, match=r"the loss is -?inf at step 0, replica 0, worker 0; a smaller learning"
    ) as raised:
        backwards(job, lambda job, x: job.backward(job.model(x).mean() * math.inf))
    assert "\n" not in str(raised.value)
    assert job.model.weight.grad is None


def test_a_loss_that_is_nan_is_named_with_its_step_replica_and_worker():
    with pytest.raises(NotFinite, match="the loss is nan at step 3, replica 2, worker 1; a smaller") as raised:
        run_workers(trials.diverge, 3, 2, workers=2)
    assert "\n" not in str(raised.value)
