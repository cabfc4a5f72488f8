"""The moving average of the weights: by its formula, in and out of the model, and kept with the job."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from train import trials
from train.trials import numbers, with_backward

import worldsize
from worldsize.errors import Misuse, ResumeError
from worldsize.train.ema import EMA


def follow(average: EMA, model: nn.Linear, values: list[float]) -> None:
    for value in values:
        model.weight.data.fill_(value)
        average.follow()


def test_it_keeps_little_of_itself_at_first_and_then_as_much_as_was_asked_for():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    average = EMA(model, 0.25)
    by_hand = 0.0
    for keep, value in zip([1 / 10, 2 / 11, 3 / 12, 0.25, 0.25], [1.0, 5.0, -2.0, 3.0, 7.0], strict=True):
        follow(average, model, [value])
        by_hand = keep * by_hand + (1 - keep) * value
        assert average.weights["weight"].item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_the_width_are_averaged_in_full(dtype):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data.fill_(1.0)
    average = EMA(model, 0.9999)
    average.steps = 10**6
    follow(average, model, [2.0] * 100)
    assert average.weights["weight"].item() == pytest.approx(2 - 0.9999**100, rel=1e-5)
    with average.applied():
        assert model.weight.dtype == dtype
        assert model.weight.item() == pytest.approx(1.01, rel=0.01)
    assert model.weight.item() == 2.0


def test_inside_the_model_has_the_average_and_afterwards_its_own_weights_again():
    job, model = trials.small_job(ema=0.5)
    with job:
        for _ in with_backward(job, numbers(40)):
            pass
        own = job.fingerprint()
        with job.ema.applied():
            assert worldsize.weights_sha256(model) == own["ema_sha256"] != own["weights_sha256"]
            assert job.state_dict()["weight"].equal(job.ema.weights["weight"])
        assert job.fingerprint() == own
        with pytest.raises(ZeroDivisionError), job.ema.applied():
            model.weight.data.div_(1 // 0)
        assert job.fingerprint() == own


def test_what_was_frozen_before_is_not_averaged():
    model = nn.Sequential(nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1))
    assert EMA(model, 0.5).weights.keys() == {"1.weight", "1.bias"}
    compiled = nn.Sequential(OrderedDict(_orig_mod=model))  # as torch.compile names what it wraps
    assert EMA(compiled, 0.5).weights.keys() == {"1.weight", "1.bias"}


def test_it_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path):
    def finish(folder: str, stop: int | None) -> dict:
        job, _ = trials.small_job(ema=0.9, save_to=folder, save_every=1)
        with job:
            job.resume(folder)
            for _ in job.epochs(2):
                for _ in with_backward(job, numbers(40)):
                    if job.position.steps_done == stop:
                        return {}
            return job.fingerprint()

    whole = finish(str(tmp_path / "whole"), None)
    assert finish(str(tmp_path / "cut"), 7) == {}
    assert finish(str(tmp_path / "cut"), None) == whole


def test_a_checkpoint_that_averages_other_weights_is_refused():
    average = EMA(nn.Linear(1, 1, bias=False), 0.5)
    with pytest.raises(ResumeError, match="averages other weights: bias is averaged only there; before"):
        average.load_state_dict(EMA(nn.Linear(1, 1), 0.5).state_dict())


@pytest.mark.parametrize(
    "do",
    [
        lambda job: next(with_backward(job, numbers(8))) and list(with_backward(job, numbers(8))),
        lambda job: job.save("/nowhere"),
        lambda job: job.ema.applied().__enter__(),
    ],
)
def test_training_and_saving_while_the_average_is_in_the_model_are_refused(do):
    job, _ = trials.small_job(ema=0.5)
    with job, job.ema.applied():
        with pytest.raises(
            Misuse, match=r"holds its averaged weights; leave `with job.ema.applied\(\)` before"
        ) as raised:
            do(job)
        assert "\n" not in str(raised.value)
