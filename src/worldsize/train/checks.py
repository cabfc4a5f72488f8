"""What a program may not do to a job: each looked at where it can first be seen, and refused in one line."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from worldsize.errors import LossError, Misuse, ResumeError
from worldsize.train import data
from worldsize.train.checkpoint import Position


def check_parts(model: nn.Module, optimizer: Optimizer, scheduler: Any, scaler: Any) -> None:
    """Can a job be made of these?"""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise Misuse(f"{name} has no shape yet; run one forward pass before worldsize.join")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise Misuse(f"{name} makes sparse gradients, which a job does not sync; build it with sparse=False")
    if any(isinstance(module, DistributedDataParallel | DataParallel) for module in model.modules()):
        raise Misuse("the model is wrapped for data parallelism already; give the bare model, the job does the rest")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Misuse("LBFGS evaluates the loss several times a step, which a job cannot; use another optimizer")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise Misuse(
            "ReduceLROnPlateau wants a measured number at each step; leave scheduler out and call its step yourself "
            "after job.evaluate, whose result is the same on all workers"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise Misuse(f"the scheduler is a {type(scheduler).__name__}, which has no step; give one of torch.optim's")
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise Misuse(f"the scaler is a {type(scaler).__name__}, but needs to be a torch.amp.GradScaler")
    known = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if foreign:
        raise Misuse(
            f"the optimizer holds {len(foreign)} parameters that are not the model's; "
            "make it from model.parameters() after the last change of the model"
        )


def check_model(model: nn.Module, trained: set[int]) -> None:
    """Before a loop: is the model in training, and are its parameters those that were joined?

    A parameter that was unfrozen or replaced since would silently differ between workers.
    """
    if not model.training:
        raise Misuse(
            "the model is in evaluation mode, so dropout and batch norm would not train; call model.train() before "
            "job.batches, and afterwards .eval() on the parts that are to stay as they are"
        )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in trained:
            raise Misuse(
                f"{name} was unfrozen or replaced after worldsize.join, so its gradient would not be synced; "
                "join when the model is complete, and freeze afterwards what is not to be trained yet"
            )


def check_reading(position: Position, identity: str, batch_per_replica: int) -> None:
    """Does a loop go on reading what this job has read so far, in the batches that this epoch began with?"""
    if position.data not in ("", identity):
        raise ResumeError(
            f"the checkpoint was trained on data {position.data}, but this is {identity} (examples, then "
            "a hash of some); resume with the same data set, or start anew"
        )
    if position.step and position.batch_per_replica not in (0, batch_per_replica):
        raise ResumeError(
            f"the checkpoint lies at step {position.step} of an epoch with batch_per_replica "
            f"{position.batch_per_replica}, now it is {batch_per_replica}; "
            f"resume with {position.batch_per_replica}, or from a checkpoint between epochs"
        )


def check_loss(loss: Any) -> None:
    """Is this the mean loss of a batch, with a graph?"""
    if not isinstance(loss, Tensor):
        raise LossError(f"job.backward got a {type(loss).__name__}, but needs the loss, a tensor with one number")
    if loss.numel() != 1:
        raise LossError(f"job.backward got a loss of shape {tuple(loss.shape)}; give its mean over the batch")
    if not loss.requires_grad:
        raise LossError("job.backward got a loss without a graph; do not detach it or compute it under no_grad")


def checked_count(count: Callable[..., Any], batch: Any) -> float:
    """How much a batch counts, as the user's function says."""
    number = float(count(*data.parts_of(batch)))
    if not 0 <= number < float("inf"):
        raise LossError(f"count gave {number} for a batch; it must give how much the batch counts, 0 or more")
    return number


def settings_of(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """The plain settings of all parameter groups: rate, momentum and so on."""
    plain = (int, float, str, bool, tuple)
    return [(name, value) for group in optimizer.param_groups for name, value in group.items() if type(value) in plain]


def check_untouched(optimizer: Optimizer, before: list[tuple[str, Any]]) -> None:
    """Did the loop's body change a setting in the middle of a step?

    The body runs once per replica, so how often it did so would depend on the number of workers.
    """
    for (name, was), (_, now) in zip(before, settings_of(optimizer), strict=False):
        if was != now:
            raise Misuse(
                f"the optimizer's {name} was changed from {was} to {now} in the middle of a step; the loop's body runs "
                "once per replica: do it in after_step, under `if job.backward(loss):`, or with scheduler="
            )
