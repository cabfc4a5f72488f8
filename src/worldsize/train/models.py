"""The reference models: a linear neuron, MLPs, a small conv net, WideResNets and a small character transformer."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldsize.errors import Misuse
from worldsize.parallel.norm import WorldBatchNorm
from worldsize.train.data import UNCOUNTED, Sets
from worldsize.train.noise import noisy_mean

# Shapes: B batch, C channels, T tokens, K classes, N heads.


class Neuron(nn.Module):
    """One linear unit: a slope and an intercept."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1)

    def forward(self, x_B1: Tensor) -> Tensor:
        return self.line(x_B1)


def mlp(inputs: int, classes: int, width: int, dropout: float) -> nn.Module:
    """Two hidden layers on the flattened image."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def conv_net(channels: int, classes: int, dropout: float) -> nn.Module:
    """Three convolutions with batch norm, about 24 thousand parameters on grey images."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *stage(channels, 16),
        nn.MaxPool2d(2),
        *stage(16, 32),
        nn.MaxPool2d(2),
        *stage(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, classes),
    )


class Block(nn.Module):
    """Two convolutions, normalised first; with `skip`, what comes in is added to what they make."""

    def __init__(self, inputs: int, outputs: int, dropout: float, skip: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Conv2d(inputs, outputs, 1) if skip and inputs != outputs else None
        self.skip = skip

    def forward(self, x_BCHW: Tensor) -> Tensor:
        ready = F.relu(self.norm1(x_BCHW))
        made = self.conv2(self.dropout(F.relu(self.norm2(self.conv1(ready)))))
        if not self.skip:
            return made
        return made + (self.project(ready) if self.project is not None else x_BCHW)


class WideResNet(nn.Module):
    """WideResNet-16-k (Zagoruyko and Komodakis, arXiv:1605.07146) with pooling between its three stages.

    At k = 10 on grey images with ten classes it has 17,117,466 parameters.
    """

    def __init__(self, channels: int, classes: int, widen: int, dropout: float, skip: bool) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        layers: list[nn.Module] = []
        for i in (1, 2, 3):
            layers += [Block(widths[i - 1], widths[i], dropout, skip), Block(widths[i], widths[i], dropout, skip)]
            layers += [nn.MaxPool2d(2)] if i < 3 else []
        self.stages = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(widths[3])
        self.head = nn.Linear(widths[3], classes)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        features = F.relu(self.norm(self.stages(self.stem(x_BCHW))))
        return self.head(features.mean(dim=(2, 3)))


class Layer(nn.Module):
    """One transformer layer, normalised first: causal attention, then two linear maps."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        examples, tokens, width = x_BTC.shape
        mixed = self.query_key_value(self.norm1(x_BTC)).view(examples, tokens, 3, self.heads, width // self.heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4).unbind()
        heard = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTC = x_BTC + self.drop(self.output(heard.transpose(1, 2).reshape(examples, tokens, width)))
        return x_BTC + self.drop(self.feed(self.norm2(x_BTC)))


class Transformer(nn.Module):
    """A small character transformer; the output layer shares the weights of the embedding."""

    def __init__(self, symbols: int, tokens: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(symbols, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x_BT: Tensor) -> Tensor:
        places = torch.arange(x_BT.shape[1], device=x_BT.device)
        return self.head(self.norm(self.layers(self.embed(x_BT) + self.place(places))))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was tried and found good for a model: the rate for which global batch, the optimizer, how long."""

    rate: float
    reference_batch: int = 256
    optimizer: str = "sgd"
    epochs: int
    warmup_epochs: float = 0.0


NAMES = {
    "cnn": "three convolutions with batch norm, 24 thousand parameters",
    "mlp": "two hidden layers of 128",
    "mlp-wide": "two hidden layers of 2,048",
    "wrn-16-K": "WideResNet, widened K times; 10 gives 17 million parameters; wrn-16-K-plain has no skip connections",
    "transformer": "four layers of width 128, 0.8 million parameters, for --data sums",
    "neuron": "one linear unit, for --data line",
}
RECIPES = {
    "cnn": Recipe(rate=0.4, epochs=6, warmup_epochs=0.5),
    "mlp": Recipe(rate=0.1, epochs=6),
    "mlp-wide": Recipe(rate=0.1, epochs=4),
    "wrn": Recipe(rate=0.1, epochs=5),
    "transformer": Recipe(rate=3e-3, optimizer="adamw", epochs=12, warmup_epochs=1.0),
    "neuron": Recipe(rate=0.01, reference_batch=32, epochs=20),
}
KIND = {"transformer": "tokens", "neuron": "line"}


def family(name: str) -> str:
    """The recipe's key for a model's name; refuses names that are none.

    >>> family("wrn-16-2-plain")
    'wrn'
    """
    key = "wrn" if re.fullmatch(r"wrn-16-[1-9]\d?(-plain)?", name) else name
    if key not in RECIPES or (key == "wrn" and name == "wrn"):
        raise Misuse(f"unknown model {name!r}; there are {', '.join(NAMES)}")
    return key


def build(name: str, sets: Sets, dropout: float = 0.0) -> nn.Module:
    """A reference model that fits this data set."""
    key = family(name)
    wanted = KIND.get(key, "images")
    if sets.kind != wanted:
        fitting = {"images": "fashion-10k", "tokens": "sums", "line": "line"}[wanted]
        raise Misuse(f"model {name} reads {wanted}, but data set {sets.name} holds {sets.kind}; use --data {fitting}")
    if not 0 <= dropout < 1:
        raise Misuse(f"dropout {dropout} is no share below one; use 0 to 0.9")
    x, _ = sets.train.take(torch.zeros(1, dtype=torch.long, device="cpu"))
    classes = sets.train.classes
    if key == "neuron":
        return Neuron()
    if key == "transformer":
        return Transformer(classes, x.shape[1], width=128, layers=4, heads=4, dropout=dropout)
    if key in ("mlp", "mlp-wide"):
        return mlp(x.numel(), classes, 128 if key == "mlp" else 2048, dropout)
    if x.dim() != 4 or min(x.shape[2:]) < 4:
        raise Misuse(f"model {name} needs images of at least 4x4 with channels, such as generated:4096:3x32x32:10")
    if key == "cnn":
        return conv_net(x.shape[1], classes, dropout)
    widen = int(name.split("-")[2])
    return WideResNet(x.shape[1], classes, widen, dropout, skip=not name.endswith("-plain"))


def loss_of(
    sets: Sets, model: Callable[[Tensor], Tensor], gradient_noise: float | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean loss of a batch, over its examples or its counted tokens; with noise, the examples weigh at random."""
    reduction = "none" if gradient_noise else "mean"

    def loss(x: Tensor, y: Tensor) -> Tensor:
        out = model(x)
        if sets.kind == "line":
            found, counted = F.mse_loss(out, y, reduction=reduction), None
        else:
            found = F.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=UNCOUNTED, reduction=reduction)
            counted = (y != UNCOUNTED).sum()
        return noisy_mean(found.view(len(y), -1), gradient_noise, counted) if gradient_noise else found

    return loss


def count_of(sets: Sets) -> Callable[[Tensor, Tensor], Tensor] | None:
    """How much a batch counts in the mean over the global batch, where that is not its number of examples."""
    return (lambda _, y: (y != UNCOUNTED).sum()) if sets.kind == "tokens" else None


def measures_of(sets: Sets, model: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """Per example: the loss, and for all but the line whether the answer is right (of text: all of it)."""

    def measures(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        out = model(x)
        if sets.kind == "line":
            return {"loss": (out - y).square().flatten(1).mean(1)}
        right = (out.argmax(-1) == y) | (y == UNCOUNTED)
        losses = F.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=UNCOUNTED, reduction="none")
        counted = (y != UNCOUNTED).view(len(y), -1)
        per_example = losses.view(len(y), -1).sum(1) / counted.sum(1)
        return {"loss": per_example, "accuracy": right.view(len(y), -1).all(1).float()}

    return measures


def parameters_of(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def has_batch_norm(model: nn.Module) -> bool:
    """Does it normalise by the statistics of its own batch? A frozen layer, held in evaluation, does not."""
    layers = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return any(layer.training and not isinstance(layer, WorldBatchNorm) for layer in layers)
