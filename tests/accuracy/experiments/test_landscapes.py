"""Landscapes: steeper without skips and after large batches holds; the loss is measured at the net itself too."""

from worldsize.accuracy.experiments import landscapes


def row(rise: float) -> dict:
    lines = [[[a / 4, 0.2 + s * rise * abs(a / 2)] for a in range(-4, 5)] for s in (0.95, 1.0, 1.05)]
    plane = [[x, y, 0.2 + rise * (x * x + y * y)] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)]
    return {"accuracy": [0.8] * 3, "lines": lines, "plane": plane}


def measured(skip: float, batch: float) -> dict:
    rises = {landscapes.SKIP: 1.0, landscapes.PLAIN: skip, landscapes.SMALL: 1.0, landscapes.LARGE: batch}
    return {name: row(rise) for name, rise in rises.items()}


def test_both_have_to_be_steeper():
    assert landscapes.judge(measured(2.0, 1.5)).holds
    assert not landscapes.judge(measured(2.0, 1.0)).holds
    assert not landscapes.judge(measured(0.5, 1.5)).holds
    assert "the loss rises 2.00 times (2.00 to 2.00) as much without" in landscapes.judge(measured(2.0, 1.5)).sentence


def test_lines_and_planes_are_drawn():
    figures = landscapes.draw(measured(2.0, 1.5))
    assert len(figures) == 3
    assert figures[1].count('data-kind="map"') == 2


def test_a_net_is_trained_and_the_loss_measured_around_it():
    asked = {"model": "mlp", "batch": 512, "rate": 0.1, "epochs": 1, "points": 3, "plane_points": 3}
    found = landscapes.look(**asked, seed=0)
    middles = [loss for line in found["lines"] for at, loss in line if at == 0]
    assert len(found["lines"]) == landscapes.DIRECTIONS
    assert len(set(middles)) == 1
    assert [loss for x, y, loss in found["plane"] if x == y == 0] == middles[:1]
