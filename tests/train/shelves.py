"""What the workers of the buffer tests run."""

import torch
from torch import nn

from worldsize.parallel.world import join_world
from worldsize.plan import digest
from worldsize.train.buffers import ReplicaBuffers


class Counter(nn.Module):
    """Buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 1 / 3]))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("low", torch.tensor([0.5], dtype=torch.bfloat16))
        self.register_buffer("turn", torch.tensor([1j]))
        self.register_buffer("constant", torch.tensor([0.1, 1e-30, 7e30]))
        self.register_buffer("replaced", torch.tensor(0.0))

    def see(self, value: float) -> None:
        self.mean += value
        self.steps += 1
        self.replaced = self.replaced + value  # another tensor in its place


def after_two_rounds(replicas: int) -> dict[str, object]:
    """Each replica has seen its own numbers; what evaluation then uses, and what is there before and after."""
    world = join_world()
    model = Counter()
    kept = ReplicaBuffers(model, world, replicas)
    for turn in range(2):
        for replica in kept.block:
            kept.enter(replica)
            model.see(0.1 * replica + turn)
    before = digest.buffers_sha256(model)
    found: dict[str, object] = {}
    for choice in ("mean", "first"):
        kept.settle(choice)
        found[choice] = {name: buffer.tolist() for name, buffer in model.named_buffers()}
        kept.enter(kept.block[-1])
        assert digest.buffers_sha256(model) == before, "training goes on with the replica's own"
    everyone = kept.gather()
    found["all"] = [[buffer.tolist() for buffer in row] for row in everyone]
    other = ReplicaBuffers(Counter(), world, replicas)
    other.load(everyone)
    assert str(other.gather()) == str(everyone)
    return found
