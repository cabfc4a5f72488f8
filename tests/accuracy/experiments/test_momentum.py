"""Momentum: equal effective steps hold; a true gain of momentum, or a seed that never arrived, does not."""

from worldsize.accuracy.experiments import momentum

STEPS = {momentum.PLAIN: [5000, 5100], momentum.CONFOUNDED: [500, 520], momentum.FAIR: [510, 500]}


def judged(**changes: list) -> bool:
    steps = STEPS | {getattr(momentum, name): row for name, row in changes.items()}
    return momentum.judge({"target": [0.8], "steps": steps}).holds


def test_the_effective_step_explains_it():
    assert judged()
    assert not judged(FAIR=[900, 950])
    assert not judged(PLAIN=[900, 950])
    assert not judged(PLAIN=[5000, None])


def test_the_variants_have_the_effective_steps_that_they_are_said_to_have():
    effective = {name: variant["rate"] / (1 - variant["momentum"]) for name, variant in momentum.VARIANTS.items()}
    assert round(effective.pop(momentum.PLAIN), 9) == 0.02
    assert {round(value, 9) for value in effective.values()} == {0.2}
