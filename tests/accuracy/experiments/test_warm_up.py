"""Warm-up: a gain when completed holds; no gain, or a gain of the unfinished one, does not."""

from worldsize.accuracy.experiments import warm_up

WOBBLE = [0.002 * (-1) ** i for i in range(8)]


def judged(gain: float, unfinished: float) -> bool:
    level = [0.83] * 8
    accuracy = {
        warm_up.NONE: level,
        warm_up.DONE: [a + gain + w for a, w in zip(level, WOBBLE, strict=True)],
        warm_up.SMALLER: level,
        warm_up.UNDONE: [a + unfinished + w for a, w in zip(level, WOBBLE, strict=True)],
    }
    return warm_up.judge({"accuracy": accuracy}).holds


def test_only_a_completed_warm_up_may_gain():
    assert judged(0.02, 0.0)
    assert not judged(0.0, 0.0)
    assert not judged(0.02, 0.02)
