"""Train a small transformer to add numbers, on one device: ordinary PyTorch. Compare with many_workers.py beside it."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

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

    for epoch in range(options.epochs):
        model.train()
        for x, y in DataLoader(sets.train, batch_size=256, shuffle=True):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=UNCOUNTED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = torch.cat([right(x, y) for x, y in DataLoader(sets.test, batch_size=250)]).mean().item()
        print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}")
    print(f"weights_sha256 {worldsize.weights_sha256(model)}")


if __name__ == "__main__":
    main()
