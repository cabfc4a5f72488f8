"""Eight times the batch: what more steps and small norm batches bring back."""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import POINT, accuracies, against, in_points, strips
from worldsize.plan.noise import sigma_for
from worldsize.report.markup import Html

EPOCHS, RATE = 6, 0.05
REFERENCE, GROWN = "batch 32", "batch 256, linear rule"
GHOST, NOISE = "the same, ghost batch norm of 32", "batch 256, gradient noise in place of the rule"
LONGER, BOTH = "the same, as many steps as batch 32", "as many steps, and ghost batch norm"
MARGIN = 0.005


def measure(bench: Bench) -> dict[str, Any]:
    """The accuracy with each remedy, with every seed."""
    epochs = 1 if bench.quick else EPOCHS
    common = {"model": "cnn", "data": "fashion-14", "epochs": epochs, "evaluate_every": 8 * epochs, "lr": RATE}
    common |= {"replicas": 1, "reference_batch": 32, "warmup": 0.5}
    grown = common | {"batch_per_replica": 256, "lr_rule": "linear"}
    ghost = {"norm": "ghost", "ghost_batch": 32}
    variants = {
        REFERENCE: common | {"batch_per_replica": 32},
        GROWN: grown,
        GHOST: grown | ghost,
        NOISE: grown | {"lr_rule": "none", "gradient_noise": sigma_for(global_batch=256, reference_batch=32)},
        LONGER: grown | {"same_steps": True},
        BOTH: grown | ghost | {"same_steps": True},
    }
    return {"accuracy": accuracies(bench.each(trials.training, variants))}


def judge(measured: dict[str, Any]) -> Finding:
    accuracy = measured["accuracy"]
    lost, longer = against(accuracy, REFERENCE, GROWN, MARGIN), against(accuracy, REFERENCE, LONGER, MARGIN)
    ghost, noise = against(accuracy, GROWN, GHOST, MARGIN), against(accuracy, GROWN, NOISE, MARGIN)
    return Finding(
        holds=lost.interval(0.95)[1] < 0 and longer.interval(0.9)[0] > -MARGIN and ghost.interval(0.95)[0] > 0,
        sentence=f"At equal epochs batch 256 has {in_points(lost)} against batch 32; with as many steps "
        f"{in_points(longer)}. Ghost batch norm changes batch 256 by {in_points(ghost)}, gradient noise by "
        f"{in_points(noise)}.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    about = "6 epochs, or 48 for as many steps; one dot per seed."
    return [strips("The gap is one of steps", about, measured["accuracy"], REFERENCE)]


EXPERIMENT = Experiment(
    title="Train longer, generalise as well",
    question="Does a larger batch generalise as well if it is given as many steps, or if its norms see small batches?",
    setting="Small conv net with batch norm on Fashion-MNIST at 14x14 pixels (10,000 images), 6 epochs, cosine "
    "schedule, momentum 0.9; batch 32 on one replica, then 256 with the linear rule, alone and with ghost batch norm "
    "of 32, with noise on the examples' weights, with eight times the epochs, and with both.",
    prediction="At equal epochs the large batch is behind, ghost batch norm helps, and as many steps close the gap.",
    source="Hoffer et al., arXiv:1705.08741.",
    passes="Batch 256 is behind at equal epochs and ghost batch norm raises it (95 % intervals over seeds); with as "
    f"many steps it is not behind by {MARGIN / POINT:g} points or more (one-sided, at 0.05).",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
