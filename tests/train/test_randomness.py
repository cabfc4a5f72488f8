"""One number sets all random generators of a process."""

import random

import numpy as np
import pytest
import torch

from worldsize.train.randomness import go_on, seed_all, streams


def drawn(seed: int) -> tuple[float, float, float]:
    seed_all(seed)
    return torch.rand(()).item(), np.random.rand(), random.random()


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1])
def test_the_same_seed_gives_the_same_numbers_whatever_was_drawn_before(seed):
    first = drawn(seed)
    torch.rand(7), np.random.rand(7), random.random()
    assert drawn(seed) == first


def test_another_seed_gives_other_numbers_in_each_generator():
    for ours, theirs in zip(drawn(3), drawn(4), strict=True):
        assert ours != theirs


def test_streams_go_on_where_they_stood_whatever_was_drawn_between():
    drawn(5)
    stood = streams()
    first = [(torch.rand(()).item(), np.random.rand(), random.random(), torch.randn(3).tolist()) for _ in range(2)]
    drawn(6)
    go_on(stood)
    assert first == [
        (torch.rand(()).item(), np.random.rand(), random.random(), torch.randn(3).tolist()) for _ in range(2)
    ]
