"""Learning rates, more epochs and growing batches, against numbers worked out by hand."""

import math

import pytest

from worldsize.errors import Misuse
from worldsize.plan.rates import Stage, growth, same_steps, scaled_rate, schedule, stages


@pytest.mark.parametrize(
    ("rule", "global_batch", "expected"),
    [
        ("linear", 256, 0.1),
        ("linear", 8192, 3.2),
        ("linear", 64, 0.025),
        ("sqrt", 256, 0.1),
        ("sqrt", 4096, 0.4),
        ("sqrt", 64, 0.05),
        ("none", 8192, 0.1),
    ],
)
def test_a_rate_tuned_at_256_is_scaled_by_the_rule(rule, global_batch, expected):
    assert scaled_rate(0.1, rule, global_batch, 256) == pytest.approx(expected, rel=1e-12)


def test_the_warm_up_rises_by_equal_parts_to_the_rate():
    factor = schedule(100, warmup_steps=5)
    assert [factor(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert factor(99) == 1.0


def test_the_warm_up_may_start_above_zero():
    factor = schedule(100, warmup_steps=4, warmup_from=0.2)
    assert [factor(step) for step in range(5)] == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_cosine_falls_from_one_to_zero():
    factor = schedule(8, shape="cosine")
    by_hand = [1, 0.9619397663, 0.8535533906, 0.6913417162, 0.5, 0.3086582838, 0.1464466094, 0.0380602337, 0]
    assert [factor(step) for step in range(9)] == pytest.approx(by_hand, abs=1e-9)


def test_the_cosine_starts_after_the_warm_up_and_stays_at_zero_after_the_end():
    factor = schedule(12, shape="cosine", warmup_steps=4)
    assert factor(3) == factor(4) == 1.0
    assert factor(8) == pytest.approx(0.5)
    assert factor(12) == factor(500) == pytest.approx(0, abs=1e-15)


def test_steps_divide_by_ten_at_a_half_and_at_three_quarters():
    factor = schedule(8, shape="step")
    assert [factor(step) for step in range(9)] == [1.0] * 4 + [0.1] * 2 + [0.01] * 3


def test_a_run_may_be_all_warm_up():
    factor = schedule(4, shape="cosine", warmup_steps=4)
    assert [factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert math.isfinite(factor(4))


@pytest.mark.parametrize(
    ("examples", "batch", "keep_short", "expected"),
    [
        (1000, 100, True, 6),  # 10 steps an epoch, as at the reference
        (1000, 400, True, 20),  # 3 steps an epoch: 60 of them
        (1000, 400, False, 30),  # the short third is dropped: 2 steps an epoch
        (1000, 350, False, 30),
        (1050, 300, True, 17),  # 11 steps against 4: 66 are not whole epochs, so 68
        (1000, 10, True, 1),  # never none
    ],
)
def test_as_many_steps_as_the_reference_batch_takes_whole_epochs_more(examples, batch, keep_short, expected):
    found = same_steps(6, examples=examples, global_batch=batch, reference_batch=100, keep_short=keep_short)
    assert found == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [Stage(4, 1, 1.0), Stage(2, 10, 1.0), Stage(2, 100, 1.0)]),
        ({"most": 25}, [Stage(4, 1, 1.0), Stage(2, 10, 1.0), Stage(2, 25, 0.25)]),
        ({"most": 1}, [Stage(4, 1, 1.0), Stage(2, 1, 0.1), Stage(2, 1, 0.01)]),
        ({"by": 2, "at": (0.3,)}, [Stage(3, 1, 1.0), Stage(5, 2, 1.0)]),
        ({"by": 5, "at": (0.1, 0.9)}, [Stage(1, 1, 1.0), Stage(7, 5, 1.0)]),  # the last epoch begins before 0.9
    ],
)
def test_the_batch_grows_where_a_step_schedule_divides_the_rate_and_at_the_most_the_rate_falls(options, expected):
    assert stages(8, **options) == expected
    per_epoch = [(stage.batch, stage.rate) for stage in expected for _ in range(stage.epochs)]
    assert growth(8, **options) == per_epoch
    by = options.get("by", 10)
    for batch, rate in per_epoch:  # the noise of a step falls as under the step schedule
        assert rate / batch in [1, 1 / by, 1 / by**2]


def test_a_share_that_is_no_exact_number_meets_its_epoch():
    assert growth(100, at=(0.07,), by=2)[6:8] == [(1, 1.0), (2, 1.0)]  # 0.07 x 100 is a little more than 7


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: growth(0), "a run of 0 epochs has no stages; use 1 or more"),
        (lambda: growth(8, at=(0.5, 0.2)), "a batch cannot grow at (0.5, 0.2) of a run; name rising shares between"),
        (lambda: growth(8, at=(1.0,)), "a batch cannot grow at (1.0,) of a run; name rising shares between 0 and 1"),
        (lambda: growth(8, by=1), "a batch cannot grow by 1; use a whole number of at least 2"),
        (lambda: growth(8, by=2.5), "a batch cannot grow by 2.5; use a whole number of at least 2"),
        (lambda: growth(8, most=0), "a batch cannot grow to 0 times the first; use a whole number of at least 1"),
        (
            lambda: same_steps(6, examples=9, global_batch=0, reference_batch=1),
            "global_batch is 0, but must be at least 1",
        ),
        (
            lambda: same_steps(6, examples=9, global_batch=10, reference_batch=1, keep_short=False),
            "9 examples make no whole global batch of 10, and short ones are dropped; keep the short batch, or",
        ),
        (lambda: scaled_rate(0.1, "cubic", 8, 8), "unknown learning-rate rule 'cubic'; there are linear, sqrt, none"),
        (lambda: schedule(10, shape="sine"), "unknown schedule 'sine'; there are constant, cosine, step"),
        (lambda: schedule(10, warmup_steps=11), "a warm-up of 11 steps does not fit a run of 10; use 0 to 10"),
        (lambda: schedule(10, warmup_from=1.5), "a warm-up from 1.5 times the rate cannot be; use 0 to 1"),
        (lambda: schedule(10, warmup_steps=-1), "a warm-up of -1 steps does not fit a run of 10; use 0 to 10"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(call, says):
    with pytest.raises(Misuse) as raised:
        call()
    assert str(raised.value).startswith(says)
    assert "\n" not in str(raised.value)
