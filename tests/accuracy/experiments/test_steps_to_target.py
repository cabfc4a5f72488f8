"""Steps to a target: three regimes hold, a straight line does not, and a batch that failed is left out."""

from worldsize.accuracy.experiments import steps_to_target
from worldsize.plan.fits import Scaling


def measured(steps: dict[int, float]) -> dict:
    rows = {str(batch): {"rate": 0.1, "steps": {"0.7": [s], "0.75": [s], "0.8": [s, s]}} for batch, s in steps.items()}
    return {"batches": rows}


LAW = Scaling(fewest_steps=100, critical_batch=150)
BENDS = {batch: round(LAW.steps(batch)) for batch in (8, 32, 128, 512, 2048, 8192)}


def test_a_curve_that_bends_holds_and_one_that_does_not_fails():
    assert steps_to_target.judge(measured(BENDS)).holds
    assert not steps_to_target.judge(measured({batch: 80_000 / batch for batch in BENDS})).holds
    assert not steps_to_target.judge(measured(dict.fromkeys(BENDS, 100.0))).holds


def test_a_batch_whose_seed_never_arrived_is_left_out():
    found = measured(BENDS)
    found["batches"]["8"]["steps"]["0.8"] = [100, None]
    assert min(steps_to_target.means(found, 0.8)) == 32


def test_it_is_drawn_also_when_nothing_arrived():
    assert len(steps_to_target.draw(measured(BENDS))) == 3
    found = measured(BENDS)
    for row in found["batches"].values():
        row["steps"] = {name: [None, None] for name in row["steps"]}
    assert "nothing recorded" in steps_to_target.draw(found)[0]
