"""Big worlds: one hash and a rule that keeps most of it hold; another hash does not."""

from worldsize.accuracy.experiments import big_worlds


def judged(hashes: list[str], kept: float) -> bool:
    accuracy = {
        "none": {"1": [0.85, 0.851], "64": [0.6, 0.61]},
        "sqrt": {"1": [0.85, 0.851], "64": [0.5, 0.51]},
        "linear": {"1": [0.85, 0.851], "64": [kept, kept + 0.01]},
    }
    return big_worlds.judge({"accuracy": accuracy, "weights": {"64": dict(zip("124", hashes, strict=True))}}).holds


def test_one_hash_and_most_of_the_accuracy():
    assert judged(["a", "a", "a"], 0.82)
    assert not judged(["a", "a", "b"], 0.82)
    assert not judged(["a", "a", "a"], 0.65)
