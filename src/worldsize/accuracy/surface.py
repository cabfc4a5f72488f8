"""A loss measured at many places around a model, on a line or a plane: by all workers, the same bits for any number.

    grid = surface.plane((-1, 1), (-1, 1), points=21)
    found = surface.measure(make, arguments, grid.places, workers=2)

`make` is a module's function that gives a `Surface`: every worker calls it with the arguments. Without workers,
`make(*arguments).at(place)` measures one place.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worldsize.accuracy.curvature import left_as_it_was
from worldsize.accuracy.directions import Direction, move
from worldsize.errors import Misuse
from worldsize.parallel import ground
from worldsize.parallel.world import join_world
from worldsize.report.values import number
from worldsize.run import pool
from worldsize.train import data

Place = tuple[float, ...]  # how far along each direction
Task = Place | str  # a place, or the name of something else to compute
Values = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Places in rows, and marks: places of their own, which the rows may miss."""

    axes: tuple[tuple[float, ...], ...]
    marks: tuple[Place, ...]

    @property
    def rows(self) -> list[Place]:
        return list(itertools.product(*self.axes))

    @property
    def places(self) -> list[Place]:
        """Every place once."""
        return list(dict.fromkeys([*self.marks, *self.rows]))


def line(ends: tuple[float, float], points: int, marks: Sequence[Place] = ((0.0,),)) -> Grid:
    """Places on a line."""
    return Grid(axes=(_spaced(ends, points),), marks=tuple(marks))


def plane(x: tuple[float, float], y: tuple[float, float], points: int, marks: Sequence[Place] = ((0.0, 0.0),)) -> Grid:
    """Places on a plane, `points` along each of its two directions."""
    return Grid(axes=(_spaced(x, points), _spaced(y, points)), marks=tuple(marks))


def _spaced(ends: tuple[float, float], points: int) -> tuple[float, ...]:
    low, high = ends
    if not (math.isfinite(high - low) and low < high):
        raise Misuse(f"from {low} to {high} there is no way; give two ends, the smaller first")
    if points < 3:
        raise Misuse(f"{points} points show no shape; use at least 3 along each direction")
    values = [low + (high - low) * i / (points - 1) for i in range(points)]
    # What is a whole number but for rounding, such as the trained model itself, is that number.
    return tuple(float(round(v)) if abs(v - round(v)) < 1e-9 * (high - low) else v for v in values)


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """A model in the middle, directions to move it along, and what is measured of it on which batches.

    `measure` is called as for an evaluation: with the parts of a batch, for a number per example, by name. With
    `reestimate`, the statistics of batch norm are measured anew at every place, on the same batches.
    """

    model: nn.Module
    measure: Callable[..., dict[str, Tensor]]
    batches: Sequence[Any]
    directions: Sequence[Direction]
    reestimate: bool = False
    others: Mapping[str, Callable[["Surface"], Values]] = field(default_factory=dict)  # what else there is to compute

    def to(self, device: torch.device) -> "Surface":
        self.model.to(device)
        return Surface(
            model=self.model,
            measure=self.measure,
            batches=[data.move(batch, device) for batch in self.batches],
            directions=[{name: part.to(device) for name, part in each.items()} for each in self.directions],
            reestimate=self.reestimate,
            others=self.others,
        )

    def at(self, place: Sequence[float]) -> Values:
        """The mean of every measure over all examples at this place; the model is left as it was."""
        sums: dict[str, list[float]] = {}
        examples = 0
        with left_as_it_was(self.model), torch.no_grad():
            move(self.model, self.directions, place)
            if self.reestimate:
                reestimate_norms(self.model, self.batches)
            for batch in self.batches:
                measured = self.measure(*data.parts_of(batch))
                for name, values in measured.items():
                    sums.setdefault(name, []).append(values.double().sum().item())
                examples += len(next(iter(measured.values())))
        return {name: sum(parts) / examples for name, parts in sums.items()}

    def compute(self, task: Task) -> Values:
        return self.others[task](self) if isinstance(task, str) else self.at(task)


def reestimate_norms(model: nn.Module, batches: Sequence[Any]) -> None:
    """Give every batch norm the statistics of these batches, each counting the same."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    try:
        for batch in batches if norms else ():
            x = data.parts_of(batch)[0]
            if len(x) > 1:  # one example has no spread
                model(x)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()


# ---- by all workers --------------------------------------------------------------------------------------------------


def measure(
    make: Callable[..., Surface],
    arguments: tuple,
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    device: str | None = None,
    keep: Path | None = None,
    on_values: Callable[[Task, Values], None] = lambda task, values: None,
) -> dict[Task, Values]:
    """What is found for every task; worker w of P takes every P-th of them, from w on.

    With `keep`, results are appended to this file as they come, and those that it holds are not computed again.
    """
    if make.__module__ == "__main__":
        raise Misuse(f"{make.__name__} stands in the script itself, which workers never run; put it into a module")
    kept = Kept(keep)
    left = [task for task in tasks if task not in kept.found]

    def receive(worker: int, message: tuple[Task, Values]) -> None:
        kept.add(*message)
        on_values(*message)

    if left:
        pool.run_workers(_work, make, arguments, left, device, workers=min(workers, len(left)), on_message=receive)
    return {task: kept.found[task] for task in tasks}


def _work(make: Callable[..., Surface], arguments: tuple, tasks: list[Task], device: str | None) -> None:
    ground.before_joining(exact=True)
    world = join_world(device=device, backend="gloo")
    ground.prepare(world.device, exact=True)
    surface = make(*arguments).to(world.device)
    for task in tasks[world.worker :: world.size]:
        pool.tell((task, surface.compute(task)))


class Kept:
    """Results in a file, a line each; what a crash has torn is left out."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.found: dict[Task, Values] = {}
        text = path.read_text(errors="replace") if path is not None and path.exists() else ""
        self.torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                record = json.loads(line)
                task = record["task"]
                values = {name: number(value) for name, value in record["values"].items()}
                self.found[task if isinstance(task, str) else tuple(map(float, task))] = values
            except (ValueError, TypeError, KeyError, AttributeError):
                continue

    def add(self, task: Task, values: Values) -> None:
        self.found[task] = values
        if self.path is None:
            return
        # JSON knows no NaN or infinity.
        plain = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        with self.path.open("a") as lines:
            lines.write("\n" * self.torn + json.dumps({"task": task, "values": plain}) + "\n")
        self.torn = False
