"""Sharpness: a sharper place with a larger gap holds; one of both alone does not; a small net is measured for real."""

from worldsize.accuracy.experiments import sharpness

ROW = {
    "eigenvalue": [10.0, 11.0, 9.5],
    "sharpness": [3.0, 3.2, 2.9],
    "gap": [2.0, 2.1, 1.9],
    "train_loss": [0.3, 0.29, 0.31],
}


def judged(factor: float, gap: float, loss: float = 0.3) -> bool:
    wobble = (0.98, 1.0, 1.02)
    large = {
        key: [v * factor * w for v, w in zip(ROW[key], wobble, strict=True)] for key in ("eigenvalue", "sharpness")
    }
    large["train_loss"] = [loss] * 3
    large["gap"] = [v + gap + 0.1 * w for v, w in zip(ROW["gap"], wobble, strict=True)]
    return sharpness.judge({sharpness.SMALL: ROW, sharpness.LARGE: large, sharpness.ADAPTED: ROW}).holds


def test_both_have_to_grow():
    assert judged(1.5, 0.5)
    assert not judged(0.8, 0.5)
    assert not judged(1.5, -0.5)
    assert not judged(1.5, 0.5, loss=0.8), "a net that never got there is compared with none"


def test_every_variant_is_drawn_for_every_measure():
    figures = sharpness.draw(dict.fromkeys(sharpness.VARIANTS, ROW))
    assert len(figures) == len(sharpness.MEASURES)
    assert all(name in figure for figure in figures for name in sharpness.VARIANTS)


def test_training_ends_at_the_loss_asked_for():
    found = sharpness.descend(batch=2048, rate=0.8, loss=1.5, seed=0)
    assert 1.0 < found["train_loss"] < 1.55
    assert found["eigenvalue"] > 0
    assert found["sharpness"] > 0
