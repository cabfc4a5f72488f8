"""Curvature is that of the exact Hessian, on a small net and on quadratics; the model is left as it was."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from worldsize.accuracy.curvature import eigenvalues, sharpness, trace
from worldsize.errors import LossError, Misuse, NotFinite
from worldsize.train.models import Transformer

SIZES = (5, 9, 2)  # of the batches: their plain mean is not the mean over the examples


def net(dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3))
    return model.to(dtype)


def batches(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 3, generator=generator).to(dtype), torch.randint(3, (size,), generator=generator))
        for size in SIZES
    ]


def loss_of(model):
    return lambda x, y: F.cross_entropy(model(x), y)


def whole():
    return tuple(torch.cat(parts) for parts in zip(*batches(), strict=True))


@pytest.fixture(autouse=True)
def _one_thread():
    """On cores that others use as well, many threads on small tensors only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def exact():
    """The Hessian of the net's loss over all examples, number by number."""
    model, (x, y) = net().eval(), whole()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return F.cross_entropy(functional_call(model, named, (x,)), y)

    return hessian(loss, torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))


class Bowl(nn.Module):
    """w'Hw / 2 at given weights, with a chosen spectrum in a random basis, or in that of the weights."""

    def __init__(self, spectrum, at=None, turned=True):
        super().__init__()
        size = len(spectrum)
        turn = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))[0] if turned else torch.eye(size).double()
        self.register_buffer("matrix", turn @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ turn.T)
        self.weight = nn.Parameter(torch.zeros(size).double() if at is None else torch.tensor(at).double())

    def loss(self, x):
        return x.mean() * self.weight @ self.matrix @ self.weight / 2


ONE = [(torch.ones(4, dtype=torch.float64),)]


# ---- eigenvalues -----------------------------------------------------------------------------------------------------


def test_the_largest_eigenvalues_are_those_of_the_exact_hessian(exact):
    model = net()
    found = eigenvalues(model, loss_of(model), batches(), top=3)
    expected = torch.linalg.eigvalsh(exact).flip(0)[:3].tolist()
    assert [one.value for one in found] == pytest.approx(expected, rel=0.01)
    for one, value in zip(found, expected, strict=True):
        assert one.converged
        assert abs(one.value - value) <= one.residual + 1e-12
        assert one.iterations <= 25, "it stops when it is near enough, of 48 that there could be"


def test_float32_comes_as_near(exact):
    model = net(torch.float32)
    (found,) = eigenvalues(model, loss_of(model), batches(torch.float32))
    assert found.value == pytest.approx(torch.linalg.eigvalsh(exact)[-1].item(), rel=0.01)


@pytest.mark.parametrize(
    ("spectrum", "top"),
    [
        ([-7.0, 1.0, 3.0, 0.5], [3.0, 1.0, 0.5, -7.0]),  # by value: the largest in size is the last
        ([-3.0, -1.0, -2.0], [-1.0, -2.0, -3.0]),
        ([4.0], [4.0]),
        ([2.0, 2.0, 2.0, 5.0], [5.0, 2.0]),  # once each
        ([0.0, 0.0], [0.0]),
        ([1.0, 0.0, 3.0], [3.0, 1.0, 0.0]),
    ],
)
def test_a_quadratic_has_the_eigenvalues_it_was_made_of(spectrum, top):
    torch.manual_seed(0)
    bowl = Bowl(spectrum)
    found = eigenvalues(bowl, bowl.loss, ONE, top=len(spectrum), tolerance=1e-9)
    assert [one.value for one in found] == pytest.approx(top, rel=1e-6, abs=1e-9)
    assert all(one.converged for one in found)


def test_too_few_iterations_are_said(exact):
    model = net()
    (found,) = eigenvalues(model, loss_of(model), batches(), most=2)
    assert found.iterations == 2
    assert not found.converged


def test_a_loss_that_bends_nowhere_has_no_curvature():
    model = nn.Linear(2, 1)
    (found,) = eigenvalues(model, lambda x: model(x).mean(), [(torch.ones(3, 2),)])
    assert (found.value, found.residual) == (0, 0)


# ---- trace -----------------------------------------------------------------------------------------------------------


def test_the_trace_is_that_of_the_exact_hessian(exact):
    model = net()
    found = trace(model, loss_of(model), batches(), probes=400)
    assert abs(found.value - exact.trace().item()) <= 2 * found.error
    few = trace(model, loss_of(model), batches(), probes=40)
    assert few.error == pytest.approx(found.error * 10**0.5, rel=0.4), "the error falls with the root of the probes"


def test_with_enough_probes_the_trace_is_within_a_hundredth():
    torch.manual_seed(0)
    bowl = Bowl([1.0, 2.0, 3.0, 4.0, -1.0])
    found = trace(bowl, bowl.loss, ONE, probes=3000)
    assert found.value == pytest.approx(9.0, rel=0.01)
    assert 0 < found.error < 0.1


def test_the_trace_of_a_diagonal_hessian_needs_no_luck():
    bowl = Bowl([1.0, -2.0, 6.0], turned=False)
    found = trace(bowl, bowl.loss, ONE, probes=2)
    assert (found.value, found.error) == (5.0, 0.0)


# ---- sharpness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-3, 0.5])
def test_the_sharpness_of_a_quadratic_is_known(epsilon):
    at = [0.0, 2.0, -1.0]
    bowl = Bowl([3.0, 1.0, -4.0], at=at, turned=False)
    low = 0.5 * (1 * 4 - 4 * 1)
    # Up the first two walls to the end of the box, and on the ridge as near to its top as the box allows.
    ridge = max(0.0, 1 - 2 * epsilon)
    high = 0.5 * (3 * epsilon**2 + (2 + 3 * epsilon) ** 2 - 4 * ridge**2)
    found = sharpness(bowl, bowl.loss, ONE, epsilon=epsilon, steps=60)
    assert found.loss == pytest.approx(low, abs=1e-12)
    assert found.highest == pytest.approx(high, rel=1e-3)
    assert found.value == pytest.approx(100 * (high - low) / (1 + low), rel=1e-3)


def test_sharpness_finds_more_than_random_places_and_stays_in_the_box():
    model, (x, y) = net().eval(), whole()
    found = sharpness(model, loss_of(model), batches(), epsilon=0.05)
    home = [parameter.detach().clone() for parameter in model.parameters()]
    seen = []
    with torch.no_grad():
        for _ in range(300):
            for parameter, weight in zip(model.parameters(), home, strict=True):
                parameter.copy_(weight + 0.05 * (weight.abs() + 1) * torch.randn_like(weight).sign())
            seen.append(loss_of(model)(x, y).item())
    assert found.loss < max(seen) < found.highest
    slope = sum((0.05 * (weight.abs() + 1)).sum() for weight in home)
    assert found.highest - found.loss < 2 * slope


def test_a_larger_box_holds_more():
    model = net()
    values = [sharpness(model, loss_of(model), batches(), epsilon=e).value for e in (5e-4, 1e-3, 1e-2)]
    assert 0 < values[0] < values[1] < values[2]


# ---- all of them -----------------------------------------------------------------------------------------------------

MEASURES = {
    "eigenvalues": lambda model, *rest, **more: eigenvalues(model, *rest, **more),
    "trace": lambda model, *rest, **more: trace(model, *rest, probes=3, **more),
    "sharpness": lambda model, *rest, **more: sharpness(model, *rest, **more),
}


@pytest.mark.parametrize("name", MEASURES)
def test_batches_of_any_size_give_the_mean_over_the_examples(name):
    model = net()
    parts = repr(MEASURES[name](model, loss_of(model), batches()))
    joined = repr(MEASURES[name](model, loss_of(model), [whole()]))
    assert numbers(parts) == pytest.approx(numbers(joined), rel=1e-6, abs=1e-9)


def test_what_a_batch_counts_can_be_said():
    model, (x, y) = net(), whole()
    padded = torch.cat([y, torch.full((4,), -100)])
    rows = [(torch.cat([x, x[:4]])[i : i + 5], padded[i : i + 5]) for i in range(0, 20, 5)]
    found = eigenvalues(model, loss_of(model), rows, count=lambda x, y: (y >= 0).sum())
    assert found[0].value == pytest.approx(eigenvalues(model, loss_of(model), [(x, y)])[0].value)


@pytest.mark.parametrize("name", MEASURES)
def test_a_seed_gives_the_same_numbers_and_no_other_draws_are_made(name):
    model = net()
    before = torch.get_rng_state()
    found = [MEASURES[name](model, loss_of(model), batches(), seed=seed) for seed in (3, 3, 4)]
    assert found[0] == found[1]
    assert name == "sharpness" or found[0] != found[2]
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("name", MEASURES)
def test_the_model_is_left_as_it_was(name, breaks):
    model = net().train()
    model[1].eval()
    model[0].bias.requires_grad = False
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    seen = []

    def loss(x, y):
        assert not any(module.training for module in model.modules())
        seen.append(x)
        if breaks and len(seen) > 7:
            raise RuntimeError("out of memory")
        model[1].running_mean += 1
        return loss_of(model)(x, y)

    if breaks:
        with pytest.raises(RuntimeError, match="out of memory"):
            MEASURES[name](model, loss, batches())
    else:
        MEASURES[name](model, loss, batches())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert [module.training for module in model] == [True, False, True, True, True]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True, True, True, True]
    assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model.parameters())


def test_frozen_parameters_are_no_part_of_the_space(exact):
    model = net()
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad = False
    (found,) = eigenvalues(model, loss_of(model), batches())
    assert found.value == pytest.approx(torch.linalg.eigvalsh(exact[-18:, -18:])[-1].item(), rel=0.01)


def test_attention_can_be_bent():
    torch.manual_seed(0)
    model = Transformer(7, 5, width=8, layers=1, heads=2, dropout=0.1)
    data = [(torch.randint(7, (6, 5)), torch.randint(7, (6, 5)))]

    def loss(x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    assert eigenvalues(model, loss, data)[0].converged
    assert trace(model, loss, data, probes=2).value != 0


@pytest.mark.parametrize("name", MEASURES)
def test_weights_without_a_finite_loss_are_refused(name):
    model = net()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(NotFinite, match="at these weights; take weights of a good run"):
        MEASURES[name](model, loss_of(model), batches())


def test_what_cannot_be_is_refused():
    model = net()
    refusals = [
        (Misuse, "can be read only once", lambda: trace(model, loss_of(model), iter(batches()))),
        (LossError, "count nothing together", lambda: trace(model, loss_of(model), [])),
        (Misuse, "1 probes say nothing", lambda: trace(model, loss_of(model), batches(), probes=1)),
        (Misuse, "0 eigenvalues", lambda: eigenvalues(model, loss_of(model), batches(), top=0)),
        (Misuse, "tolerance of nan", lambda: eigenvalues(model, loss_of(model), batches(), tolerance=float("nan"))),
        (Misuse, "epsilon nan", lambda: sharpness(model, loss_of(model), batches(), epsilon=float("nan"))),
        (Misuse, "0 steps", lambda: sharpness(model, loss_of(model), batches(), steps=0)),
        (Misuse, "no parameter", lambda: trace(net().requires_grad_(False), loss_of(model), batches())),
    ]
    for kind, words, call in refusals:
        with pytest.raises(kind, match=words):
            call()


def numbers(text):
    return [float(word) for word in text.replace(")", ",").replace("=", ",").split(",") if _is_number(word)]


def _is_number(word):
    try:
        float(word)
    except ValueError:
        return False
    return True
