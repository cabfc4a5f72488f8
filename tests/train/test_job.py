"""The job: what a loop reads and draws, and one line for everything that cannot be."""

import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from train import trials
from train.jobs import Case
from train.trials import backwards, close_any, joined, numbers, with_backward

from worldsize.errors import DataError, LossError, Misuse, WorldsizeError
from worldsize.run.pool import run_workers
from worldsize.train.job import Job


def joint(lists: list[list]) -> list:
    return [item for one in lists for item in one]


# ---- what is read and drawn ------------------------------------------------------------------------------------------


def test_what_a_replica_reads_depends_neither_on_the_workers_nor_on_the_resume_point(tmp_path):
    case = Case(replicas=5, batch_per_replica=2, examples=27, epochs=2, loops=2)
    expected = sorted(run_workers(trials.reads, case, workers=1)[0])
    assert len(expected) == 2 * 2 * (5 + 5 + 5)  # a last batch of 7: each replica has an example
    for workers in (2, 3, 5):
        assert sorted(joint(run_workers(trials.reads, case, workers=workers))) == expected
    for stop, first, then in [(1, 2, 3), (4, 1, 2), (8, 3, 1)]:
        folder = str(tmp_path / str(stop))
        cut = Case(**{**vars(case), "folder": folder, "save_every": 1, "stop_after": stop})
        before = joint(run_workers(trials.reads, cut, workers=first))
        after = joint(run_workers(trials.reads, case, folder, workers=then))
        assert sorted(before + after) == expected


def test_what_a_replica_reads_when_the_batch_grows_depends_neither_on_the_workers_nor_on_the_resume_point(tmp_path):
    expected = sorted(run_workers(trials.reads_growing, 57, str(tmp_path / "whole"), None, workers=1)[0])
    order = [torch.randperm(57, generator=torch.Generator().manual_seed(epoch)).tolist() for epoch in range(3)]
    assert expected == [
        (epoch, step, replica, order[epoch][start + replica : start + size : 5])
        for epoch, size in enumerate((10, 20, 40))
        for step, start in enumerate(range(0, 57, size))
        for replica in range(5)
    ]
    for stop, first, then in [(7, 3, 2), (10, 1, 5)]:  # in the second and in the third epoch
        folder = str(tmp_path / str(stop))
        before = joint(run_workers(trials.reads_growing, 57, folder, stop, workers=first))
        assert sorted(before + joint(run_workers(trials.reads_growing, 57, folder, None, workers=then))) == expected


def test_an_epoch_goes_on_in_the_batches_it_began_with(tmp_path):
    job, _ = trials.small_job()
    with job:
        for (x,) in job.batches(numbers(40), batch_per_replica=4):
            if job.backward(job.model(x).mean()):
                break
        job.save(tmp_path)
    job, _ = trials.small_job()
    with job:
        assert job.resume(tmp_path)
        error = trials.error_of(list, job.batches(numbers(40)))
        assert str(error) == (
            "the checkpoint lies at step 1 of an epoch with batch_per_replica 4, now it is 2; "
            "resume with 4, or from a checkpoint between epochs"
        )
        assert len(list(with_backward_of(job, 4))) == 4 + 4  # 40 examples, of which a step of 16 is done


def with_backward_of(job: Job, batch_per_replica: int) -> Iterator[Tensor]:
    for (x,) in job.batches(numbers(40), batch_per_replica=batch_per_replica):
        job.backward(job.model(x).mean())
        yield x


def test_two_loops_of_an_epoch_have_orders_of_their_own(job):
    orders = []
    for _ in job.epochs(2):
        for _ in range(2):
            orders.append([x.flatten().tolist() for (x,) in with_backward(job, numbers(40))])
    assert len({str(order) for order in orders}) == 4
    assert all(sorted(joint(order)) == list(range(40)) for order in orders)


def test_random_numbers_of_the_users_own_code_do_not_depend_on_the_workers():
    case = Case(net="mlp", replicas=5)
    expected = run_workers(trials.draws_between, case, workers=1)[0]
    assert len(set(expected)) >= 2
    for workers in (2, 3):
        assert run_workers(trials.draws_between, case, workers=workers) == [expected] * workers


def test_after_step_is_called_on_workers_without_examples_too():
    assert run_workers(trials.steps_seen, 4, 9, workers=4) == [[1, 2]] * 4


def test_a_loop_that_is_left_can_be_followed_by_the_next_epoch(job):
    for epoch in job.epochs(2):
        for _ in with_backward(job, numbers(40)):
            if job.position.step == 2:
                break
        assert (job.position.epoch, job.position.step, job.position.steps_done) == (epoch, 2, 2 * epoch + 2)


def test_backward_says_when_the_weights_have_changed(job):
    said = []
    for (x,) in job.batches(numbers(8)):
        before = job.model.weight.item()
        said.append((job.backward(job.model(x).mean()), job.model.weight.item() != before))
    assert said == [(False, False)] * 3 + [(True, True)]


# ---- what cannot be --------------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def twice(job: Job, x: Tensor) -> None:
    job.backward(job.model(x).mean())
    job.backward(job.model(x).mean())


OUT_OF_TURN = {
    "twice": (twice, LossError, "called without a batch, or twice for one; call it once per pass"),
    "not called": (
        lambda job, x: None,
        LossError,
        "batch of replica 0 at step 0 had no job.backward; call it for every",
    ),
    "saved half-way": (lambda job, x: job.save("/nowhere"), Misuse, "in the middle of a step; use save_every"),
}


@pytest.mark.parametrize("name", OUT_OF_TURN)
def test_a_backward_out_of_turn_is_refused_in_one_line(job, name):
    do, kind, says = OUT_OF_TURN[name]
    with pytest.raises(kind, match=says) as raised:
        backwards(job, do)
    assert "\n" not in str(raised.value)


def test_backward_outside_of_a_loop_is_refused(job):
    with pytest.raises(LossError, match="called without a batch"):
        job.backward(job.model(torch.ones(1, 1)).mean())


def test_a_loop_can_be_run_again_after_an_error(job):
    with pytest.raises(LossError):
        backwards(job, lambda job, x: None)
    for _ in with_backward(job, numbers(8)):
        pass
    assert job.position.steps_done == 1


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (
            lambda job: list(job.batches(numbers(8), batch_per_replica=0)),
            Misuse,
            "batch_per_replica is 0, but must be a whole number from 1",
        ),
        (lambda job: list(job.batches()), Misuse, "job.batches needs a data set to read"),
        (lambda job: list(job.batches(Stream())), DataError, "Stream is no map-style data set.*give one with __len__"),
        (lambda job: list(job.batches(numbers(0))), DataError, "TensorDataset is empty; give a data set with at least"),
        (lambda job: list(job.batches(numbers(8), numbers(0))), DataError, "TensorDataset is empty"),
        (
            lambda job: list(job.batches(numbers(8), count=lambda x: 0)),
            LossError,
            "count gave 0 for every batch of step 0",
        ),
    ],
)
def test_what_a_job_cannot_do_is_said_in_one_line(job, call, kind, says):
    with pytest.raises(kind, match=says) as raised:
        call(job)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limit_s": math.inf}, "a limit of inf s cannot be; a wait must end"),
        ({"limit_s": -1}, "a limit of -1 s cannot be; a wait must end"),
        ({"save_to": "/proc/x"}, "save_to /proc/x cannot be written"),
        ({"device": "tpu"}, "device 'tpu': worldsize trains on 'cpu' or 'cuda'"),
    ],
)
def test_what_cannot_be_joined_is_said_in_one_line(options, says):
    with pytest.raises(Misuse, match=re.escape(says)) as raised:
        trials.small_job(**options)
    assert "\n" not in str(raised.value)


def test_a_model_with_nothing_to_train_is_refused():
    error = trials.error_of(joined, nn.Linear(1, 1).requires_grad_(False))
    close_any()
    assert str(error) == "the model has no parameter that requires a gradient; unfreeze at least one"


@pytest.mark.parametrize(
    ("function", "arguments", "workers", "kind", "says"),
    [
        (trials.read_different_data, (), 2, Misuse, "the workers differ in the training data: worker 0 has '64-"),
        *(
            (trials.differ_in, (name,), 2, Misuse, f"the workers differ in {name}: worker 0 has")
            for name in ("seed", "keep_short", "clip_norm", "batch_per_replica")
        ),
    ],
)
def test_what_workers_cannot_do_together_is_said_in_one_line(function, arguments, workers, kind, says):
    with pytest.raises(kind, match=says) as raised:
        run_workers(function, *arguments, workers=workers)
    assert isinstance(raised.value, WorldsizeError)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_a_step_whose_last_replica_counts_nothing_is_saved_like_any_other(tmp_path, workers):
    found = run_workers(trials.skip_the_last_replica_and_save, str(tmp_path), workers=workers)
    assert found == [(1, ["step-00000001"])] * workers
