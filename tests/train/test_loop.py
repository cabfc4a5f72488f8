"""Our own loop: the plan follows from what was asked, and a run does what was planned."""

import json
from dataclasses import replace

import pytest

from worldsize.errors import Misuse
from worldsize.run.pool import run_workers, tell
from worldsize.train.loop import MOST_RECORDS, make_plan, train_worker
from worldsize.train.settings import Run

RUN = Run(model="mlp", data="generated:64:1x8x8:4", replicas=2, batch_per_replica=8, epochs=2)


@pytest.mark.parametrize(
    ("asked", "rate", "words"),
    [
        ({}, 0.1 / 16, "linear: 0.1 x 16 / 256"),
        ({"optimizer": "adamw"}, 1e-3 / 4, "sqrt: 0.001 x sqrt(16 / 256)"),
        ({"optimizer": "adamw", "lr_rule": "linear"}, 1e-3 / 16, "linear: 0.001 x 16 / 256"),
        ({"lr": 0.3, "reference_batch": 8}, 0.6, "linear: 0.3 x 16 / 8"),
        ({"reference_batch": 16}, 0.1, "linear: the rate as it is"),
        ({"lr_rule": "none"}, 0.1, "none: the rate as it is"),
        ({"model": "transformer", "data": "sums"}, 3e-3 / 4, "sqrt: 0.003 x sqrt(16 / 256)"),
    ],
)
def test_the_rate_follows_the_global_batch_by_the_rule_and_is_said_in_words(asked, rate, words):
    run = replace(RUN, **asked)
    plan = make_plan(run, 1)
    assert plan.learning_rate == pytest.approx(rate)
    assert plan.rule_in_words(run) == words


def test_what_was_not_asked_for_is_the_recipes():
    plan = make_plan(replace(RUN, model="cnn", epochs=None), 2)
    assert (plan.epochs, plan.epoch.steps, plan.steps, plan.warmup_steps, plan.optimizer) == (6, 4, 24, 2, "sgd")
    plan = make_plan(replace(RUN, model="cnn", warmup=0.0, optimizer="adamw"), 2)
    assert (plan.epochs, plan.warmup_steps, plan.optimizer) == (2, 0, "adamw")


GROWN = replace(
    RUN, model="cnn", data="generated:236:1x8x8:4", replicas=4, batch_per_replica=3, epochs=4, schedule="grow"
)


def test_the_batch_grows_in_stages_and_the_plan_tells_them():
    plan = make_plan(replace(GROWN, grow_to=48, warmup=1.0), 1)
    assert plan.course() == (
        "2 epochs of 20 steps of 12, then 1 epoch of 5 steps of 48 at 0.4 x the rate, "
        "then 1 epoch of 5 steps of 48 at 0.04 x the rate"
    )
    assert (plan.steps, plan.epochs, plan.warmup_steps) == (50, 4, 20)
    assert [plan.epoch_at(step) for step in (0, 19, 20, 39, 40, 44, 45, 49, 50)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert [plan.of_epoch(place)[0].global_batch for place in range(5)] == [12, 12, 48, 48, 48]
    assert make_plan(GROWN, 1).stages[-1][0].global_batch == 12, "a tenth of 236 examples is less than twice 12"


def test_as_many_steps_as_at_the_reference_batch_are_more_epochs_at_a_larger_one():
    plan = make_plan(replace(RUN, same_steps=True, reference_batch=4), 1)
    assert (plan.asked, plan.epochs, plan.steps) == (2, 8, 2 * 64 // 4)
    assert make_plan(RUN, 1).facts(RUN, 1, "cpu", "gloo")["epochs_asked"] == RUN.epochs


@pytest.mark.parametrize(
    ("asked", "workers", "lockstep"),
    [
        ({"norm": "batch"}, 1, False),
        ({"norm": "sync"}, 1, True),
        ({"norm": "sync"}, 2, False),
        ({"norm": "sync", "data": "generated:65:1x8x8:4"}, 2, True),
        ({"norm": "sync", "sync": "ddp"}, 2, False),
    ],
)
def test_replicas_run_in_lockstep_where_they_need_each_other_and_have_no_worker_each(asked, workers, lockstep):
    assert make_plan(replace(RUN, model="cnn", device="cpu", **asked), workers).lockstep == lockstep


@pytest.mark.parametrize(("workers", "backend"), [(1, "none"), (2, "gloo")])
def test_the_facts_of_a_plan_are_json(workers, backend):
    facts = make_plan(RUN, workers).facts(RUN, workers, "cpu", "gloo")
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["workers"], facts["backend"], facts["global_batch"], facts["steps"]) == (workers, backend, 16, 8)


@pytest.mark.parametrize(
    ("asked", "workers", "says"),
    [
        ({}, 3, "3 workers cannot share 2 replicas"),
        ({"warmup": 3.0}, 1, "a warm-up of 12 steps does not fit a run of 8"),
        ({"model": "cnn", "data": "generated:65:1x8x8:4", "batch_per_replica": 32}, 1, "batch norm needs at least 2"),
        ({"schedule": "grow", "grow_to": 65}, 1, "--grow-to 65 is more than the 64 examples; use at most those"),
        (
            {"schedule": "grow", "grow_to": 32, "epochs": 4, "warmup": 3.0},
            1,
            "a warm-up of 12 steps would go on when the batch grows, after 8; use a shorter one",
        ),
        ({"seed": -1}, 1, "seed is -1, but must be a whole number from 0"),
    ],
)
def test_what_cannot_be_trained_is_refused_while_it_is_planned(asked, workers, says):
    with pytest.raises(Misuse, match=says):
        make_plan(replace(RUN, **asked), workers)


def test_every_worker_has_the_same_result_and_the_first_alone_tells():
    heard = []
    found = run_workers(
        train_worker,
        RUN,
        None,
        None,
        tell,
        workers=2,
        on_message=lambda worker, message: heard.append((worker, message)),
    )
    for name in ("weights_sha256", "buffers_sha256", "loss", "accuracy", "steps_done", "finished"):
        assert found[0][name] == found[1][name]
    assert (found[0]["steps_done"], found[0]["finished"]) == (8, True)
    assert {worker for worker, _ in heard} == {0}
    assert [message["step"] for _, message in heard if message["kind"] == "step"] == list(range(1, 9))
    assert [message["epoch"] for _, message in heard if message["kind"] == "evaluated"] == [1, 2]


def test_a_run_stops_after_the_step_that_was_named_and_goes_on_from_there(tmp_path):
    (whole,) = run_workers(train_worker, RUN, None, None, tell, workers=1)
    (part,) = run_workers(train_worker, RUN, str(tmp_path), 3, tell, workers=1)
    assert (part["steps_done"], part["finished"]) == (3, False)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    (rest,) = run_workers(train_worker, RUN, str(tmp_path), None, tell, workers=1)
    assert rest["weights_sha256"] == whole["weights_sha256"] != part["weights_sha256"]
    steps, events = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("steps.jsonl", "events.jsonl")
    )
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert [event["event"] for event in events] == ["resumed", "evaluated", "evaluated"]
    assert (events[0]["step"], events[0]["workers"]) == (3, 1)


def test_the_rate_recorded_is_the_one_that_the_step_took(tmp_path):
    run = replace(RUN, warmup=1, schedule="constant")
    run_workers(train_worker, run, str(tmp_path), None, tell, workers=1)
    rates = [json.loads(line)["rate"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    top = make_plan(run, 1).learning_rate
    assert rates == pytest.approx([top / 4, top / 2, top * 3 / 4, top, top, top, top, top])


def test_growing_batches_noise_and_averages_give_one_hash_also_when_interrupted(tmp_path):
    run = replace(GROWN, grow_to=48, warmup=1.0, dropout=0.2, gradient_noise=0.5, ema=0.9)

    def result(workers: int, folder: str | None = None, stop: int | None = None) -> dict:
        return run_workers(train_worker, run, folder, stop, tell, workers=workers, limit_s=60)[0]

    def end_of(found: dict) -> dict:
        names = ("weights_sha256", "buffers_sha256", "ema_sha256", "loss", "accuracy", "plain_loss", "plain_accuracy")
        return {name: found[name] for name in names}

    alone = result(1)
    assert alone["examples_per_s"] * alone["train_s"] == pytest.approx(4 * 236, rel=0.05), "each example, each epoch"
    whole = end_of(alone)
    assert end_of(result(2)) == whole
    assert result(3, str(tmp_path), 43)["steps_done"] == 43  # three steps into the third epoch
    rest = result(2, str(tmp_path))
    assert end_of(rest) == whole
    assert (rest["steps_done"], rest["finished"], rest["global_batch_at_end"]) == (50, True, 48)
    assert whole["weights_sha256"] != whole["ema_sha256"]
    assert whole["loss"] != whole["plain_loss"]
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    top = make_plan(run, 1).learning_rate
    expected = [(1, 12, top * (step + 1) / 20) for step in range(20)] + [(2, 12, top)] * 20
    expected += [(3, 48, top * 0.4)] * 5 + [(4, 48, top * 0.04)] * 5
    assert [(step["epoch"], step["global_batch"]) for step in steps] == [each[:2] for each in expected]
    assert [step["rate"] for step in steps] == pytest.approx([each[2] for each in expected])


def evaluated(evaluate_every: int) -> tuple[list[int], str]:
    """The epochs that were tested, and the weights at the end."""
    heard: list[dict] = []
    run = replace(RUN, epochs=5, evaluate_every=evaluate_every)
    (result,) = run_workers(
        train_worker, run, None, None, tell, workers=1, on_message=lambda worker, message: heard.append(message)
    )
    return [message["epoch"] for message in heard if message["kind"] == "evaluated"], result["weights_sha256"]


def test_it_is_tested_as_often_as_asked_and_at_the_end_and_that_changes_no_bit():
    (often, weights), (seldom, same) = evaluated(1), evaluated(3)
    assert (often, seldom) == ([1, 2, 3, 4, 5], [3, 5])
    assert weights == same


def test_an_average_changes_no_weight():
    plain, averaged = (
        run_workers(train_worker, replace(RUN, ema=ema), None, None, tell, workers=1)[0] for ema in (None, 0.5)
    )
    assert plain["weights_sha256"] == averaged["weights_sha256"]
    assert (plain["loss"], plain["accuracy"]) == (averaged["plain_loss"], averaged["plain_accuracy"])
    assert "ema_sha256" not in plain


def test_a_long_run_records_some_steps_and_the_last(tmp_path):
    run = replace(RUN, data="generated:401:1x2x2:2", replicas=1, batch_per_replica=1, epochs=1)
    run_workers(train_worker, run, str(tmp_path), None, tell, workers=1)
    steps = [json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert steps == [*range(3, 401, 3), 401]
    assert len(steps) <= MOST_RECORDS + 1
