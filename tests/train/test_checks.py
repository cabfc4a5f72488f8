"""Checks: what a program may not do to a job is refused where it can first be seen, in one line."""

import re

import pytest
import torch
from torch import nn
from train import trials
from train.trials import backwards, close_any, joined, numbers, with_backward

from worldsize.errors import LossError, Misuse

# ---- what a job is made of -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scheduler": 3}, "the scheduler is a int, which has no step"),
        ({"scaler": 3}, "the scaler is a int, but needs to be a torch.amp.GradScaler"),
    ],
)
def test_a_part_that_is_none_is_refused_in_one_line(options, says):
    with pytest.raises(Misuse, match=re.escape(says)) as raised:
        trials.small_job(**options)
    assert "\n" not in str(raised.value)


MODELS = {
    "0.weight has no shape yet; run one forward pass before": lambda: nn.Sequential(nn.LazyLinear(1)),
    "words makes sparse gradients, which a job does not sync": lambda: nn.ModuleDict(
        {"words": nn.Embedding(2, 1, sparse=True)}
    ),
    "wrapped for data parallelism already; give the bare model": lambda: nn.DataParallel(nn.Linear(1, 1)),
}


@pytest.mark.parametrize("says", MODELS)
def test_a_model_that_cannot_be_synced_is_refused_in_one_line(says):
    with pytest.raises(Misuse, match=says) as raised:
        joined(MODELS[says](), torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1))
    assert "\n" not in str(raised.value)


def test_an_optimizer_that_evaluates_the_loss_again_is_refused():
    model = nn.Linear(1, 1)
    with pytest.raises(Misuse, match="LBFGS evaluates the loss several times a step, which a job cannot"):
        joined(model, torch.optim.LBFGS(model.parameters()))


def test_a_scheduler_that_wants_a_number_at_each_step_is_refused():
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(Misuse, match=r"leave scheduler out and call its step yourself after job\.evaluate"):
        joined(model, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


def test_an_optimizer_of_other_parameters_is_refused():
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    error = trials.error_of(joined, nn.Linear(1, 1), other)
    close_any()
    assert str(error).startswith("the optimizer holds 2 parameters that are not the model's; make it from")


# ---- the model before a loop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["unfrozen", "replaced"])
def test_a_parameter_that_would_silently_not_be_synced_is_refused(change):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].requires_grad_(False)
    with joined(model) as job:
        if change == "unfrozen":
            model[0].requires_grad_(True)
        else:
            model[1] = nn.Linear(1, 1)
        error = trials.error_of(list, job.batches(numbers(40)))
    name = "0.weight" if change == "unfrozen" else "1.weight"
    assert str(error).startswith(f"{name} was unfrozen or replaced after worldsize.join")


def test_a_parameter_may_be_frozen_later():
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    with joined(model, replicas=2, batch_per_replica=2) as job:
        for _ in with_backward(job, numbers(4)):
            pass
        model[0].requires_grad_(False)
        before = model[0].weight.item()
        for _ in with_backward(job, numbers(4)):
            pass
        assert model[0].weight.item() == before
        assert model[0].weight.grad is None


def test_a_model_left_in_evaluation_is_refused_but_parts_of_it_may_stay_there():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))
    with joined(model) as job:
        model[1].eval()
        for _ in with_backward(job, numbers(4)):
            pass
        model.eval()
        error = trials.error_of(list, job.batches(numbers(4)))
    assert str(error).startswith("the model is in evaluation mode, so dropout and batch norm would not train; call")


# ---- in the loop -----------------------------------------------------------------------------------------------------

LOSSES = {
    "no tensor": (lambda job, x: job.backward(1.0), "job.backward got a float, but needs the loss"),
    "no scalar": (lambda job, x: job.backward(job.model(x)), r"a loss of shape \(2, 1\); give its mean"),
    "no graph": (lambda job, x: job.backward(job.model(x).mean().detach()), "without a graph; do not detach"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_none_is_refused_in_one_line(job, name):
    do, says = LOSSES[name]
    with pytest.raises(LossError, match=says) as raised:
        backwards(job, do)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("count", "shown"), [(-1, "-1.0"), (float("nan"), "nan"), (float("inf"), "inf")])
def test_a_batch_cannot_count_less_than_nothing_nor_without_end(job, count, shown):
    with pytest.raises(LossError, match=f"count gave {shown} for a batch; it must give how much") as raised:
        list(job.batches(numbers(8), count=lambda x: count))
    assert "\n" not in str(raised.value)


def set_rate(job, rate: float) -> None:
    job.optimizer.param_groups[0]["lr"] = rate


def test_a_setting_of_the_optimizer_changed_in_the_middle_of_a_step_is_refused(job):
    def change(job, x) -> None:
        set_rate(job, 0.5)
        job.backward(job.model(x).mean())

    with pytest.raises(
        Misuse, match=r"the optimizer's lr was changed from 0\.01 to 0\.5 in the middle of a step"
    ) as raised:
        backwards(job, change)
    assert "\n" not in str(raised.value)
    assert job.position.steps_done == 0


def test_a_setting_of_the_optimizer_may_change_between_steps(job):
    job.after_step = lambda job: set_rate(job, 0.3)
    for (x,) in job.batches(numbers(24)):
        if job.backward(job.model(x).mean()):
            set_rate(job, 0.2)
    assert job.position.steps_done == 3
