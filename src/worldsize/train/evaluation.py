"""Exact evaluation: every example once, in fixed blocks, with the same bits for every world size."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from worldsize.errors import LossError
from worldsize.parallel.world import World
from worldsize.plan import shards
from worldsize.plan.streams import stream_seed
from worldsize.train import data
from worldsize.train.randomness import seed_all

BLOCK = 250  # examples; another size can change the last bits of what a model computes


def evaluate(
    model: nn.Module,
    world: World,
    seed: int,
    measure: Callable[..., Tensor | dict[str, Tensor]],
    test_set: Dataset,
    collate: Callable[[list], Any] | None = None,
) -> Any:
    """The mean of a measure over a data set, or of each measure in a dict. Every worker must call this."""
    blocks = list(shards.spans(data.size_of(test_set), BLOCK))
    mine = range(world.worker, len(blocks), world.size)
    served = data.serve(
        test_set,
        [torch.arange(blocks[i].start, blocks[i].stop) for i in mine],
        device=world.device,
        seed=seed,
        epoch=0,
        collate=collate,
    )
    sums = {}
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            for i, batch in zip(mine, served, strict=True):
                seed_all(stream_seed(seed, 0, 0, i, "evaluate"))
                sums[i] = _sums(measure(*data.parts_of(batch)), len(blocks[i]))
    finally:
        for module, training in modes:  # one by one: the user may hold some of them in evaluation
            module.training = training
    whole = {i: sums_of for theirs in world.gather(sums) for i, sums_of in theirs.items()}
    means = {name: sum(whole[i][name] for i in range(len(blocks))) / blocks[-1].stop for name in whole[0]}
    return means[""] if list(means) == [""] else means


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
