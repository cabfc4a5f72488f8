"""Train longer: a gap that more steps close holds; one that stays, or no gap at all, does not."""

from worldsize.accuracy.experiments import train_longer

LEVEL = [0.86, 0.862, 0.858, 0.861, 0.859]
WOBBLE = [0.001, -0.001, 0.0005, -0.0005, 0.0]


def judged(lost: float, longer: float, ghost: float) -> bool:
    def moved(by: float) -> list[float]:
        return [value + by + w for value, w in zip(LEVEL, WOBBLE, strict=True)]

    accuracy = {
        train_longer.REFERENCE: LEVEL,
        train_longer.GROWN: moved(-lost),
        train_longer.GHOST: [value + ghost for value in moved(-lost)],
        train_longer.NOISE: moved(-lost),
        train_longer.LONGER: moved(longer),
    }
    return train_longer.judge({"accuracy": accuracy}).holds


def test_more_steps_have_to_close_a_gap_that_is_there():
    assert judged(0.01, 0.0, 0.005)
    assert judged(0.01, 0.02, 0.005), "better than the reference is no gap"
    assert not judged(0.0, 0.0, 0.005)
    assert not judged(0.01, -0.01, 0.005)
    assert not judged(0.01, 0.0, -0.002)
