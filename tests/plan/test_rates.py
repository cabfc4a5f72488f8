"""Learning rates, against numbers worked out by hand."""

import math

import pytest

from worldsize.errors import Misuse
from worldsize.plan.rates import scaled_rate, schedule


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
    ("call", "says"),
    [
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
    assert str(raised.value) == says
