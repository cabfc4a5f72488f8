"""One set of bits for every world size: `exact` sync against itself and against plain PyTorch."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from parallel.worlds import held_or_not, one_gradient
from proof import write_table
from train.jobs import Case, one_result, train, train_all

from worldsize.run.pool import run_workers

CATALOGUE = [
    Case(net=net, optimizer=optimizer, replicas=replicas, epochs=20 if replicas == 4 else 26)
    for net, optimizer, replicas in itertools.product(("conv", "wrn", "transformer"), ("sgd", "adamw"), (4, 6, 8))
]
SAMPLE = [replace(case, epochs=2) for case in random.Random(1).sample(CATALOGUE, 5)]
SPECIAL = [
    Case(net="odd"),
    Case(net="odd", replicas=7, optimizer="adamw", bucket_mb=0.0001),
    Case(net="mlp", optimizer="langevin"),
    Case(clip_norm=0.1, scheduled=True, optimizer="adamw", replicas=6),
    Case(precision="bf16", replicas=6),
    Case(net="mlp", weights="bfloat16", replicas=7),
    Case(net="smooth", weights="float64", replicas=5),
    Case(net="mlp", beside=True, loops=2, examples=26, batch_per_replica=3),
    Case(net="transformer", examples=21, replicas=6, batch_per_replica=3),
]


def test_one_to_four_workers_give_one_hash_for_a_sample_of_the_catalogue():
    found = one_result(SAMPLE)
    assert len({result["weights_sha256"] for result in found}) == len(SAMPLE), "each experiment has a hash of its own"


def test_one_to_four_workers_give_one_hash_for_everything_that_models_and_loops_do():
    found = one_result(SPECIAL)
    assert len({result["weights_sha256"] for result in found}) == len(SPECIAL)
    assert found[0]["grads_none"] == ["frozen.weight", "frozen.bias", "never.weight", "never.bias"]


@pytest.mark.proof
def test_one_to_four_workers_give_one_hash_for_the_whole_catalogue(repository: Path):
    found = one_result(CATALOGUE)
    assert min(result["steps"] for result in found) >= 50
    write_table(
        repository,
        "one-hash",
        "One hash for every number of workers",
        "Written by `make proof` (tests/parallel/test_exact.py). Each row was trained on 1, 2, 3 and 4 workers;\n"
        "weights, buffers, losses and evaluation had the same bits on all of them. Dropout and batch norm are on\n"
        "(conv, wrn), examples are weighted by tokens (transformer), and short batches are kept.",
        {"model": "---", "optimizer": "---", "replicas": "---:", "steps": "---:", "weights": "---"},
        [
            [case.net, case.optimizer, case.replicas, result["steps"], f"`{result['weights_sha256'][:16]}`"]
            for case, result in zip(CATALOGUE, found, strict=True)
        ],
    )


def test_settings_of_speed_change_no_bit():
    plain = Case(net="odd", replicas=6)
    (expected,) = one_result([plain], workers=[1])
    for workers, bucket_mb in [(1, 0.0001), (2, 0.0001), (3, 0.001), (2, 100.0), (6, 0.002)]:
        found = run_workers(train_all, [replace(plain, bucket_mb=bucket_mb)], workers=workers)
        assert [result == expected for (result,) in found] == [True] * workers, (workers, bucket_mb)


def test_augmentation_and_loader_workers_change_no_bit():
    case = Case(net="mlp", augmented=True, epochs=1)
    (expected,) = one_result([case], workers=[1, 2, 3])
    for workers, loader_workers in [(1, 2), (2, 1)]:
        for found in run_workers(train, replace(case, loader_workers=loader_workers), workers=workers):
            assert found == expected
    (other,) = run_workers(train_all, [replace(case, augmented=False)], workers=1)
    assert other[0] != expected, "the augmentation does something"


def test_an_overflow_in_half_precision_is_skipped_by_all_workers_together():
    (found,) = one_result([Case(net="mlp", precision="fp16", epochs=8)])
    falls = [after < before for before, after in itertools.pairwise([2.0**22, *found["scales"]])]
    rises = [after > before for before, after in itertools.pairwise(found["scales"])]
    assert any(falls), "some step overflowed"
    assert any(rises), "and some did not"


def test_workers_without_examples_at_the_short_batch_stay_in_step():
    found = one_result(
        [
            Case(net=net, replicas=replicas, batch_per_replica=3, examples=6 * replicas + rest)
            for net, replicas, rest in [("mlp", 4, 1), ("odd", 4, 2), ("mlp", 6, 1), ("odd", 7, 3)]
        ]
    )
    assert [result["steps"] for result in found] == [6] * 4


def test_every_split_of_five_replicas_gives_one_hash():
    one_result([Case(net="mlp", replicas=5, batch_per_replica=2, examples=32)], workers=range(1, 6))


@pytest.mark.parametrize("epochs", [1, pytest.param(10, marks=pytest.mark.proof)])
def test_a_thousand_replicas_give_one_hash_on_one_two_and_four_workers(epochs):
    case = Case(net="mlp", replicas=1024, batch_per_replica=1, examples=1500, epochs=epochs, evaluated=False)
    (found,) = one_result([case], workers=[1, 2, 4])
    assert found["steps"] == 2 * epochs


@pytest.mark.parametrize("compiler", ["eager", pytest.param("inductor", marks=pytest.mark.proof)])
def test_compiling_the_model_keeps_one_hash(compiler):
    (compiled,) = one_result([Case(net="smooth", compiler=compiler, examples=60, epochs=1)], workers=[1, 2])
    assert compiled["steps"] == 3


# ---- against plain PyTorch -------------------------------------------------------------------------------------------


def rows_of(examples: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = {"x": (examples, 64), "1.weight": (32, 64), "1.bias": (32,), "3.weight": (10, 32), "3.bias": (10,)}
    rows = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in draw.items()}
    return rows | {"y": torch.randint(10, (examples,), generator=generator)}


def plain_gradient(rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One process, the joined batch, ordinary PyTorch."""
    weights = {name: rows[name].clone().requires_grad_() for name in rows if name[0] in "13"}
    hidden = F.linear(rows["x"], weights["1.weight"], weights["1.bias"]).tanh()
    out = F.linear(hidden, weights["3.weight"], weights["3.bias"])
    losses = F.cross_entropy(out, rows["y"], reduction="none")
    counts = rows.get("count", torch.ones(len(losses), dtype=torch.float64))
    loss = (losses * counts).sum() / counts.sum()
    loss.backward()
    return {"loss": loss.detach(), **{name: weight.grad for name, weight in weights.items()}}


@pytest.mark.parametrize(("replicas", "examples"), [(4, 12), (4, 10), (6, 13), (7, 3)])
@pytest.mark.parametrize("counted", [False, True])
def test_replicas_have_the_gradient_of_one_process_on_the_joined_batch(replicas, examples, counted):
    """Shards of unequal size, and examples that count unequally: a true mean, not a mean of means."""
    rows = rows_of(examples)
    if counted:
        rows["count"] = torch.rand(examples, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = plain_gradient(rows)
    case = Case(replicas=replicas, batch_per_replica=3)
    found = [run_workers(one_gradient, case, rows, workers=workers) for workers in (1, 3)]
    for result in itertools.chain.from_iterable(found):
        assert result["loss"] == pytest.approx(expected["loss"].item(), rel=1e-12)
        for name in expected.keys() - {"loss"}:
            assert (result[name] == found[0][0][name]).all(), "also fractions are counted the same on all workers"
        whole = torch.cat([expected[name].flatten() for name in sorted(expected.keys() - {"loss"})])
        ours = torch.cat([torch.from_numpy(result[name]).flatten() for name in sorted(expected.keys() - {"loss"})])
        assert (ours - whole).norm() <= 1e-12 * whole.norm()


def test_clipping_gives_the_gradient_that_one_process_would_clip():
    rows = rows_of(12)
    expected = plain_gradient(rows)
    norm = torch.cat([expected[name].flatten() for name in expected if name != "loss"]).norm()
    (found, _) = run_workers(one_gradient, Case(replicas=4, batch_per_replica=3, clip_norm=0.25), rows, workers=2)
    assert norm > 0.25
    for name in expected.keys() - {"loss"}:
        torch.testing.assert_close(torch.from_numpy(found[name]), expected[name] * 0.25 / norm, rtol=1e-5, atol=0)


def test_examples_that_count_nothing_are_left_out():
    rows = rows_of(12)
    rows["count"] = torch.tensor([1.0, 0.0, 0.0, 2.0] * 3, dtype=torch.float64)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))  # place i of the step reads example order[i]
    rows["count"][order[1::4]] = 0.0  # all that replica 1 reads
    rows["count"][order[3::4]] = 0.0  # and the last replica
    rows["count"][order[0]] = 1.0
    expected = plain_gradient(rows)
    found = [run_workers(one_gradient, Case(replicas=4, batch_per_replica=3), rows, workers=w)[0] for w in (1, 2, 4)]
    for name in expected.keys() - {"loss"}:
        torch.testing.assert_close(torch.from_numpy(found[0][name]), expected[name], rtol=1e-10, atol=1e-14)
        assert all((found[0][name] == other[name]).all() for other in found)


def test_gradients_that_are_held_and_pushed_later_give_the_same_bits():
    found = held_or_not(held=True)
    assert found == held_or_not(held=False)
    assert [name for name, gradient in found.items() if gradient is None] == ["never.weight", "never.bias"]
