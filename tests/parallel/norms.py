"""What the workers of the batch-norm tests run: their part of a batch through a small net, forward and backward."""

import torch
from torch import Tensor, nn

from worldsize.parallel.norm import convert
from worldsize.parallel.world import join_world

FEATURES = 5


def net(affine: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, FEATURES, 3, padding=1),
        nn.BatchNorm2d(FEATURES, affine=affine),
        nn.Tanh(),
        nn.Conv2d(FEATURES, FEATURES, 3),
        nn.BatchNorm2d(FEATURES, momentum=None),
        nn.Flatten(),
        nn.Linear(FEATURES * 16, 3),
        nn.BatchNorm1d(3),
    )


def layer(affine: bool = True) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(2, affine=affine))


def examples(count: int) -> tuple[Tensor, Tensor]:
    """Images, and a target for each of what the net makes of them."""
    generator = torch.Generator().manual_seed(7)
    x = 3 + 2 * torch.randn(count, 2, 6, 6, generator=generator)
    return x, torch.randn(count, 3, generator=generator)


def case(count: int, affine: bool, whole_net: bool) -> tuple[nn.Module, Tensor, Tensor]:
    """The net in float64, where only a wrong formula makes a difference; or the layer alone, in float32."""
    x, y = examples(count)
    return (net(affine).double(), x.double(), y.double()) if whole_net else (layer(affine), x, x.cos())


def one_pass(model: nn.Module, x: Tensor, y: Tensor, share: float) -> dict[str, Tensor]:
    """Output, gradients of input and weights, buffers, of a loss that is the mean over the whole batch."""
    x = x.clone().requires_grad_()
    out = model(x)
    ((out - y).square().mean() * share).backward()
    found = {"out": out, "x": x.grad} | dict(model.named_buffers())
    found |= {f"grad {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: tensor.detach() for name, tensor in found.items()}


def part(sizes: list[int], affine: bool, whole_net: bool, device: str = "cpu") -> dict[str, Tensor]:
    world = join_world(device=device)
    model, x, y = case(sum(sizes), affine, whole_net)
    convert(model, "sync").to(world.device)
    start = sum(sizes[: world.worker])
    mine = slice(start, start + sizes[world.worker])
    share = sizes[world.worker] / sum(sizes)
    found = one_pass(model, x[mine].to(world.device), y[mine].to(world.device), share)
    return {name: tensor.cpu() for name, tensor in found.items()}


def check(parts: list[dict[str, Tensor]], sizes: list[int], affine: bool, whole_net: bool) -> None:
    """Are the workers' parts what ordinary batch norm makes of the whole batch?"""
    whole = one_pass(*case(sum(sizes), affine, whole_net), 1.0)
    assert len(whole) > (15 if whole_net else 4)
    for name, expected in whole.items():
        if name.startswith("grad"):
            found = sum(part[name] for part in parts)
        elif name in ("out", "x"):
            found = torch.cat([part[name] for part in parts])
        else:
            found = parts[0][name]
            assert all(torch.equal(found, part[name]) for part in parts), "statistics have the same bits everywhere"
        error = (found - expected).double().norm() / max(1.0, expected.double().norm())
        assert error < (1e-12 if whole_net else 1e-6), name


def empty_part() -> None:
    world = join_world(device="cpu")
    model = convert(net(), "sync")
    model(torch.zeros(0 if world.worker else 4, 2, 6, 6))
