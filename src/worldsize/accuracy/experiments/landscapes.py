"""The loss around trained nets: with and without skip connections, from small and from large batches."""

import math
from statistics import fmean
from typing import Any

import torch

from worldsize.accuracy import directions, surface, trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.surface import Surface
from worldsize.accuracy.variants import curve, times
from worldsize.report.axis import Axis
from worldsize.report.charts import line_chart
from worldsize.report.contours import range_of
from worldsize.report.markup import Html
from worldsize.report.page import pair
from worldsize.report.relief import Relief, map_chart
from worldsize.train import models

SKIP, PLAIN = "WideResNet, skip connections", "WideResNet, no skip connections"
SMALL, LARGE = "conv net, batch 32", "conv net, batch 1024"
VARIANTS: dict[str, dict[str, Any]] = {
    SKIP: {"model": "wrn-16-1", "batch": 64, "rate": 0.05, "epochs": 4},
    PLAIN: {"model": "wrn-16-1-plain", "batch": 64, "rate": 0.05, "epochs": 4},
    SMALL: {"model": "cnn", "batch": 32, "rate": 0.05, "epochs": 8},
    LARGE: {"model": "cnn", "batch": 1024, "rate": 0.05, "epochs": 8},
}
EXAMPLES, DIRECTIONS = 1_000, 3
RISE_AT = 0.5  # of the filters' own length


def look(
    *, model: str, batch: int, rate: float, epochs: int, points: int, plane_points: int, seed: int
) -> dict[str, Any]:
    """Train, then measure the loss along random directions, and for the first seed on the plane of two of them."""
    net, sets, accuracy = trials.trained(model=model, batch=batch, rate=rate, epochs=epochs, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    drawn = [directions.filter_normalised(net, generator) for _ in range(DIRECTIONS)]
    measures, batches = models.measures_of(sets, net), [sets.train.take(torch.arange(EXAMPLES))]

    def losses(ways: list[directions.Direction], grid: surface.Grid) -> list[list[float]]:
        made = Surface(model=net, measure=measures, batches=batches, directions=ways)
        return [[*place, made.at(place)["loss"]] for place in grid.rows]

    lines = [losses([way], surface.line((-1, 1), points)) for way in drawn]
    wide = losses(list(drawn[:2]), surface.plane((-1, 1), (-1, 1), plane_points)) if plane_points and not seed else []
    return {"accuracy": accuracy, "lines": lines, "plane": wide}


def measure(bench: Bench) -> dict[str, Any]:
    """Each variant with every seed; of the lines the mean over directions."""
    points, plane_points = (5, 3) if bench.quick else (21, 17)
    few = {"epochs": 1} if bench.quick else {}
    tasks = {name: task | few | {"points": points, "plane_points": plane_points} for name, task in VARIANTS.items()}
    found = bench.each(look, tasks)
    return {
        name: {
            "accuracy": [one["accuracy"] for one in outcomes],
            "lines": [_mean_line(one["lines"]) for one in outcomes],
            "plane": outcomes[0]["plane"],
        }
        for name, outcomes in found.items()
    }


def _mean_line(lines: list[list[list[float]]]) -> list[list[float]]:
    return [[points[0][0], sum(loss for _, loss in points) / len(points)] for points in zip(*lines, strict=True)]


def rises(measured: dict[str, Any], name: str) -> list[float]:
    """With each seed: how much higher the loss is half a filter's length away than in the middle, both sides' mean."""
    found = []
    for line in measured[name]["lines"]:
        middle = next(loss for at, loss in line if at == 0)
        away = [loss for at, loss in line if math.isclose(abs(at), RISE_AT)]
        found.append(sum(away) / len(away) - middle)
    return found


def judge(measured: dict[str, Any]) -> Finding:
    skip, batch = (
        times(rises(measured, one), rises(measured, other)) for one, other in ((SKIP, PLAIN), (SMALL, LARGE))
    )
    small, large = (fmean(_by_place(measured[name])[0.0]) for name in (SMALL, LARGE))
    return Finding(
        holds=skip[1] > 1 and batch[1] > 1,
        sentence=f"Half a filter's length away the loss rises {skip[0]:.2f} times ({skip[1]:.2f} to {skip[2]:.2f}) as "
        f"much without skip connections, and {batch[0]:.2f} times ({batch[1]:.2f} to {batch[2]:.2f}) as much after "
        f"batch 1024 as after batch 32, where the nets themselves have losses of {large:.2f} and {small:.2f}.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    lines = [curve(name, _by_place(measured[name]), i) for i, name in enumerate(VARIANTS)]
    curves = line_chart(
        "The loss along random directions",
        "Filter-normalised: at 1 every filter has moved by its own length. Mean over three directions a net and over "
        "seeds, with the 95 % interval over seeds.",
        Axis(title="distance along the direction"),
        Axis(title="training loss", log=True),
        lines,
    )
    planes = [_plane(name, measured[name]["plane"]) for name in VARIANTS if measured[name]["plane"]]
    return [curves, *(pair(*planes[i : i + 2]) for i in range(0, len(planes), 2))]


def _by_place(row: dict[str, Any]) -> dict[float, list[float]]:
    """The loss of every seed at each place of the line."""
    return {points[0][0]: [loss for _, loss in points] for points in zip(*row["lines"], strict=True)}


def _plane(name: str, points: list[list[float]]) -> Html:
    xs, ys = (sorted({point[axis] for point in points}) for axis in (0, 1))
    known = {(x, y): loss for x, y, loss in points}
    relief = Relief(
        measure="loss",
        x=Axis(title="first direction"),
        y=Axis(title="second direction"),
        xs=xs,
        ys=ys,
        values=[[known[x, y] for y in ys] for x in xs],
        range=range_of([point[2] for point in points]),
    )
    return map_chart(name, "Training loss on a plane through the net trained with seed 0.", relief, None)


EXPERIMENT = Experiment(
    title="What the loss looks like around a solution",
    question="Is the loss flatter around nets with skip connections, and around those that small batches find?",
    setting="WideResNet-16-1 with and without skip connections (batch 64, 4 epochs) and the small conv net with "
    "batch 32 and 1024 at one rate (8 epochs), on Fashion-MNIST at 14x14 pixels (10,000 images). Loss on 1,000 "
    "training images along three filter-normalised directions from -1 to 1, norms with their stored statistics.",
    prediction="The loss rises more steeply without skip connections, and after large batches.",
    source="Li et al., arXiv:1712.09913, who find chaos without skip connections in nets of 56 layers, and little of "
    "it in shallow ones; these have 16.",
    passes="Half a filter's length away, the ratio of the rises is above 1 for both (95 % intervals over seeds).",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
