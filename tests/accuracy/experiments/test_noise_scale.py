"""Noise scale and critical batch: agreement holds, a factor of ten does not, nor one that does not grow."""

from accuracy.experiments.test_steps_to_target import measured as steps_measured

from worldsize.accuracy.experiments import noise_scale
from worldsize.plan.fits import Scaling


def measured(factor: float = 1.0, later: float = 2.0) -> dict:
    critical = {"0.7": 100.0, "0.75": 140.0, "0.8": 200.0}
    found = steps_measured({8: 1, 32: 1, 128: 1, 512: 1})
    for batch, row in found["batches"].items():
        row["steps"] = {
            name: [Scaling(fewest_steps=50, critical_batch=size).steps(int(batch))] * 3
            for name, size in critical.items()
        }
    noise = {name: [factor * size * (later if name == "0.8" else 1)] * 3 for name, size in critical.items()}
    return found | {"noise_scale": noise}


def test_what_agrees_holds_and_what_does_not_fails():
    assert noise_scale.judge(measured()).holds
    assert not noise_scale.judge(measured(factor=10)).holds
    assert not noise_scale.judge(measured(later=0.4)).holds


def test_the_critical_batch_is_that_of_the_points():
    middle, low, high = noise_scale.critical(measured(), 0.8)
    assert (round(middle), round(low), round(high)) == (200, 200, 200)


def test_it_says_so_when_too_little_was_reached():
    found = measured() | {"noise_scale": {"0.7": [None], "0.75": [], "0.8": [None]}}
    assert not noise_scale.judge(found).holds
    assert "Too few" in noise_scale.judge(found).sentence
    assert noise_scale.draw(found)
