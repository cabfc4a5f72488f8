"""The hash of tensors notices everything, and only what is there."""

import pytest
import torch
from torch import nn

from worldsize.plan.digest import buffers_sha256, tensors_sha256, weights_sha256

BASE = torch.tensor([[1.0, 2.0], [3.0, 0.0]])


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with its very last bit turned over."""
    copy = tensor.clone()
    copy.view(torch.int32)[1, 0] ^= 1
    return copy


@pytest.mark.parametrize(
    "other",
    [
        ("v", BASE),
        ("w", BASE.double()),
        ("w", BASE.view(torch.int32)),
        ("w", BASE.reshape(4)),
        ("w", BASE.reshape(1, 4)),
        ("w", flipped(BASE)),
        ("w", BASE * torch.tensor([1.0, -1.0])),  # turns 0.0 to -0.0, and 2 to -2
        ("w", torch.where(BASE == 0, -0.0, BASE)),
        ("w", torch.where(BASE == 0, float("nan"), BASE)),
    ],
)
def test_the_hash_sees_name_type_shape_and_every_bit(other):
    assert tensors_sha256([other]) != tensors_sha256([("w", BASE)])


def test_the_hash_does_not_see_order_layout_or_whose_memory_it_is():
    assert tensors_sha256([("a", BASE), ("b", BASE)]) == tensors_sha256([("b", BASE.clone()), ("a", BASE)])
    assert tensors_sha256([("a", BASE.t().contiguous().t())]) == tensors_sha256([("a", BASE)])


def test_no_two_ways_of_cutting_the_same_bytes_are_alike():
    cut = tensors_sha256([("a", torch.zeros(2)), ("b", torch.zeros(1))])
    assert cut != tensors_sha256([("a", torch.zeros(1)), ("b", torch.zeros(2))])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_type_and_shape_has_a_hash(dtype, shape):
    assert len(tensors_sha256([("a", torch.zeros(shape, dtype=dtype))])) == 64


def test_weights_and_buffers_are_hashed_apart():
    model = nn.BatchNorm1d(3)
    weights, buffers = weights_sha256(model), buffers_sha256(model)
    model.running_mean += 1
    assert weights_sha256(model) == weights
    assert buffers_sha256(model) != buffers


def test_a_compiled_model_has_the_hash_of_the_model_inside():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    compiled = torch.compile(model, backend="eager")
    assert weights_sha256(compiled) == weights_sha256(model)
    assert buffers_sha256(compiled) == buffers_sha256(model)
