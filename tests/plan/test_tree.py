"""The fixed tree: whoever computes the replicas, the same additions in the same order."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldsize.plan.tree import Node, block, bytes_relative_to_ring, copies_held, fold, owned, subtrees


def recursion(node: Node, active: int) -> str | None:
    """The definition: left + right, or the left alone where nothing is on the right; None where nothing is at all."""
    if node.index << node.level >= active:
        return None
    if node.level == 0:
        return str(node.index)
    left = recursion(Node(node.level - 1, 2 * node.index), active)
    right = recursion(Node(node.level - 1, 2 * node.index + 1), active)
    return f"({left}+{right})" if right else left


def root(replicas: int) -> Node:
    return Node((replicas - 1).bit_length(), 0)


def summed(replicas: int, workers: int, active: int) -> str:
    """What comes out when every worker brings the sums of its subtrees, each made by going up from its replicas."""
    brought = owned(replicas, workers, active)
    nodes = [node for nodes in brought for node in nodes]
    leaves = [range(node.index << node.level, (node.index + 1) << node.level) for node in nodes]
    sums = [fold([Node(0, v) for v in replicas_of], map(str, replicas_of), plus) for replicas_of in leaves]
    return fold(nodes, sums, plus)


def plus(left: str, right: str) -> str:
    return f"({left}+{right})"


@st.composite
def experiments(draw: st.DrawFn, most: int = 70) -> tuple[int, int, int]:
    replicas = draw(st.integers(1, most))
    return replicas, draw(st.integers(1, replicas)), draw(st.integers(1, replicas))


@given(experiments(200), st.data())
def test_blocks_share_the_replicas_out_in_order_and_evenly(experiment, data):
    replicas, workers, _ = experiment
    blocks = [block(replicas, workers, worker) for worker in range(workers)]
    assert [replica for part in blocks for replica in part] == list(range(replicas))
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
    assert min(map(len, blocks)) >= 1


@given(st.integers(0, 100), st.integers(0, 100))
def test_subtrees_cover_a_block_without_gap_and_none_can_be_joined(start, length):
    nodes = subtrees(range(start, start + length))
    covered = [v for node in nodes for v in range(node.index << node.level, (node.index + 1) << node.level)]
    assert covered == list(range(start, start + length))
    assert not any(right.follows(left) for left, right in itertools.pairwise(nodes))


@given(experiments())
def test_the_sum_of_what_workers_bring_is_the_sum_of_the_tree(experiment):
    replicas, workers, active = experiment
    assert summed(replicas, workers, active) == recursion(root(replicas), active)


def test_the_sum_is_that_of_the_tree_for_every_small_experiment():
    tried = 0
    for replicas in range(1, 17):
        for active in range(1, replicas + 1):
            expected = recursion(root(replicas), active)
            for workers in range(1, replicas + 1):
                assert summed(replicas, workers, active) == expected
                tried += 1
    assert tried == sum(n * n for n in range(1, 17))


@given(experiments())
def test_only_replicas_with_examples_are_brought(experiment):
    replicas, workers, active = experiment
    nodes = [node for nodes in owned(replicas, workers, active) for node in nodes]
    assert sum(1 << node.level for node in nodes) == active


def bound(replicas: int, workers: int) -> float:
    equal_powers = replicas & (replicas - 1) == 0 and workers & (workers - 1) == 0
    return 2 + math.log2(replicas / workers) if equal_powers else 2 * math.log2(replicas) + 3


def test_gradient_copies_stay_within_their_bound():
    for replicas in range(1, 129):
        for workers in range(1, replicas + 1):
            assert copies_held(replicas, workers) <= bound(replicas, workers), (replicas, workers)


@pytest.mark.parametrize("replicas", [128, 250, 512, 777, 1000, 1023, 1024])
def test_gradient_copies_stay_within_their_bound_for_many_replicas(replicas):
    for workers in (1, 2, 3, 4, 7, 8, 64, replicas // 2, replicas - 1, replicas):
        assert copies_held(replicas, workers) <= bound(replicas, workers), workers


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("each", [1, 2, 4, 16])
def test_equal_blocks_of_a_power_of_two_move_the_bytes_of_a_ring(workers, each):
    assert bytes_relative_to_ring(workers * each, workers) == 1


def test_a_sum_of_too_few_values_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        fold(subtrees(range(3)), ["a"], plus)
