"""Buckets: gradients are added in the order of the tree, and a worker holds no more copies of them than it must."""

import pytest
import torch
from parallel.worlds import copies_in_use, low_precision_sum
from torch import Tensor, nn

from worldsize.parallel.bucket import Bucket, group_parameters
from worldsize.plan.tree import copies_held
from worldsize.run.pool import run_workers


def one_bucket(*shapes: tuple[int, ...], pieces: int = 1) -> Bucket:
    return Bucket([nn.Parameter(torch.zeros(shape)) for shape in shapes], pieces)


def push(bucket: Bucket, replica: int, *gradients: Tensor | None) -> None:
    for parameter, gradient in zip(bucket.parameters, gradients, strict=True):
        parameter.grad = gradient
    bucket.push(replica)


def summed(bucket: Bucket) -> list[Tensor | None]:
    with torch.no_grad():
        bucket.fold()
        bucket.hand_over()
    return [parameter.grad for parameter in bucket.parameters]


def test_gradients_are_added_in_the_order_of_the_tree_and_in_no_other():
    row = torch.randn(7, 50, generator=torch.Generator().manual_seed(1))
    bucket = one_bucket((50,))
    for replica in range(7):
        push(bucket, replica, row[replica].clone())
        assert bucket.parameters[0].grad is None, "taken, not copied"
    assert [node.level for node, _ in bucket.stack] == [2, 1, 0]
    (found,) = summed(bucket)
    assert torch.equal(found, ((row[0] + row[1]) + (row[2] + row[3])) + ((row[4] + row[5]) + row[6]))
    assert not torch.equal(found, sum(row)), "numbers that tell one order from another"


def test_a_gradient_that_some_replicas_have_is_their_sum_and_one_that_none_has_stays_away():
    bucket = one_bucket((2,), (3,))
    bucket.absent_here = True
    push(bucket, 0, None, None)
    push(bucket, 1, torch.tensor([-0.0, 2.0]), None)
    push(bucket, 2, None, None)
    some, none = summed(bucket)
    assert some.tolist() == [0.0, 2.0]
    assert some.signbit().tolist() == [True, False], "what is missing changes not even the sign of a zero"
    assert none is None


def test_a_step_that_was_given_up_leaves_nothing_to_the_next():
    bucket = one_bucket((2,))
    for replica in range(3):
        push(bucket, replica, torch.full((2,), 100.0))
    bucket.parameters[0].grad = torch.ones(2)
    bucket.begin()
    assert bucket.parameters[0].grad is None
    for replica in range(2):
        push(bucket, replica, torch.full((2,), 1.0 + replica))
    assert summed(bucket)[0].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_a_bucket_divides_into_equal_pieces_that_are_as_small_as_can_be(pieces):
    bucket = one_bucket((3, 5), (6,), pieces=pieces)
    numbers = 15 + 6 + 2  # and whether each was there
    assert bucket.length == bucket.piece * pieces
    assert bucket.length - pieces < numbers <= bucket.length


def test_small_buckets_are_many_and_hold_every_parameter_once():
    parameters = [nn.Parameter(torch.zeros(100)) for _ in range(20)] + [nn.Parameter(torch.zeros(3).double())]
    groups = group_parameters(parameters, 0.0008)
    assert len(groups) == 11
    assert [id(p) for group in groups for p in group] == [id(p) for p in reversed(parameters)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_low_precision_gradients_are_summed_in_float32_and_rounded_once(workers):
    replicas = 6
    for found in run_workers(low_precision_sum, replicas, workers=workers):
        order = torch.randperm(replicas, generator=torch.Generator().manual_seed(0))
        # What a replica's own backward pass gives is bf16; from there on everything is float32.
        sixth = torch.tensor(1 / replicas, dtype=torch.float32)
        rows = torch.from_numpy(found["x"])[order]
        leaves = [(row * sixth.bfloat16().float()).bfloat16().float() for row in rows]
        total = ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3])) + (leaves[4] + leaves[5])
        assert torch.equal(torch.from_numpy(found["grad"]), total.bfloat16().float().expand(8, 8))


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("replicas", "workers"), [(2, 2), (4, 2), (8, 2), (16, 2), (6, 4), (7, 3), (11, 2), (8, 1)])
def test_a_worker_holds_as_many_gradient_copies_as_the_plan_says(replicas, workers):
    """Bytes really taken from the system while training, against the number that is printed to users."""
    most = max(run_workers(copies_in_use, replicas, workers=workers))
    assert most == pytest.approx(copies_held(replicas, workers), abs=0.4)  # tells one copy from the next
