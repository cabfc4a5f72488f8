"""Lockstep: big-batch batch norm on any number of workers, each replica as if it ran alone, and no thread left."""

import threading
from functools import partial

import pytest
import torch
from parallel import norms
from torch import nn
from train import drills
from train.drills import Drill

from worldsize.errors import LossError, Misuse, NotFinite
from worldsize.parallel.norm import convert
from worldsize.parallel.world import join_world
from worldsize.run.pool import run_workers, tell
from worldsize.train import lockstep, loop
from worldsize.train.buffers import ReplicaBuffers
from worldsize.train.job import join
from worldsize.train.settings import Run

LIMIT_S = 60


@pytest.fixture
def job():
    with drills.job_of(Drill()) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.mark.parametrize("whole_net", [False, True])
@pytest.mark.parametrize(("sizes", "affine"), [([6, 6], True), ([1, 7], False), ([5, 1, 2, 3], True)])
def test_replicas_in_lockstep_have_the_norm_of_one_big_batch(sizes, affine, whole_net):
    model, x, y = norms.case(sum(sizes), affine, whole_net)
    world = join_world(device="cpu")
    buffers = ReplicaBuffers(convert(model, "sync"), world, len(sizes))
    passes = {
        replica: partial(norms.one_pass, model, *both, len(both[0]) / len(x))
        for replica, both in enumerate(zip(x.split(sizes), y.split(sizes), strict=True))
    }
    parts = lockstep.run(passes, buffers, lambda rows: rows).values()
    whole = norms.one_pass(*norms.case(sum(sizes), affine, whole_net), 1.0)
    found = {name: torch.cat([part[name] for part in parts]) for name in ("out", "x")}
    found |= {f"grad {name}": parameter.grad for name, parameter in model.named_parameters()}  # added up as they came
    for row in buffers.gather():
        for name, expected in (whole | found | dict(zip(buffers.names, row, strict=True))).items():
            error = (expected - whole[name]).double().norm() / max(1.0, whole[name].double().norm())
            assert error < (1e-12 if whole_net else 1e-6), name
    world.leave()


@pytest.mark.parametrize(
    ("todo", "workers"),
    [
        (
            [
                Drill(),
                Drill(optimizer="lamb", clip_norm=0.5, counted=True),
                Drill(examples=26),  # the last step has examples for 2 of 4 replicas
                Drill(autocast=True),
            ],
            (1, 2, 3, 4),
        ),
        ([Drill(replicas=6, batch_per_replica=2, clip_norm=0.5)], (1, 4)),
    ],
)
def test_all_numbers_of_workers_give_one_hash(todo, workers):
    alone, *others = (run_workers(drills.train_all, todo, size, workers=size, limit_s=LIMIT_S) for size in workers)
    for found in others:
        assert all(theirs == alone[0] for theirs in found)
    assert len({found["weights_sha256"] for found in alone[0]}) == len(todo)
    assert all(found["unused"] for found in alone[0])


def test_a_compiled_model_gives_what_it_gives_uncompiled_when_its_compiler_changes_no_bit():
    todo = [Drill(examples=24, compiled=compiled) for compiled in (False, True)]
    ((plain, compiled),) = run_workers(drills.train_all, todo, 1, workers=1, limit_s=LIMIT_S)
    assert plain == compiled


def test_a_model_without_norms_across_workers_has_the_bits_of_the_plain_loop():
    found = []
    for door in ("batches", "lockstep"):
        with join(*linear(), replicas=3, batch_per_replica=4, device="cpu") as job:
            counts = iter([1, 2, 0, 0, 3, 1])  # replicas that count nothing are left out, at the end and before
            options = {"count": lambda x, y, counts=counts: next(counts)}
            if door == "lockstep":
                job.lockstep(lambda x, y: job.model(x).square().mean(), drills.examples(24), **options)
            else:
                for x, _ in job.batches(drills.examples(24), **options):
                    job.backward(job.model(x).square().mean())
            found.append((job.fingerprint(), job.mean_loss()))
    assert found[0] == found[1]


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def test_a_run_is_resumed_at_another_number_of_workers(tmp_path):
    run = Run(
        model="cnn", data="generated:50:1x8x8:4", norm="sync", replicas=4, batch_per_replica=3, epochs=2, dropout=0.2
    )
    whole, *_ = run_workers(loop.train_worker, run, None, None, tell, workers=2, limit_s=LIMIT_S)
    run_workers(loop.train_worker, run, str(tmp_path), 3, tell, workers=1, limit_s=LIMIT_S)
    rest, *_ = run_workers(loop.train_worker, run, str(tmp_path), None, tell, workers=4, limit_s=LIMIT_S)
    for name in ("weights_sha256", "buffers_sha256", "loss"):
        assert rest[name] == whole[name]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("forward", KeyError, "stumbled"),
        ("backward", KeyError, "stumbled"),
        ("elsewhere", Misuse, "replicas 0 and 2 of one step do not meet at the same batch norms"),
        ("no norm", Misuse, "replicas 0 and 2 of one step do not meet at the same batch norms"),
        ("nan", NotFinite, "the loss is nan at step 1, replica 2, worker 0"),
    ],
)
def test_what_goes_wrong_in_one_replica_ends_all_and_the_job_can_go_on(job, how, kind, says):
    with pytest.raises(kind, match=says):
        drills.go_wrong(job, how)
    assert job.position.step == 1
    drills.go_wrong(job, "not at all")
    assert job.position.step == 1 + 3


def test_the_replica_and_worker_of_a_loss_that_is_not_finite_are_named():
    with pytest.raises(NotFinite, match="the loss is nan at step 1, replica 2, worker 1; "):
        run_workers(drills.nan, workers=2, limit_s=LIMIT_S)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda job: job.lockstep(lambda: None), Misuse, "job.lockstep needs a data set to read"),
        (lambda job: job.lockstep(lambda x, y: x, drills.examples(20)), LossError, "got a loss of shape"),
        (
            lambda job: job.lockstep(lambda x, y: x, drills.examples(20), count=lambda x, y, on=[1, 1, 0, 1]: on.pop()),
            LossError,
            "replica 1 at step 0 counts nothing; neither sync 'ddp' nor batch norm across workers can skip it",
        ),
        (
            lambda job: job.lockstep(lambda x, y: job.backward(x.mean()), drills.examples(20)),
            LossError,
            "job.backward was called without a batch",
        ),
        (
            lambda job: job.lockstep(lambda x, y: job.model(x).mean(), drills.examples(13)),
            Misuse,
            "got one example in all, which has no spread; drop the short batch",
        ),
        (lambda job: next(job.batches(drills.examples(20))), Misuse, "one after another; use job.lockstep, 4 workers"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(job, call, kind, says):
    with pytest.raises(kind, match=says) as raised:
        call(job)
    assert "\n" not in str(raised.value)
