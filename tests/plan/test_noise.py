"""The noise scale on gradients drawn from a known law, whatever the sizes of the shards."""

import math
import random

import pytest

from worldsize.errors import Misuse
from worldsize.plan.noise import Measured, in_words, measured, noise_scale, sigma_for

DIMENSIONS, SIGNAL, SIGMA = 20, 0.3, 2.0
KNOWN = DIMENSIONS * SIGMA**2 / (DIMENSIONS * SIGNAL**2)


def step(dice: random.Random, sizes: list[int]) -> Measured:
    """Shards whose examples' gradients are normal, of mean SIGNAL and deviation SIGMA in every dimension."""
    total = sum(sizes)
    means = [[dice.gauss(SIGNAL, SIGMA / math.sqrt(size)) for _ in range(DIMENSIONS)] for size in sizes]
    weights = {shard: size / total for shard, size in enumerate(sizes)}
    squares = {i: sum((weights[i] * x) ** 2 for x in mean) for i, mean in enumerate(means)}
    whole = sum(sum(weights[i] * mean[d] for i, mean in enumerate(means)) ** 2 for d in range(DIMENSIONS))
    return measured(total, weights, squares, whole)


@pytest.mark.parametrize("sizes", [[4, 4], [1] * 8, [32, 32, 32, 5], [7, 1, 1, 1]])
def test_the_known_scale_is_found_within_its_interval_and_ten_percent(sizes):
    dice = random.Random(4)
    found = noise_scale([step(dice, sizes) for _ in range(4000)])
    assert found.low < KNOWN < found.high
    assert found.scale == pytest.approx(KNOWN, rel=0.1)
    assert found.steps == 4000


def test_the_interval_narrows_with_more_steps():
    dice = random.Random(5)
    few, many = (noise_scale([step(dice, [8] * 4) for _ in range(count)]) for count in (50, 2000))
    assert many.high - many.low < few.high - few.low


def test_a_drowned_signal_is_infinite_noise():
    drowned = Measured(examples=8, shards=2, parts=2.0, whole=1.0)
    assert noise_scale([drowned]).scale == math.inf
    assert "the signal drowns" in in_words(math.inf, 8)


def test_at_the_noise_scale_a_step_does_half_of_what_it_could():
    pure = [Measured(examples=8, shards=2, parts=3.0, whole=2.0)] * 3
    found = noise_scale(pure)
    assert found.scale == 8.0
    assert "does 50% of what one with the true gradient would" in in_words(found.scale, 8)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ((256, 256), 0.0),
        ((512, 256), 1.0),
        ((2560, 256), 3.0),
        ((512, 256, 1.0), math.sqrt(0.5)),
        ((80, 8, 8.0), 8**0.5),
    ],
)
def test_the_noise_to_add_is_what_the_reference_batch_has_more(batches, expected):
    assert sigma_for(*batches) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ((64, 256), "a global batch of 64 has no less noise than one of 256; noise is added to the larger of two"),
        ((64, 0), "a global batch of 64 has no less noise than one of 0; noise is added"),
        ((64, 8, math.nan), "a noise scale of nan cannot be; measure it with a NoiseMeter, or leave it out"),
    ],
)
def test_noise_that_cannot_be_added_is_refused_in_one_line(batches, says):
    with pytest.raises(Misuse) as raised:
        sigma_for(*batches)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [Measured(examples=8, shards=1, parts=1.0, whole=1.0)],
        [Measured(examples=8, shards=2, parts=math.nan, whole=1)],
    ],
)
def test_without_two_shards_there_is_nothing_to_see(steps):
    with pytest.raises(Misuse, match="no step shows a noise scale"):
        noise_scale(steps)
