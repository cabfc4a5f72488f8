"""Exact evaluation: every example once, in fixed blocks, with the same bits for every world size."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from worldsize.errors import LossError
from worldsize.parallel.world import World
from worldsize.plan import shards
from worldsize.plan.streams import stream_seed
from worldsize.train import data
from worldsize.train.randomness import seed_all

BLOCK = 250  # examples; another size can change the last bits of what a model computes
MOST_FOR_NORMS = 2000  # examples, over which statistics are known to a few percent


def evaluate(
    model: nn.Module,
    world: World,
    seed: int,
    measure: Callable[..., Tensor | dict[str, Tensor]],
    test_set: Dataset,
    collate: Callable[[list], Any] | None = None,
) -> Any:
    """The mean of a measure over a data set, or of each measure in a dict. Every worker must call this."""
    places = torch.arange(data.size_of(test_set))
    sums = _by_block(
        model, world, seed, test_set, places, lambda batch, size: _sums(measure(*data.parts_of(batch)), size), collate
    )
    means = {name: sum(block[name] for block in sums) / len(places) for name in sums[0]}
    return means[""] if list(means) == [""] else means


def refit_norms(
    model: nn.Module,
    world: World,
    seed: int,
    measure: Callable[..., Any],
    train_set: Dataset,
    collate: Callable[[list], Any] | None = None,
) -> None:
    """Give batch norm the statistics that the weights of now make on some of a data set. Every worker must call this.

    Those gathered in training belong to the weights of then, which matters once the weights are averaged (Izmailov et
    al., arXiv:1803.05407). They are the mean over fixed blocks, so the same bits for every world size.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    buffers = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
    if not buffers:
        return

    def statistics(batch: Any, size: int) -> list[Tensor]:
        measure(*data.parts_of(batch))
        return [size * buffer.double().cpu() for buffer in buffers]

    places = shards.order(data.size_of(train_set), 0, seed)[:MOST_FOR_NORMS]
    hooks = [norm.register_forward_pre_hook(_show_own_statistics) for norm in norms]
    try:
        found = _by_block(model, world, seed, train_set, places, statistics, collate)
    finally:
        for hook in hooks:
            hook.remove()
    for place, buffer in enumerate(buffers):
        buffer.copy_(torch.stack([block[place] for block in found]).sum(0) / len(places))


def _show_own_statistics(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Before a norm in evaluation normalises a block: have it do so by the block's own statistics, as in training."""
    if norm.running_mean is not None:
        variance, mean = torch.var_mean(inputs[0].float(), [d for d in range(inputs[0].dim()) if d != 1], correction=0)
        norm.running_mean.copy_(mean)  # type: ignore[operator]  # they are tensors
        norm.running_var.copy_(variance)  # type: ignore[operator]


def _by_block(
    model: nn.Module,
    world: World,
    seed: int,
    data_set: Dataset,
    places: Tensor,
    do: Callable[[Any, int], Any],
    collate: Callable[[list], Any] | None,
) -> list[Any]:
    """What `do` makes of each fixed block of these examples, in order, the same on every worker."""
    blocks = list(shards.spans(len(places), BLOCK))
    mine = range(world.worker, len(blocks), world.size)
    served = data.serve(
        data_set,
        [places[blocks[i].start : blocks[i].stop] for i in mine],
        device=world.device,
        seed=seed,
        epoch=0,
        collate=collate,
    )
    done = {}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            for i, batch in zip(mine, served, strict=True):
                seed_all(stream_seed(seed, 0, 0, i, "evaluate"))
                done[i] = do(batch, len(blocks[i]))
    finally:
        for module, training in modes:  # one by one: the user may hold some of them in evaluation
            module.training = training
    whole = {i: made for theirs in world.gather(done) for i, made in theirs.items()}
    return [whole[i] for i in range(len(blocks))]


def _sums(measured: Any, examples: int) -> dict[str, float]:
    """The sum over a block of each measure; sums are taken in float64 so that their order shows in no digit printed."""
    named = measured if isinstance(measured, dict) else {"": measured}
    for name, values in named.items():
        if not isinstance(values, Tensor) or values.shape != (examples,):
            got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise LossError(
                f"the measure {name or 'of evaluate'} gave {got} for {examples} examples; "
                "give a tensor with one number per example, such as (out.argmax(1) == y).float()"
            )
    return {name: values.double().sum().item() for name, values in named.items()}
