"""Train a small conv net on Fashion-MNIST, on any number of workers. Compare with one_device.py beside it."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import worldsize
from worldsize.train.data import load


class ConvNet(nn.Module):
    """Two convolutions and two linear layers, 24 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16)
        self.hidden, self.out = nn.Linear(16 * 5 * 5, 50), nn.Linear(50, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.out(self.dropout(F.relu(self.hidden(x.flatten(1)))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    sets = load("fashion-10k")
    torch.manual_seed(0)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def right(x: Tensor, y: Tensor) -> Tensor:
        return (model(x).argmax(1) == y).float()

    job = worldsize.join(model, optimizer, replicas=8, batch_per_replica=32)
    for epoch in job.epochs(options.epochs):
        for x, y in job.batches(sets.train):
            loss = F.cross_entropy(model(x), y)
            job.backward(loss)
        accuracy = job.evaluate(right, sets.test)
        job.print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}")
    job.print(f"weights_sha256 {worldsize.weights_sha256(model)}")


if __name__ == "__main__":
    main()
