"""Learning rates: the rule that adapts a rate to the global batch, and the schedule over the steps of a run."""

import math
from collections.abc import Callable
from typing import Literal

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
            return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
        return 1.0

    return factor
