"""The settings of a job: what cannot be is refused before anything is started, in one line."""

import math
import re

import numpy as np
import pytest
from torch import nn
from train import trials
from train.trials import joined, numbers

from worldsize.errors import Misuse
from worldsize.run.pool import run_workers
from worldsize.train.experiment import Settings


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"replicas": 0}, "replicas is 0, but must be a whole number from 1 to 1,048,576"),
        ({"replicas": 2.0}, "replicas is 2.0, but must be a whole number"),
        ({"replicas": True}, "replicas is True, but must be a whole number"),
        ({"replicas": 2**21}, "replicas is 2097152, but must be a whole number from 1 to 1,048,576"),
        ({"batch_per_replica": -1}, "batch_per_replica is -1, but must be"),
        ({"seed": -1}, "seed is -1, but must be a whole number from 0"),
        ({"seed": 2**70}, "seed is 1180591620717411303424, but must be"),
        ({"bucket_mb": math.nan}, "bucket_mb is nan, but a bucket needs a size above 0"),
        ({"clip_norm": "a"}, "clip_norm is a, but a norm to clip at must be above 0"),
        ({"save_to": "x", "save_every": 2.5}, "save_every is 2.5, but must be a whole number from 1"),
        ({"sync": "fast"}, "unknown sync 'fast'; there are 'exact' and 'ddp'"),
        ({"bucket_mb": 0}, "bucket_mb is 0, but a bucket needs a size above 0; the default is 25"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0, but a norm to clip at must be above 0"),
        ({"ema": 1.0}, "ema is 1.0, but a decay must be above 0 and below 1, such as 0.999"),
        ({"ema": 0}, "ema is 0, but a decay must be above 0 and below 1"),
        ({"ema": math.nan}, "ema is nan, but a decay must be above 0 and below 1"),
        ({"ema": "0.9"}, "ema is 0.9, but a decay must be"),
        ({"save_every": 3}, "save_every=3 needs a folder in save_to"),
    ],
)
def test_what_cannot_be_asked_for_is_said_in_one_line(options, says):
    with pytest.raises(Misuse, match=re.escape(says)) as raised:
        trials.small_job(**options)
    assert "\n" not in str(raised.value)


def test_whole_numbers_of_any_kind_will_do():
    settings = Settings(replicas=np.int64(4), batch_per_replica=2**31, seed=2**62)
    assert settings.facts()["replicas"] == 4


def test_where_and_how_often_to_save_and_the_buckets_make_no_other_experiment(tmp_path):
    plain = Settings(replicas=4, batch_per_replica=2)
    assert (
        Settings(replicas=4, batch_per_replica=2, save_to=tmp_path, save_every=3, bucket_mb=1.0).facts()
        == plain.facts()
    )
    for other in (
        {"seed": 1},
        {"clip_norm": 1.0},
        {"keep_short": False},
        {"sync": "ddp"},
        {"batch_per_replica": 3},
        {"ema": 0.9},
    ):
        assert Settings(**{"replicas": 4, "batch_per_replica": 2, **other}).facts() != plain.facts()


def test_a_replica_too_small_for_batch_norm_is_refused_before_the_first_step():
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4))
    with joined(model, replicas=4, batch_per_replica=2) as job:
        error = trials.error_of(list, job.batches(numbers(14)))
        assert str(error).startswith(
            "a replica would read 1 example at the last of 2 steps (14 examples, 4 replicas of 2)"
        )
        assert str(error).endswith("(keep_short=False, --drop-short), or change replicas or batch per replica")


def test_too_few_examples_for_one_whole_batch_are_refused():
    with joined(nn.Linear(1, 1), replicas=4, batch_per_replica=4, keep_short=False) as job:
        error = trials.error_of(list, job.batches(numbers(15)))
    assert str(error).startswith("15 examples make no whole global batch of 16, and short ones are dropped; keep")


def test_more_workers_than_replicas_are_refused_in_one_line():
    says = "3 workers cannot share 2 replicas.*use at most 2 workers, or at least 3"
    with pytest.raises(Misuse, match=says) as raised:
        run_workers(trials.small_job, 2, workers=3)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("examples", "workers", "fits"), [(19, 2, True), (17, 1, True), (17, 2, False), (18, 4, False)]
)
def test_under_ddp_every_worker_needs_an_example_at_every_step(examples, workers, fits):
    settings = Settings(replicas=4, batch_per_replica=4, sync="ddp")
    if fits:
        assert settings.check_shards(examples, batch_norm=False, workers=workers).steps == 2
    else:
        with pytest.raises(Misuse, match="which leaves a worker without any, and stock DDP would wait for it"):
            settings.check_shards(examples, batch_norm=False, workers=workers)


@pytest.mark.parametrize(
    ("sync", "workers", "device", "says"),
    [
        ("exact", 1, "cpu", ""),
        ("exact", 4, "cuda", ""),
        (
            "exact",
            2,
            "cuda",
            "4 replicas on 2 workers cannot run in lockstep, since on a GPU .*; use device 'cpu', or 4",
        ),
        ("ddp", 4, "cpu", "4 replicas on 4 workers cannot run in lockstep, since sync 'ddp' .*; use sync 'exact'"),
    ],
)
def test_where_replicas_cannot_run_in_lockstep(sync, workers, device, says):
    settings = Settings(replicas=4, batch_per_replica=4, sync=sync)
    if not says:
        settings.check_lockstep(workers, device)
        return
    with pytest.raises(Misuse, match=says) as raised:
        settings.check_lockstep(workers, device)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("sync", "examples", "workers", "says"),
    [
        ("exact", 16, 4, ""),
        ("exact", 16, 2, "but 2 workers compute some one after another; use job.lockstep, 4 workers, or ghost"),
        ("ddp", 16, 2, "but 2 workers compute some one after another; use sync 'exact', 4 workers, or ghost"),
        ("exact", 18, 4, "the last step has examples for 2 of 4 replicas.*; use job.lockstep, or drop the short batch"),
    ],
)
def test_one_after_another_no_replica_can_wait_for_the_next(sync, examples, workers, says):
    settings = Settings(replicas=4, batch_per_replica=4, sync=sync)
    if not says:
        settings.check_shards(examples, batch_norm=False, workers=workers, together=True)
        return
    with pytest.raises(Misuse, match=says):
        settings.check_shards(examples, batch_norm=False, workers=workers, together=True)
