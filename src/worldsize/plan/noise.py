"""The gradient noise scale: how many examples it takes until a gradient is more signal than noise.

McCandlish et al. (arXiv:1812.06162, appendix A): the square of a gradient over n examples is, in the mean,
|G|^2 + S / n, with the true gradient G and the trace S of one example's covariance. Two sizes of n give both. Here the
small ones are the shards of a step, of whatever sizes, and the large one is their weighted mean, the global batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worldsize.errors import Misuse
from worldsize.plan.statistics import bootstrap

BLOCKS = 40


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one step shows: its examples (or tokens), its shards, and two squares of gradients."""

    examples: float
    shards: int
    parts: float  # the mean over shards, weighted by their examples, of |gradient of a shard|^2
    whole: float  # |gradient of the global batch|^2

    @property
    def noise(self) -> float:
        """An estimate of S; in the mean it is right."""
        return (self.parts - self.whole) * self.examples / (self.shards - 1)

    @property
    def signal(self) -> float:
        """An estimate of |G|^2; in the mean it is right, and may be negative in one step."""
        return (self.shards * self.whole - self.parts) / (self.shards - 1)


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """S / |G|^2 in examples, with its 95 % interval; infinite where the signal drowns."""

    scale: float
    low: float
    high: float
    steps: int


def in_words(scale: float, global_batch: int) -> str:
    """What a noise scale says about this global batch (section 2.2 of the paper: a step does 1 / (1 + scale / batch)).

    >>> in_words(300.0, 100)
    '300 examples: at a global batch of 100 a step does 25% of what one with the true gradient would'
    """
    if math.isinf(scale):
        return "beyond measure: the signal drowns, so a larger batch costs nothing yet"
    share = global_batch / (global_batch + scale)
    return (
        f"{scale:,.0f} examples: at a global batch of {global_batch:,} a step does {share:.0%} "
        "of what one with the true gradient would"
    )


def noise_scale(steps: Sequence[Measured]) -> NoiseScale:
    """The noise scale over some steps: the ratio of the means, since a mean of ratios would be biased."""
    usable = [step for step in steps if step.shards > 1 and math.isfinite(step.parts) and math.isfinite(step.whole)]
    if not usable:
        raise Misuse(
            "no step shows a noise scale; it takes at least one step with two replicas that have examples, "
            "and gradients that are finite"
        )

    # Neighbouring steps see nearly the same gradient, so what is drawn again are runs of them.
    size = -(-len(usable) // BLOCKS)
    blocks = [usable[start : start + size] for start in range(0, len(usable), size)]
    sums = [tuple(math.fsum(getattr(step, name) for step in block) for name in ("noise", "signal")) for block in blocks]

    def ratio(picked: Sequence[int]) -> float:
        noise, signal = (math.fsum(sums[i][side] for i in picked) for side in (0, 1))
        return max(noise, 0.0) / signal if signal > 0 else math.inf

    low, high = bootstrap(len(sums), ratio, 0.95)
    return NoiseScale(scale=ratio(range(len(sums))), low=low, high=high, steps=len(usable))


def sigma_for(global_batch: float, reference_batch: float, noise_scale: float = math.inf) -> float:
    """How much to vary the examples' losses (`noisy_mean`) so that a large batch has a small one's gradient noise.

    A gradient over n examples, each times 1 + sigma z with z of mean 0 and variance 1, keeps its mean G, and its
    covariance becomes that of (1 + sigma z) g over n, of trace (S + sigma^2 (S + |G|^2)) / n, with the trace S of one
    example's gradient g. Over m examples it is S / m. They are equal when sigma^2 = (n / m - 1) S / (S + |G|^2), and
    S / |G|^2 is the noise scale, as a rule so large that sigma = sqrt(n / m - 1) will do.

    >>> sigma_for(1024, 256), sigma_for(1024, 256, noise_scale=3.0)
    (1.7320508075688772, 1.5)
    """
    if not 0 < reference_batch <= global_batch:
        raise Misuse(
            f"a global batch of {global_batch} has no less noise than one of {reference_batch}; noise is added to the "
            "larger of two batches, so name a smaller reference batch"
        )
    if not noise_scale > 0:
        raise Misuse(f"a noise scale of {noise_scale} cannot be; measure it with a NoiseMeter, or leave it out")
    share = 1.0 if math.isinf(noise_scale) else noise_scale / (noise_scale + 1)
    return math.sqrt((global_batch / reference_batch - 1) * share)


def measured(examples: float, weights: Mapping[int, float], squares: Mapping[int, float], whole: float) -> Measured:
    """A step from its shards' shares of the examples and the squares of their weighted gradients."""
    parts = math.fsum(squares[shard] / weights[shard] for shard in sorted(weights))
    return Measured(examples=examples, shards=len(weights), parts=parts, whole=whole)
