"""The reference models: their sizes as published, their shapes, and one line for what does not fit."""

import itertools

import pytest
import torch

from worldsize.errors import Misuse
from worldsize.train.data import UNCOUNTED, InMemory, Sets, load
from worldsize.train.models import build, count_of, family, has_batch_norm, loss_of, measures_of, parameters_of

IMAGES = load("generated:64:1x28x28:10")
PAIRS = [
    ("cnn", IMAGES, 24_058, True),
    ("mlp", IMAGES, 118_282, False),
    ("wrn-16-1", IMAGES, None, True),
    ("wrn-16-1-plain", IMAGES, None, True),
    ("transformer", load("sums"), None, False),
    ("neuron", load("line"), 2, False),
]


def wide_resnet_parameters(k: int) -> int:
    """By hand, from the paper's table: 3x3 convolutions, two norms a block, a 1x1 where the width changes."""
    widths = [16, 16 * k, 32 * k, 64 * k]
    total = 9 * 16  # one grey channel
    for before, width in itertools.pairwise(widths):
        for inputs in (before, width):
            total += 9 * inputs * width + 9 * width * width + 2 * inputs + 2 * width
        total += before * width + width if before != width else 0
    return total + 2 * widths[3] + 10 * widths[3] + 10


@pytest.mark.parametrize(("name", "sets", "parameters", "norm"), PAIRS)
def test_every_model_fits_its_data_and_learns_all_its_parameters(name, sets, parameters, norm):
    model = build(name, sets, dropout=0.1)
    x, y = sets.train.take(torch.arange(6))
    loss = loss_of(sets, model)(x, y)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert parameters is None or parameters_of(model) == parameters
    assert has_batch_norm(model) == norm
    measured = measures_of(sets, model)(x, y)
    assert all(values.shape == (6,) for values in measured.values())


@pytest.mark.parametrize("k", [1, 2, 10])
def test_the_wide_resnet_has_the_parameters_of_the_paper(k):
    with torch.device("meta"):
        model = build(f"wrn-16-{k}", IMAGES)
    assert parameters_of(model) == wide_resnet_parameters(k)
    if k == 10:
        assert parameters_of(model) == 17_117_466


def test_without_skip_connections_only_the_projections_are_gone():
    with torch.device("meta"):
        skip, plain = build("wrn-16-2", IMAGES), build("wrn-16-2-plain", IMAGES)
    projections = sum(p.numel() for name, p in skip.named_parameters() if "project" in name)
    assert projections > 0
    assert parameters_of(skip) - parameters_of(plain) == projections


def test_the_transformer_does_not_look_ahead():
    sets = load("sums")
    model = build("transformer", sets).eval()
    x = sets.train.take(torch.arange(1))[0]
    changed = x.clone()
    changed[0, 6:] = 0
    assert torch.equal(model(x)[0, :6], model(changed)[0, :6])
    assert not torch.equal(model(x)[0, 6:], model(changed)[0, 6:])


def test_the_transformer_shares_the_weights_of_the_embedding():
    model = build("transformer", load("sums"))
    assert model.head.weight is model.embed.weight


def test_tokens_are_counted_as_the_loss_counts_them():
    sets = load("sums")
    model = build("transformer", sets)
    x, y = sets.train.take(torch.arange(8))
    count, loss = count_of(sets), loss_of(sets, model)
    assert count(x, y) == (y != UNCOUNTED).sum()
    halves = [(x[:2], y[:2]), (x[2:], y[2:])]
    joined = sum(loss(*half) * count(*half) for half in halves) / count(x, y)
    torch.testing.assert_close(joined, loss(x, y))
    assert count_of(IMAGES) is None


@pytest.mark.parametrize(("name", "sets"), [("mlp", IMAGES), ("transformer", load("sums")), ("neuron", load("line"))])
def test_with_gradient_noise_each_example_weighs_at_random_in_the_same_mean(name, sets):
    model = build(name, sets)
    x, y = sets.train.take(torch.arange(6))
    plain, noisy = loss_of(sets, model), loss_of(sets, model, 0.5)
    torch.manual_seed(4)
    weights = 1 + 0.5 * torch.randn(6)
    count = count_of(sets) or (lambda x, y: torch.tensor(len(y)))
    by_hand = sum(weights[i] * plain(x[i : i + 1], y[i : i + 1]) * count(x, y[i : i + 1]) for i in range(6))
    torch.manual_seed(4)
    torch.testing.assert_close(noisy(x, y), by_hand / count(x, y))


def test_a_sum_is_right_only_when_all_of_it_is():
    right = torch.tensor([[UNCOUNTED, 1, 2], [UNCOUNTED, 1, 2]])
    said = torch.tensor([[5, 1, 2], [5, 1, 3]])
    sets = Sets(name="sums", train=load("line").train, test=load("line").test, source="", kind="tokens")
    measured = measures_of(sets, lambda x: torch.nn.functional.one_hot(x, 6).float())(said, right)
    assert measured["accuracy"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "sets", "dropout", "says"),
    [
        ("resnet", IMAGES, 0.0, "unknown model 'resnet'; there are cnn, mlp"),
        ("wrn", IMAGES, 0.0, "unknown model 'wrn'"),
        ("wrn-16-0", IMAGES, 0.0, "unknown model 'wrn-16-0'"),
        ("transformer", IMAGES, 0.0, "model transformer reads tokens, but data set .* holds images; use --data sums"),
        ("cnn", load("sums"), 0.0, "model cnn reads images, but data set sums holds tokens; use --data fashion-10k"),
        ("cnn", load("generated:8:3x3:2"), 0.0, "model cnn needs images of at least 4x4 with channels"),
        ("cnn", IMAGES, 1.0, "dropout 1.0 is no share below one"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name, sets, dropout, says):
    with pytest.raises(Misuse, match=says) as raised:
        build(name, sets, dropout)
    assert "\n" not in str(raised.value)


def test_every_model_has_a_recipe_and_a_line_of_help():
    from worldsize.train.models import NAMES, RECIPES

    assert {family(name.replace("K", "4")) for name in NAMES} == RECIPES.keys()


def test_a_set_in_memory_is_indexed_like_any_other():
    part = InMemory(tensors=(torch.arange(4.0), torch.arange(4)))
    assert part[2] == (torch.tensor(2.0), torch.tensor(2))
