"""Learning rates: the rule that adapts a rate to the global batch, and the schedule of a run, of rate or of batch."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from worldsize.errors import Misuse

Rule = Literal["linear", "sqrt", "none"]
Shape = Literal["constant", "cosine", "step"]

RULES = {
    "linear": "rate x global batch / reference batch (Goyal et al., arXiv:1706.02677)",
    "sqrt": "rate x sqrt(global batch / reference batch) (Malladi et al., arXiv:2205.10287, for Adam)",
    "none": "the rate as it is",
}
REASONS = {
    "linear": "a step then goes as far as the small ones that it replaces, while the gradient changes little",
    "sqrt": "the noise of a step, which Adam divides by, falls with the root of the batch",
}
LONGER = "with fewer steps the weights stay nearer to where they began (Hoffer et al., arXiv:1705.08741)"
GROWING = "it lowers the noise of a step as a lower rate would, in fewer steps (Smith et al., arXiv:1711.00489)"
MILESTONES = (0.5, 0.75)  # of a run: where `step` divides the rate, and a batch grows instead
SHAPES = {
    "constant": "stays at the rate",
    "cosine": "falls to zero along half a cosine",
    "step": "divided by ten at a half and at three quarters of the run",
}


def scaled_rate(rate: float, rule: Rule, global_batch: int, reference_batch: int) -> float:
    """The rate for this global batch, given one that was tuned at `reference_batch`.

    >>> scaled_rate(0.1, "linear", 1024, 256), scaled_rate(0.1, "sqrt", 1024, 256)
    (0.4, 0.2)
    """
    if rule not in RULES:
        raise Misuse(f"unknown learning-rate rule {rule!r}; there are {', '.join(RULES)}")
    ratio = global_batch / reference_batch
    return rate * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


def same_steps(epochs: int, *, examples: int, global_batch: int, reference_batch: int, keep_short: bool = True) -> int:
    """The epochs that take as many steps as `epochs` do at the reference batch (Hoffer et al., arXiv:1705.08741).

    >>> same_steps(6, examples=10_000, global_batch=1024, reference_batch=256)
    24
    """
    for name, value in (("epochs", epochs), ("global_batch", global_batch), ("reference_batch", reference_batch)):
        if value < 1:
            raise Misuse(f"{name} is {value}, but must be at least 1")
    steps, reference_steps = (
        -(-examples // batch) if keep_short else examples // batch for batch in (global_batch, reference_batch)
    )
    if not steps or not reference_steps:
        raise Misuse(
            f"{examples} examples make no whole global batch of {max(global_batch, reference_batch)}, and short ones "
            "are dropped; keep the short batch, or use a smaller one"
        )
    return -(-epochs * reference_steps // steps)


class Stage(NamedTuple):
    """So many epochs with this factor on the batch and this one on the rate."""

    epochs: int
    batch: int
    rate: float


def stages(epochs: int, *, at: Sequence[float] = MILESTONES, by: int = 10, most: int | None = None) -> list[Stage]:
    """A run in stages: at each share of it the batch grows where a step schedule would divide the rate.

    Once the batch is `most` times the first, the rate is divided by what is left (Smith et al., arXiv:1711.00489,
    section 5). A stage starts at the first epoch that begins no earlier than its share of the run.

    >>> stages(8, by=4, most=8)
    [Stage(epochs=4, batch=1, rate=1.0), Stage(epochs=2, batch=4, rate=1.0), Stage(epochs=2, batch=8, rate=0.5)]
    """
    if epochs < 1:
        raise Misuse(f"a run of {epochs} epochs has no stages; use 1 or more")
    if not all(0 < share < 1 for share in at) or list(at) != sorted(at):
        raise Misuse(f"a batch cannot grow at {tuple(at)} of a run; name rising shares between 0 and 1")
    if by < 2 or by != int(by):
        raise Misuse(f"a batch cannot grow by {by}; use a whole number of at least 2")
    if most is not None and (most < 1 or most != int(most)):
        raise Misuse(f"a batch cannot grow to {most} times the first; use a whole number of at least 1")
    borders = [0, *(math.ceil(share * epochs - 1e-9) for share in at), epochs]
    found = []
    for turn in range(len(borders) - 1):
        wanted = by**turn
        batch = wanted if most is None else min(wanted, most)
        found.append(Stage(borders[turn + 1] - borders[turn], batch, batch / wanted))
    return [stage for stage in found if stage.epochs]


def growth(
    epochs: int, *, at: Sequence[float] = MILESTONES, by: int = 10, most: int | None = None
) -> list[tuple[int, float]]:
    """For each epoch the factor on the batch and the factor on the rate, from `stages`.

    >>> growth(4, by=5, most=10)
    [(1, 1.0), (1, 1.0), (5, 1.0), (10, 0.4)]
    """
    return [(stage.batch, stage.rate) for stage in stages(epochs, at=at, by=by, most=most) for _ in range(stage.epochs)]


def schedule(
    steps: int, *, shape: Shape = "constant", warmup_steps: int = 0, warmup_from: float = 0.0
) -> Callable[[int], float]:
    """The factor on the rate at each step (from 0): a straight warm-up per step from a first factor, then the shape.

    Made for `torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(...))`, stepped once per optimizer step.

    >>> factor = schedule(10, shape="cosine", warmup_steps=4)
    >>> [round(factor(step), 2) for step in range(11)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0]
    """
    if shape not in SHAPES:
        raise Misuse(f"unknown schedule {shape!r}; there are {', '.join(SHAPES)}")
    if not 0 <= warmup_steps <= max(steps, 0):
        raise Misuse(f"a warm-up of {warmup_steps} steps does not fit a run of {steps}; use 0 to {steps}")

    if not 0 <= warmup_from <= 1:
        raise Misuse(f"a warm-up from {warmup_from} times the rate cannot be; use 0 to 1")

    def factor(step: int) -> float:
        if step < warmup_steps:
            return warmup_from + (1 - warmup_from) * (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        if shape == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if shape == "step":
            return (1.0, 0.1, 0.01)[sum(done >= share for share in MILESTONES)]
        return 1.0

    return factor
