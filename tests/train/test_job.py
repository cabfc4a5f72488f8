"""The job: what a loop reads and draws, and one line for everything that cannot be."""

import math
import re
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset
from train import trials
from train.jobs import Case
from train.trials import numbers

import worldsize
from worldsize.errors import DataError, LossError, Misuse, NotFinite, WorldsizeError
from worldsize.run.pool import run_workers
from worldsize.train.job import Job


@pytest.fixture
def job() -> Iterator[Job]:
    """A job alone in this process, left at the end."""
    made, _ = trials.small_job()
    with made:
        yield made


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


def test_two_loops_of_an_epoch_have_orders_of_their_own(job):
    orders = []
    for _ in job.epochs(2):
        for _ in range(2):
            orders.append([x.flatten().tolist() for (x,) in with_backward(job, numbers(40))])
    assert len({str(order) for order in orders}) == 4
    assert all(sorted(joint(order)) == list(range(40)) for order in orders)


def with_backward(job: Job, data: TensorDataset) -> Iterator[tuple[Tensor, ...]]:
    for batch in job.batches(data):
        job.backward(job.model(batch[0]).mean())
        yield batch


def test_random_numbers_of_the_users_own_code_do_not_depend_on_the_workers():
    case = Case(net="mlp", replicas=5)
    expected = run_workers(trials.draws_between, case, workers=1)[0]
    assert len(set(expected)) >= 2
    for workers in (2, 3):
        assert run_workers(trials.draws_between, case, workers=workers) == [expected] * workers


@pytest.mark.parametrize("examples", [1, 249, 250, 777])
def test_an_evaluation_reads_every_example_once_and_has_the_same_bits_for_every_number_of_workers(examples):
    mean, expected, seen = run_workers(trials.evaluate_alone, examples, workers=1)[0]
    assert mean == (examples - 1) / 2
    assert seen == list(range(examples))
    for workers in (2, 3):
        found = run_workers(trials.evaluate_alone, examples, workers=workers)
        assert [theirs[:2] for theirs in found] == [(mean, expected)] * workers
        assert sorted(place for _, _, places in found for place in places) == seen


def test_after_step_is_called_on_workers_without_examples_too():
    assert run_workers(trials.steps_seen, 4, 9, workers=4) == [[1, 2]] * 4


def test_a_module_held_in_evaluation_stays_there_after_an_evaluation():
    model = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1)) as job:
        model[1].eval()
        job.evaluate(lambda x: model(x).flatten(), numbers(10))
        assert [module.training for module in model] == [True, False, True]


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


def backwards(job: Job, do: object) -> None:
    for (x,) in job.batches(numbers(8)):
        do(job, x)


LOSSES = {
    "no tensor": (lambda job, x: job.backward(1.0), LossError, "job.backward got a float, but needs the loss"),
    "no scalar": (lambda job, x: job.backward(job.model(x)), LossError, r"a loss of shape \(2, 1\); give its mean"),
    "no graph": (
        lambda job, x: job.backward(job.model(x).mean().detach()),
        LossError,
        "without a graph; do not detach",
    ),
    "twice": (twice, LossError, "called without a batch, or twice for one; call it once per pass"),
    "not called": (
        lambda job, x: None,
        LossError,
        "batch of replica 0 at step 0 had no job.backward; call it for every",
    ),
    "saved half-way": (lambda job, x: job.save("/nowhere"), Misuse, "in the middle of a step; use save_every"),
    "infinite": (
        lambda job, x: job.backward(job.model(x).mean() * math.inf),
        NotFinite,
        r"the loss is -?inf at step 0, replica 0, worker 0; a smaller learning rate",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_none_is_refused_in_one_line(job, name):
    do, kind, says = LOSSES[name]
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
        (lambda job: list(job.batches()), Misuse, "job.batches needs a data set to read"),
        (lambda job: list(job.batches(Stream())), DataError, "Stream is no map-style data set.*give one with __len__"),
        (lambda job: list(job.batches(numbers(0))), DataError, "TensorDataset is empty; give a data set with at least"),
        (lambda job: list(job.batches(numbers(8), numbers(0))), DataError, "TensorDataset is empty"),
        (lambda job: list(job.batches(numbers(8), count=lambda x: -1)), LossError, "count gave -1.0 for a batch"),
        (
            lambda job: list(job.batches(numbers(8), count=lambda x: 0)),
            LossError,
            "count gave 0 for every batch of step 0",
        ),
        (
            lambda job: job.evaluate(lambda x: x.mean(), numbers(3)),
            LossError,
            r"gave \(\) for 3 examples; give a tensor",
        ),
        (lambda job: job.evaluate(lambda x: 1.0, numbers(3)), LossError, "gave float for 3 examples"),
        (lambda job: job.evaluate(lambda x: x[:, 0], numbers(0)), DataError, "empty"),
    ],
)
def test_what_a_job_cannot_do_is_said_in_one_line(job, call, kind, says):
    with pytest.raises(kind, match=says) as raised:
        call(job)
    assert "\n" not in str(raised.value)


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
        ({"limit_s": math.inf}, "a limit of inf s cannot be; a wait must end"),
        ({"limit_s": -1}, "a limit of -1 s cannot be; a wait must end"),
        ({"save_to": "x", "save_every": 2.5}, "save_every is 2.5, but must be a whole number from 1"),
        ({"save_to": "/proc/x"}, "save_to /proc/x cannot be written"),
        ({"scheduler": 3}, "the scheduler is a int, which has no step"),
        ({"scaler": 3}, "the scaler is a int, but needs to be a torch.amp.GradScaler"),
        ({"sync": "fast"}, "unknown sync 'fast'; there are 'exact' and 'ddp'"),
        ({"bucket_mb": 0}, "bucket_mb is 0, but a bucket needs a size above 0; the default is 25"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0, but a norm to clip at must be above 0"),
        ({"save_every": 3}, "save_every=3 needs a folder in save_to"),
        ({"device": "tpu"}, "device 'tpu': worldsize trains on 'cpu' or 'cuda'"),
    ],
)
def test_what_cannot_be_joined_is_said_in_one_line(options, says):
    with pytest.raises(Misuse, match=re.escape(says)) as raised:
        trials.small_job(**options)
    assert "\n" not in str(raised.value)


def joined(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: object) -> Job:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    return worldsize.join(model, optimizer, **options)


def test_an_optimizer_of_other_parameters_is_refused():
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    error = trials.error_of(joined, nn.Linear(1, 1), other)
    close_any()
    assert str(error).startswith("the optimizer holds 2 parameters that are not the model's; make it from")


def test_a_model_with_nothing_to_train_is_refused():
    error = trials.error_of(joined, nn.Linear(1, 1).requires_grad_(False))
    close_any()
    assert str(error) == "the model has no parameter that requires a gradient; unfreeze at least one"


def close_any() -> None:
    from worldsize.parallel.world import current

    if current() is not None:
        current().leave()


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


@pytest.mark.parametrize(
    ("function", "arguments", "workers", "kind", "says"),
    [
        (trials.small_job, (2,), 3, Misuse, "3 workers cannot share 2 replicas.*use at most 2 workers, or at least 3"),
        (trials.diverge, (3, 2), 2, NotFinite, "the loss is nan at step 3, replica 2, worker 1; a smaller"),
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
