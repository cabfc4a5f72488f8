"""Surfaces with known answers, for workers of the pool too: they call `bowl` by its name."""

import torch
from torch import nn

from worldsize.accuracy.directions import filter_normalised
from worldsize.accuracy.surface import Surface


class Bowl(nn.Module):
    """Its loss is x * (w - 1)^2, summed over two weights, for each example x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))

    def measure(self, x):
        return {"loss": x * (self.weight - 1).square().sum(), "accuracy": (x > 2).float()}


def bowl(broken_from: float = 2.0) -> Surface:
    """Along the two weights, on unequal batches with mean 3; from a distance on the loss is infinite."""
    model = Bowl()

    def measure(x):
        found = model.measure(x)
        if model.weight.detach().max() > 1 + broken_from:
            found["loss"] = found["loss"] * float("inf")
        return found

    along = [{"weight": torch.eye(2, dtype=torch.float64)[i : i + 1]} for i in range(2)]
    batches = [(torch.tensor([1.0, 2.0], dtype=torch.float64),), (torch.tensor([3.0, 4, 5], dtype=torch.float64),)]
    others = {"broken": lambda surface: {"at": float("inf")}}
    return Surface(model=model, measure=measure, batches=batches, directions=along, others=others)


def net() -> Surface:
    """A net with batch norm, in float32, along two random directions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(size, 1, 6, 6, generator=generator), torch.arange(size) % 3) for size in (7, 4)]

    def measure(x, y):
        return {"loss": nn.functional.cross_entropy(model(x), y, reduction="none")}

    ways = [filter_normalised(model, torch.Generator().manual_seed(seed)) for seed in (2, 3)]
    return Surface(model=model, measure=measure, batches=batches, directions=ways)
