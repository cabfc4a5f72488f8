"""Transports: what all workers bring becomes one sum, with the bits that one worker alone gives."""

import numpy as np
import pytest
import torch
from parallel.worlds import rows_for, sums_by_transport

from worldsize.parallel.transport import Alone, transport_for
from worldsize.parallel.world import World
from worldsize.run.pool import run_workers

# Replicas, and how many of them have examples: blocks of equal and unequal size, and workers that bring nothing.
CASES = [(4, 4), (6, 6), (7, 5), (8, 3), (11, 11), (5, 1)]


def test_a_worker_alone_needs_nobody():
    alone = World(worker=0, size=1, device=torch.device("cpu"), backend="none", ours=False)
    assert isinstance(transport_for(alone), Alone)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_the_sum_over_the_world_has_the_bits_of_one_worker_alone(workers):
    (alone,) = run_workers(sums_by_transport, CASES, workers=1)
    for found in run_workers(sums_by_transport, CASES, workers=workers):
        for case, sums, expected in zip(CASES, found, alone, strict=True):
            assert [each.tobytes() for each in sums] == [each.tobytes() for each in expected], case


def test_only_replicas_with_examples_are_summed():
    (found,) = run_workers(sums_by_transport, CASES, workers=1)
    for (replicas, active), sums in zip(CASES, found, strict=True):
        for step in range(2):
            flat = np.concatenate([each.flatten() for each in sums[2 * step : 2 * step + 2]])
            np.testing.assert_allclose(flat, rows_for(replicas, step)[:active].sum(0).numpy(), rtol=1e-5, atol=1e-6)
