"""What both sides of the comparison train: the same models on the same tensors."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from worldsize.train import data, models

SETS = {"cnn": "fashion-10k", "wrn-16-2": "fashion-10k", "transformer": "sums", "mlp": "fashion-10k"}


def make(name: str) -> tuple[nn.Module, TensorDataset, Callable[[Tensor, Tensor], Tensor]]:
    """A model, its data as plain tensors, and its loss."""
    sets = data.load(SETS[name])
    model = models.build(name, sets)
    tensors = sets.train.take(torch.arange(len(sets.train)))

    def loss_of(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=data.UNCOUNTED)

    return model, TensorDataset(*tensors), loss_of
