"""How sharply a loss bends around given weights: Hessian eigenvalues, the Hessian's trace, Keskar's sharpness.

Every function takes a model, a loss of one batch (the mean over it) and batches that can be read again and again. The
mean is that over the whole data set, each batch weighed by its examples, or by `count` of it. The model is looked at in
evaluation mode, as a function of the parameters that require a gradient, and left as it was.

No kernel of attention but the plain one can be differentiated twice, so that one is used. The same seed gives the same
numbers. Memory: a copy of the parameters for each iteration of `eigenvalues`, a few for the others.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from worldsize.errors import LossError, Misuse, NotFinite
from worldsize.train.data import parts_of

Batches = Iterable[Any]
Count = Callable[..., float | Tensor]


@dataclass(frozen=True, kw_only=True)
class Eigenvalue:
    """An eigenvalue of the Hessian: one lies within `residual` of `value`."""

    value: float
    residual: float
    iterations: int
    converged: bool


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The sum of all eigenvalues, estimated; `error` is its standard error."""

    value: float
    error: float
    probes: int


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """How far the loss rises inside a small box: `value` is 100 (highest - loss) / (1 + loss)."""

    value: float
    loss: float
    highest: float
    epsilon: float
    steps: int


def eigenvalues(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batches: Batches,
    *,
    top: int = 1,
    tolerance: float = 1e-3,
    most: int = 100,
    seed: int = 0,
    count: Count | None = None,
) -> list[Eigenvalue]:
    """The `top` largest eigenvalues of the Hessian, the largest first: by value, not by size, so -5 comes after 1.

    Lanczos with full orthogonalisation, until each residual is below `tolerance` times its value, or for `most`
    iterations. An eigenvalue that occurs several times is found once; where there are fewer, fewer are given.
    """
    if top < 1 or most < top:
        raise Misuse(f"{top} eigenvalues in at most {most} iterations cannot be; ask for at least 1 in as many")
    if not 0 < tolerance < 1:
        raise Misuse(f"a tolerance of {tolerance} cannot be; 0.001 is a thousandth of the value")
    with _Around(model, loss, batches, count) as around:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(around.size, generator=generator, dtype=torch.float64)
        return _lanczos(around.bend, around.like(start), top, tolerance, min(most, around.size))


def trace(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batches: Batches,
    *,
    probes: int = 32,
    seed: int = 0,
    count: Count | None = None,
) -> Trace:
    """The trace of the Hessian by Hutchinson's method: the mean of z'Hz over random vectors z of +1 and -1."""
    if probes < 2:
        raise Misuse(f"{probes} probes say nothing of their own error; use at least 2")
    found = []
    with _Around(model, loss, batches, count) as around:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(probes):
            signs = around.like(torch.randint(2, (around.size,), generator=generator).double() * 2 - 1)
            found.append(torch.dot(signs.double(), around.bend(signs).double()).item())
    mean = math.fsum(found) / probes
    variance = math.fsum((value - mean) ** 2 for value in found) / (probes - 1)
    return Trace(value=mean, error=math.sqrt(variance / probes), probes=probes)


def sharpness(
    model: nn.Module,
    loss: Callable[..., Tensor],
    batches: Batches,
    *,
    epsilon: float = 1e-3,
    steps: int = 10,
    starts: int = 2,
    seed: int = 0,
    count: Count | None = None,
) -> Sharpness:
    """Keskar et al.'s sharpness (arXiv:1609.04836, metric 2.1, over the whole space).

    The highest loss is looked for where no weight w moves further than epsilon (|w| + 1). From the weights themselves,
    then from random places in the box: towards the corner that the gradient points at, half as far as long as that is
    no higher, for `steps` steps. A lower bound of the true maximum, as every such search.
    """
    if not (math.isfinite(epsilon) and epsilon > 0) or steps < 1 or starts < 1:
        raise Misuse(f"epsilon {epsilon}, {steps} steps, {starts} starts: each must be above 0, such as 0.001, 10, 2")
    with _Around(model, loss, batches, count) as around:
        generator = torch.Generator().manual_seed(seed)
        box = epsilon * (around.weights.abs() + 1)
        at_home = highest = around.value()
        if not math.isfinite(at_home):
            raise NotFinite(f"the loss is {at_home} at these weights; take weights of a good run")
        for start in range(starts):
            share = around.like(torch.rand(around.size, generator=generator, dtype=torch.float64) * 2 - 1)
            place = share * box if start else torch.zeros_like(box)
            highest = max(highest, _climb(around, place, box, steps))
    value = 100 * (highest - at_home) / (1 + at_home)
    return Sharpness(value=value, loss=at_home, highest=highest, epsilon=epsilon, steps=steps)


@contextlib.contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards weights, buffers and the mode of every module are what they were."""
    modes = [(module, module.training) for module in model.modules()]
    tensors = [*model.parameters(), *model.buffers()]
    kept = [tensor.detach().clone() for tensor in tensors]
    model.eval()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
        for module, training in modes:
            module.training = training


# ---- the loss around the weights -------------------------------------------------------------------------------------


class _Around:
    """A mean loss as a function of all parameters in a row: its value, its gradient, its Hessian times a vector."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], batches: Batches, count: Count | None) -> None:
        if iter(batches) is batches:
            raise Misuse("these batches can be read only once, and are needed many times; give a list of them")
        self.model, self.loss, self.batches = model, loss, batches
        self.count = count or (lambda first, *_: len(first))
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise Misuse("no parameter of the model requires a gradient, so there is nothing to move; unfreeze some")

    def __enter__(self) -> "_Around":
        self.weights = self.flat(self.parameters).detach().clone()
        self.size = self.weights.numel()
        self.total = math.fsum(self.weight(batch) for batch in self.batches)
        if not self.total > 0:
            raise LossError("these batches count nothing together; give at least one example")
        self.around = contextlib.ExitStack()
        self.around.enter_context(left_as_it_was(self.model))
        self.around.enter_context(sdpa_kernel(SDPBackend.MATH))
        self.around.enter_context(torch.enable_grad())
        return self

    def __exit__(self, *failure: object) -> None:
        self.around.close()

    def weight(self, batch: Any) -> float:
        return float(self.count(*parts_of(batch)))

    def flat(self, tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def like(self, vector: Tensor) -> Tensor:
        """A vector drawn on the CPU, where the parameters are."""
        return vector.to(self.weights)

    def go(self, shift: Tensor) -> None:
        """Move the weights to this far from where they were."""
        with torch.no_grad():
            parts = (self.weights + shift).split([parameter.numel() for parameter in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))

    def losses(self) -> Iterator[tuple[float, Tensor]]:
        """Of each batch that counts its share of the mean, and its loss."""
        for batch in self.batches:
            share = self.weight(batch) / self.total
            if share:
                yield share, self.loss(*parts_of(batch))

    def value(self) -> float:
        with torch.no_grad():
            return math.fsum(share * loss.item() for share, loss in self.losses())

    def slope(self) -> Tensor:
        found = torch.zeros_like(self.weights)
        for share, loss in self.losses():
            found += share * self.derive(loss, graph=False)
        return found

    def bend(self, vector: Tensor) -> Tensor:
        """The Hessian times this vector."""
        found = torch.zeros_like(vector)
        for share, loss in self.losses():
            along = torch.dot(self.derive(loss, graph=True), vector)
            if along.requires_grad:  # a loss that is linear in the weights bends nowhere
                found += share * self.derive(along, graph=False)
        if not found.isfinite().all():
            raise NotFinite("the loss, or how it bends, is not finite at these weights; take weights of a good run")
        return found

    def derive(self, value: Tensor, graph: bool) -> Tensor:
        parts = torch.autograd.grad(
            value, self.parameters, create_graph=graph, allow_unused=True, materialize_grads=True
        )
        return self.flat(parts)


# ---- the two searches ------------------------------------------------------------------------------------------------


def _lanczos(
    bend: Callable[[Tensor], Tensor], start: Tensor, top: int, tolerance: float, most: int
) -> list[Eigenvalue]:
    basis = [start / start.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        bent = bend(basis[-1])
        diagonal.append(torch.dot(bent, basis[-1]).item())
        for _ in range(2):  # once is not enough to stay orthogonal in floating point
            for vector in basis:
                bent -= torch.dot(bent, vector) * vector
        beside.append(bent.norm().item())
        values, residuals = _ritz(diagonal, beside)
        # The space is exhausted where nothing but rounding is left of a new vector.
        exhausted = beside[-1] <= 10 * torch.finfo(bent.dtype).eps * max(map(abs, values))
        close = [
            exhausted or residual <= tolerance * abs(value) for value, residual in zip(values, residuals, strict=True)
        ]
        if exhausted or len(diagonal) == most or (len(diagonal) > top and all(close[:top])):
            return [
                Eigenvalue(value=value, residual=residual, iterations=len(diagonal), converged=near)
                for value, residual, near in zip(values[:top], residuals, close, strict=False)
            ]
        basis.append(bent / beside[-1])


def _ritz(diagonal: list[float], beside: list[float]) -> tuple[list[float], list[float]]:
    """The eigenvalues of the tridiagonal matrix, the largest first, and how far each may be off."""
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i, value in enumerate(beside[:-1]):
        small[i, i + 1] = small[i + 1, i] = value
    values, vectors = torch.linalg.eigh(small)
    residuals = (beside[-1] * vectors[-1]).abs()
    return values.flip(0).tolist(), residuals.flip(0).tolist()


def _climb(around: _Around, place: Tensor, box: Tensor, steps: int) -> float:
    """The highest loss on a walk through the box; each step goes up, or is the last."""
    around.go(place)
    highest = around.value()
    for _ in range(steps):
        slope = around.slope()
        corner = torch.where(slope == 0, place, slope.sign() * box)
        share, found = 2.0, -math.inf
        while not found > highest and share > 1e-3:
            share /= 2
            around.go(place + share * (corner - place))
            found = around.value()
        if not found > highest:
            break
        place, highest = place + share * (corner - place), found
        around.go(place)
    return highest
