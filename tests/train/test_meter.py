"""The noise scale measured in training: right on a problem of known answer, the same for every number of workers."""

import pytest
import torch
from torch import nn
from train import noises

from worldsize.errors import Misuse
from worldsize.run.pool import run_workers
from worldsize.train.job import join
from worldsize.train.meter import DdpNoiseMeter, NoiseMeter

LIMIT_S = 60


@pytest.mark.parametrize("replicas", [2, 5])
def test_a_job_finds_the_known_scale_whatever_the_number_of_workers(replicas):
    found = [run_workers(noises.on_a_job, replicas, 8, 1, workers=n, limit_s=LIMIT_S)[0] for n in (1, 2)]
    assert found[0] == found[1], "to the last bit"
    scale = found[0][0]
    assert scale.scale == pytest.approx(noises.known(), rel=0.1)
    assert scale.low < noises.known() < scale.high


def test_loss_scaling_does_not_show():
    plain, scaled = (
        run_workers(noises.on_a_job, 4, 8, 5, fp16, workers=1, limit_s=LIMIT_S)[0] for fp16 in (False, True)
    )
    assert scaled[0].scale == pytest.approx(plain[0].scale, rel=1e-4)


def test_measuring_changes_no_bit():
    often, never = (run_workers(noises.on_a_job, 4, 8, every, workers=1, limit_s=LIMIT_S)[0] for every in (1, 400))
    assert often[1] == never[1]
    assert (often[0].steps, never[0].steps) == (500, 2)


def test_a_step_that_was_given_up_and_taken_anew_counts_once():
    (found,) = run_workers(noises.after_an_error, workers=1, limit_s=LIMIT_S)
    assert found.steps == 10
    assert found.scale < 1e-3, "gradients that are all alike have no noise"


def test_stock_ddp_finds_it_through_a_communication_hook():
    found = run_workers(noises.on_stock_ddp, 8, workers=2, limit_s=LIMIT_S)
    assert found[0].scale == found[1].scale == pytest.approx(noises.known(), rel=0.1)
    assert found[0].steps == 500


def test_what_cannot_be_measured_is_said_in_one_line():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with join(model, optimizer, replicas=2, batch_per_replica=1, sync="ddp", device="cpu") as job:
        with pytest.raises(Misuse, match="sync 'ddp' keeps no gradient of a single replica"):
            NoiseMeter(job)
        with pytest.raises(Misuse, match="every is 0, but steps are counted from 1"):
            NoiseMeter(job, every=0)
    with pytest.raises(Misuse, match="batch_per_worker is 0"):
        DdpNoiseMeter(0)
