"""Batch growth: equal accuracy with fewer updates holds; a loss, or no saving, does not."""

from worldsize.accuracy.experiments import batch_growth

LEVEL = [0.86 + 0.001 * i for i in range(8)]


def judged(lost: float, updates: int, constant: float = 0.03) -> bool:
    wobble = [0.001 * (-1) ** i for i in range(8)]
    accuracy = {
        batch_growth.CUT: LEVEL,
        batch_growth.GROWN: [a - lost + w for a, w in zip(LEVEL, wobble, strict=True)],
        batch_growth.CONSTANT: [a - constant + w for a, w in zip(LEVEL, wobble, strict=True)],
    }
    counts = {batch_growth.CUT: 2504, batch_growth.GROWN: updates, batch_growth.CONSTANT: 2504}
    return batch_growth.judge({"accuracy": accuracy, "updates": counts}).holds


def test_equal_accuracy_with_fewer_updates():
    assert judged(0.0, 1300)
    assert not judged(0.02, 1300)
    assert not judged(0.0, 2400)
    assert not judged(0.0, 1300, constant=0.0)
