"""Directions have the lengths they should have, and moving along one to its end is the other solution."""

import pytest
import torch
from torch import nn

from worldsize.accuracy.directions import are_parallel, filter_normalised, move, towards
from worldsize.errors import Misuse
from worldsize.train.models import Transformer


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 5))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_every_filter_is_as_long_as_that_of_the_weights_and_the_rest_stays():
    model = net()
    found = filter_normalised(model, generator())
    assert set(found) == {"0.weight", "3.weight"}, "no bias, no parameter of a norm"
    for name, direction in found.items():
        weight = model.get_parameter(name)
        for ours, theirs in zip(direction, weight, strict=True):
            assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=1e-5)
        assert abs(torch.cosine_similarity(direction.flatten(), weight.flatten(), dim=0)) < 0.6, "it is random"


def test_tied_weights_move_once_and_embeddings_row_by_row():
    torch.manual_seed(0)
    model = Transformer(7, 5, width=8, layers=1, heads=2, dropout=0.0)
    found = filter_normalised(model, generator())
    assert "embed.weight" in found
    assert "head.weight" not in found
    assert torch.allclose(found["embed.weight"].norm(dim=1), model.embed.weight.norm(dim=1))


def test_a_generator_decides():
    one, two, other = (filter_normalised(net(), generator(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
    assert are_parallel(one, two)
    assert are_parallel(one, {name: -3 * part for name, part in one.items()})
    assert not are_parallel(one, other)


def test_a_dead_filter_and_a_frozen_weight_stay():
    model = net()
    with torch.no_grad():
        model[0].weight[1] = 0
    model[3].weight.requires_grad = False
    found = filter_normalised(model, generator())
    assert set(found) == {"0.weight"}
    assert not found["0.weight"][1].any()
    assert found["0.weight"].isfinite().all()


def test_the_way_to_another_solution_ends_there_buffers_included():
    one, other = net(0), net(1)
    other(torch.randn(8, 2, 4, 4))
    way = towards(one, other.state_dict())
    move(one, [way], [1.0])
    for name, tensor in one.state_dict().items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, other.state_dict()[name], atol=1e-6), name
    assert one[1].num_batches_tracked == 0


@pytest.mark.parametrize(("share", "kept"), [(-0.5, 0.0), (0.25, 0.25), (1.7, 1.0)])
def test_weights_go_on_beyond_the_ends_but_variances_do_not(share, kept):
    one, other = net(0), net(1)
    other[1].running_var.fill_(0.1)
    before = one[3].weight.detach().clone()
    way = towards(one, other.state_dict())
    move(one, [way], [share])
    assert torch.allclose(one[1].running_var, torch.full((3,), 1 + kept * (0.1 - 1)))
    assert torch.allclose(one[3].weight, before + share * (other[3].weight - before), atol=1e-6)


def test_several_directions_add_up():
    model = net()
    before = model[0].weight.detach().clone()
    one, two = (filter_normalised(model, generator(seed)) for seed in (0, 1))
    move(model, [one, two], [0.5, -2.0])
    assert torch.allclose(model[0].weight, before + 0.5 * one["0.weight"] - 2 * two["0.weight"], atol=1e-6)


def test_what_leads_nowhere_is_refused():
    with pytest.raises(Misuse, match="no weights but biases and norms"):
        filter_normalised(nn.BatchNorm1d(3), generator())
    with pytest.raises(Misuse, match="both solutions have the same weights"):
        towards(net(), net().state_dict())
