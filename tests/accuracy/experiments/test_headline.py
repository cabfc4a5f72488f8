"""The headline: a loss and an equal remedy hold; no loss, or no equal remedy, does not, and is said."""

from worldsize.accuracy.experiments import headline

GOOD = [0.87 + 0.001 * i for i in range(-5, 5)]


def judged(naive: float, remedy: float):
    wobble = [0.001 * (-1) ** i for i in range(10)]
    accuracy = {
        headline.REFERENCE: GOOD,
        headline.NAIVE: [a - naive + w for a, w in zip(GOOD, wobble, strict=True)],
        headline.LINEAR: [a - remedy + w for a, w in zip(GOOD, wobble, strict=True)],
    }
    return headline.judge({"accuracy": accuracy})


def test_what_is_lost_and_brought_back_holds():
    assert judged(0.03, 0.0).holds
    assert "is as good as batch 16 within 0.5 points" in judged(0.03, 0.0).sentence


def test_no_loss_or_no_remedy_fails_and_says_so():
    assert not judged(0.0, 0.0).holds
    assert not judged(0.03, 0.02).holds
    assert "No remedy is shown to be within the margin" in judged(0.03, 0.02).sentence
