"""`worldsize landscape`: the loss around a trained model, or between two, on a line or a plane; kept, and as a page."""

import functools
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from worldsize.accuracy import curvature, directions, surface
from worldsize.accuracy.directions import Direction
from worldsize.accuracy.solution import Solution, build, check_pair, sets_of, solution
from worldsize.accuracy.surface import Grid, Place, Surface, Task, Values
from worldsize.errors import Misuse
from worldsize.parallel import ground
from worldsize.parallel.world import pick_device
from worldsize.plan.digest import tensors_sha256
from worldsize.plan.shards import spans
from worldsize.plan.streams import stream_seed
from worldsize.report.landscape import landscape_page
from worldsize.run import pool
from worldsize.run.machine import places_for_workers
from worldsize.train import data, models
from worldsize.train.data import InMemory, Sets
from worldsize.train.evaluation import BLOCK
from worldsize.train.records import machine

POINTS = {1: 51, 2: 21}
MOST_POINTS = {1: 1001, 2: 101}  # along a direction; a page of more is too large to open
EXAMPLES = 1000
SPAN, SPAN_BETWEEN = 1.0, 0.25
LARGEST_SPAN = 1e6
PROBES = 32


def _loss_of(made: Surface) -> Callable[..., Tensor]:
    return lambda *batch: made.measure(*batch)["loss"].mean()


def _values(found: Any) -> Values:
    return {name: float(value) for name, value in vars(found).items()}


def _eigenvalue(made: Surface, seed: int) -> Values:
    return _values(curvature.eigenvalues(made.model, _loss_of(made), made.batches, seed=seed)[0])


def _trace(made: Surface, seed: int) -> Values:
    return _values(curvature.trace(made.model, _loss_of(made), made.batches, seed=seed, probes=PROBES))


def _sharpness(made: Surface, seed: int) -> Values:
    return _values(curvature.sharpness(made.model, _loss_of(made), made.batches, seed=seed))


SHAPE = {"eigenvalue": _eigenvalue, "trace": _trace, "sharpness": _sharpness}


@dataclass(frozen=True, kw_only=True)
class View:
    """What is looked at, as it was asked for; the number of workers is not in it, since it changes nothing."""

    run: str
    other: str | None = None
    dims: int = 2
    points: int | None = None
    span: float | None = None
    examples: int | None = None
    on: str = "train"
    seed: int = 0
    reestimate: bool = False
    curvature: bool = False

    def __post_init__(self) -> None:
        if self.dims not in (1, 2):
            raise Misuse(f"--dims {self.dims} cannot be drawn; use 1 for a line, 2 for a plane")
        points, most = self.points_each, MOST_POINTS[self.dims]
        if not 3 <= points <= most:
            raise Misuse(f"--points {points} cannot be; with --dims {self.dims} use 3 to {most:,} along each direction")
        if not LARGEST_SPAN >= self.reach >= 1 / LARGEST_SPAN:
            raise Misuse(
                f"--span {self.reach} cannot be; it must be above 0 and at most {LARGEST_SPAN:,.0f}, such as 1"
            )
        if self.examples is not None and self.examples < 1 + self.reestimate:
            raise Misuse(f"--examples {self.examples} cannot be; measure on at least {1 + self.reestimate}")
        if not 0 <= self.seed <= 2**62:
            raise Misuse(f"--seed {self.seed} cannot be; it must be a whole number from 0 to {2**62:,}")

    @property
    def points_each(self) -> int:
        return POINTS[self.dims] if self.points is None else self.points

    @property
    def reach(self) -> float:
        return (SPAN_BETWEEN if self.other else SPAN) if self.span is None else self.span

    @property
    def grid(self) -> Grid:
        """Around the run; with another, from a bit before the one to a bit after the other, as far to both sides."""
        reach, rest = self.reach, (0.0,) * (self.dims - 1)
        ends = (-reach, 1 + reach) if self.other else (-reach, reach)
        marks: list[Place] = [(0.0, *rest), (1.0, *rest)] if self.other else [(0.0, *rest)]
        if self.dims == 1:
            return surface.line(ends, self.points_each, marks)
        half = (ends[1] - ends[0]) / 2
        return surface.plane(ends, (-half, half), self.points_each, marks)

    @property
    def tasks(self) -> list[Task]:
        return [*(list(SHAPE) if self.curvature else []), *self.grid.places]


def make_surface(view: View) -> Surface:
    """What every worker measures on; made in the parent too, which refuses what cannot be."""
    found = solution(Path(view.run))
    other = solution(Path(view.other)) if view.other else None
    if other:
        check_pair(found, other)
    sets = sets_of(found)
    model = build(found, sets)
    return Surface(
        model=model,
        measure=models.measures_of(sets, model),
        batches=_batches(view, sets),
        directions=_directions(view, model, other),
        reestimate=view.reestimate,
        others={name: functools.partial(measure, seed=view.seed) for name, measure in SHAPE.items()},
    )


def _batches(view: View, sets: Sets) -> list[Any]:
    chosen: InMemory = getattr(sets, view.on)
    examples = min(EXAMPLES, len(chosen)) if view.examples is None else view.examples
    if examples > len(chosen):
        raise Misuse(f"--examples {examples:,} are more than the {len(chosen):,} there are to {view.on} on; use fewer")
    blocks = [torch.arange(block.start, block.stop) for block in spans(examples, BLOCK)]
    return list(data.serve(chosen, blocks, device=torch.device("cpu"), seed=0, epoch=0))


def _directions(view: View, model: nn.Module, other: Solution | None) -> list[Direction]:
    found: list[Direction] = [directions.towards(model, other.weights)] if other else []
    for axis in range(len(found), view.dims):
        generator = torch.Generator().manual_seed(stream_seed(view.seed, 0, 0, axis, "direction"))
        found.append(directions.filter_normalised(model, generator))
    if view.dims == 2 and directions.are_parallel(*found):
        raise Misuse("the model has too few weights for two directions to differ; use --dims 1")
    return found


# ---- measuring -------------------------------------------------------------------------------------------------------


def start_landscape(
    view: View, *, workers: int | None, out: Path | None, command: str, console: Console
) -> dict[str, Any]:
    """Measure what is not yet kept, with progress on the console, and leave the page; everything that is in it."""
    pool.warm_up()  # it loads torch while we do
    if workers is not None and workers < 1:
        raise Misuse(f"--workers {workers} cannot be; it must be a whole number of at least 1")
    workers = workers or places_for_workers()
    folder = Path(view.run)
    page = out or folder / "landscape.html"
    if not page.parent.is_dir() and page.parent != folder:
        raise Misuse(f"--out {page}: there is no folder {page.parent}; name a file in a folder that is there")
    if page.is_dir():
        raise Misuse(f"--out {page} is a folder; name a file")
    made = make_surface(view)
    about = _about(view, made, pick_device(None, workers - 1), command)
    keep = _kept_file(folder, about["key"])
    tasks = view.tasks
    known = sum(task in surface.Kept(keep).found for task in tasks)
    console.print(f"{len(tasks):,} things to measure, {known:,} of them kept in {keep}", soft_wrap=True)
    with _Display(console, len(tasks), known) as display:
        found = surface.measure(
            make_surface, (view,), tasks, workers=workers, keep=keep, on_values=lambda *_: display.advance()
        )
    record = {**about, **_found(view, found), "kept": str(keep), "page": str(page)}
    page.write_text(landscape_page(record), encoding="utf-8")
    return record


def _about(view: View, made: Surface, device: torch.device, command: str) -> dict[str, Any]:
    """What is looked at; `key` holds all that decides the numbers."""
    runs = [solution(Path(name)) for name in (view.run, view.other) if name]
    sets, first = sets_of(runs[0]), runs[0].settings
    versions = machine()
    trained = {name for name, _ in made.model.named_parameters()}
    gathered = {name for name, _ in made.model.named_buffers()}
    return {
        "command": command,
        "versions": {name: versions.pop(name) for name in ("worldsize", "torch", "python")},
        "machine": versions,
        "model": {"name": first.model, "parameters": models.parameters_of(made.model)},
        "data": {"name": first.data, "on": view.on, "of": len(getattr(sets, view.on)), "source": sets.source},
        "batch_norm": any(isinstance(module, _BatchNorm) for module in made.model.modules()),
        "averaged": [run.settings.ema is not None for run in runs],
        "runs": [run.folder.name or str(run.folder) for run in runs],
        "key": {
            "weights_sha256": [_sha256(run, trained) for run in runs],
            "buffers_sha256": [_sha256(run, gathered) for run in runs],
            "model": first.model,
            "data": runs[0].data,
            "on": view.on,
            "examples": sum(len(batch[0]) for batch in made.batches),
            "dims": view.dims,
            "points": view.points_each,
            "span": view.reach,
            "seed": view.seed,
            "reestimate": view.reestimate,
            **ground.facts(device),
        },
    }


def _sha256(run: Solution, names: set[str]) -> str:
    """The hash that `worldsize train` prints of these tensors."""
    return tensors_sha256((name, run.weights[name]) for name in names)


def _kept_file(folder: Path, key: dict[str, Any]) -> Path:
    """Where the results of these settings are kept; its first line says which they are."""
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / "landscape" / f"{name}.jsonl"
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps({"settings": key}) + "\n")
    except OSError as error:
        raise Misuse(f"{path} cannot be written: {error.strerror}; copy the run to where it can") from None
    return path


def _found(view: View, found: dict[Task, Values]) -> dict[str, Any]:
    grid = view.grid
    return {
        "axes": [list(axis) for axis in grid.axes],
        "values": [{"place": list(place), **found[place]} for place in grid.rows],
        "marks": [{"place": list(place), **found[place]} for place in grid.marks],
        "curvature": {name: found[name] for name in SHAPE if name in found},
    }


class _Display:
    """One live line on a terminal, none elsewhere."""

    def __init__(self, console: Console, total: int, known: int) -> None:
        self.progress = Progress(
            TextColumn("places"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("landscape", total=total, completed=known)

    def __enter__(self) -> "_Display":
        self.progress.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.progress.__exit__(*failure)

    def advance(self) -> None:
        self.progress.advance(self.task)


def show(console: Console, record: dict[str, Any]) -> None:
    """What was found, in a few lines."""
    for name, mark in zip(record["runs"], record["marks"], strict=True):
        accuracy = f", accuracy {mark['accuracy']:.4f}" if "accuracy" in mark else ""
        console.print(f"{name}  loss {mark['loss']:.4f}{accuracy}", soft_wrap=True)
    losses = [value["loss"] for value in record["values"] if math.isfinite(value["loss"])]
    if losses:
        console.print(f"{len(record['values']):,} places: loss {min(losses):.4g} to {max(losses):.4g}")
    shape = record["curvature"]
    if shape:
        largest, trace, sharp = (shape[name] for name in SHAPE)
        console.print(f"largest Hessian eigenvalue {largest['value']:.4g}, within {largest['residual']:.2g}")
        console.print(f"trace of the Hessian {trace['value']:.4g}, standard error {trace['error']:.2g}")
        console.print(f"sharpness {sharp['value']:.4g} at epsilon {sharp['epsilon']:g}")
    console.print(f"page {record['page']}", soft_wrap=True)


def as_json(record: dict[str, Any]) -> dict[str, Any]:
    """As JSON knows it: a number that is not finite becomes text."""
    return {
        **record,
        **{part: [_plain(value) for value in record[part]] for part in ("values", "marks")},
        "curvature": {name: _plain(values) for name, values in record["curvature"].items()},
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
