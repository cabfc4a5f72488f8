"""Train a small transformer to add numbers, on any number of workers. Compare with one_device.py beside it."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import worldsize
from worldsize.train.data import SYMBOLS, UNCOUNTED, load

WIDTH, HEADS, LAYERS = 64, 4, 2


class Adder(nn.Module):
    """A causal transformer over characters, from torch's own layers."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(len(SYMBOLS), WIDTH), nn.Embedding(tokens, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, len(SYMBOLS))
        self.register_buffer("ahead", nn.Transformer.generate_square_subsequent_mask(tokens))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place.weight
        return self.out(self.layers(x, mask=self.ahead, is_causal=True))


def counted(x: Tensor, y: Tensor) -> Tensor:
    """How many tokens count in the loss: those of the answer."""
    return (y != UNCOUNTED).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    sets = load("sums")
    torch.manual_seed(0)
    model = Adder(tokens=sets.train.tensors[0].shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def right(x: Tensor, y: Tensor) -> Tensor:
        return ((model(x).argmax(2) == y) | (y == UNCOUNTED)).all(1).float()

    job = worldsize.join(model, optimizer, replicas=8, batch_per_replica=32)
    for epoch in job.epochs(options.epochs):
        for x, y in job.batches(sets.train, count=counted):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=UNCOUNTED)
            job.backward(loss)
        accuracy = job.evaluate(right, sets.test)
        job.print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}")
    job.print(f"weights_sha256 {worldsize.weights_sha256(model)}")


if __name__ == "__main__":
    main()
