"""Batch norm across workers equals that of one big batch; ghost batch norm that of many small ones."""

import pytest
import torch
from parallel import norms
from torch import nn

from worldsize.errors import Misuse
from worldsize.parallel.norm import GhostBatchNorm, WorldBatchNorm, convert, crosses_workers
from worldsize.run.pool import run_workers, tell
from worldsize.train import loop
from worldsize.train.settings import Run


@pytest.mark.parametrize("whole_net", [False, True])
@pytest.mark.parametrize(
    ("sizes", "affine"), [([6, 6], True), ([6, 6], False), ([1, 7], True), ([4, 4, 4, 4], True), ([5, 1, 2, 3], True)]
)
def test_workers_together_have_the_norm_of_one_big_batch(sizes, affine, whole_net):
    parts = run_workers(norms.part, sizes, affine, whole_net, workers=len(sizes), limit_s=60)
    norms.check(parts, sizes, affine, whole_net)


def test_a_worker_without_examples_is_told_so():
    with pytest.raises(Misuse, match="give every worker at least one example"):
        run_workers(norms.empty_part, workers=2, limit_s=60)


def test_alone_and_in_evaluation_it_is_plain_batch_norm():
    x, _ = norms.examples(8)
    torch.manual_seed(0)
    plain, ours = nn.BatchNorm2d(2), convert(nn.BatchNorm2d(2), "sync")
    for _ in range(3):
        assert torch.allclose(ours(x), plain(x), atol=1e-6)
    assert torch.allclose(ours.running_var, plain.running_var)
    assert torch.allclose(ours.eval()(x), plain.eval()(x), atol=1e-6)
    assert not crosses_workers(ours)


@pytest.mark.parametrize(("examples", "parts"), [(8, 2), (9, 2), (12, 3), (3, 1)])
def test_a_ghost_normalises_each_part_by_itself(examples, parts):
    x, _ = norms.examples(examples)
    ghost, plain = GhostBatchNorm(2, 4), nn.BatchNorm2d(2)
    expected = torch.cat([plain(part) for part in x.tensor_split(parts)])
    assert torch.equal(ghost(x), expected)
    assert torch.equal(ghost.running_mean, plain.running_mean)
    assert torch.equal(ghost.eval()(x), plain.eval()(x))


def test_a_model_is_converted_whole_and_keeps_its_parameters_and_names():
    model = nn.Sequential(norms.net(), nn.BatchNorm1d(3, affine=False).eval())
    before, names = list(model.parameters()), list(model.state_dict())
    convert(model, "sync")
    assert [a is b for a, b in zip(model.parameters(), before, strict=True)] == [True] * len(before)
    assert list(model.state_dict()) == names
    kinds = [type(module) for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert kinds == [WorldBatchNorm] * 4
    assert not model[1].training
    assert crosses_workers(model)
    assert type(convert(nn.BatchNorm1d(3), "ghost", ghost_batch=8)) is GhostBatchNorm
    assert type(convert(nn.BatchNorm1d(3), "batch")) is nn.BatchNorm1d


def test_what_cannot_be_is_said_in_one_line():
    with pytest.raises(Misuse, match="unknown norm 'layer'; there are batch, sync, ghost"):
        convert(norms.net(), "layer")
    with pytest.raises(Misuse, match="a ghost batch of 1 has no spread"):
        convert(norms.net(), "ghost", ghost_batch=1)


def trained(workers: int, norm: str) -> str:
    run = Run(
        model="cnn", data="generated:96:1x8x8:4", norm=norm, ghost_batch=2, replicas=4, batch_per_replica=6, epochs=1
    )
    return run_workers(loop.train_worker, run, None, None, tell, workers=workers, limit_s=60)[0]["weights_sha256"]


def test_a_ghost_gives_one_hash_for_every_number_of_workers():
    assert len({trained(workers, "ghost") for workers in (1, 2, 3)} | {trained(4, "ghost")}) == 1
    assert trained(1, "ghost") != trained(1, "batch")


def test_norms_across_workers_give_one_hash_for_every_number_of_workers():
    assert len({trained(workers, "sync") for workers in (1, 3, 4)}) == 1
    assert trained(4, "sync") == trained(4, "sync") != trained(4, "batch")


def test_under_autocast_statistics_have_the_precision_of_the_weights():
    model, (x, _) = convert(norms.layer(), "sync"), norms.examples(8)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x.bfloat16())
    assert out.dtype == torch.bfloat16
    exact = x.bfloat16().float().mean((0, 2, 3))
    assert torch.allclose(model[0].running_mean, 0.1 * exact, rtol=1e-6)
    out.float().square().sum().backward()
    assert model[0].weight.grad.dtype == torch.float32
