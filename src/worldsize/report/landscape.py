"""The page of a landscape: the loss around a trained model, or between two, on a line or a plane."""

from collections.abc import Mapping
from typing import Any

from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.contours import range_of
from worldsize.report.page import Section, Tile, choice, commands, facts_table, pair, render_page
from worldsize.report.paper import Table
from worldsize.report.relief import Mark, Relief, map_chart, space
from worldsize.report.turning import CSS, SCRIPT
from worldsize.report.values import counted, drawable, exact, fixed, number, written

Record = Mapping[str, Any]
SETS = {"train": "training", "test": "test"}


def landscape_page(record: Record) -> str:
    """The page of what `worldsize landscape` measured."""
    flat = len(record["axes"]) == 1
    model, data = record["model"], record["data"]
    what = "Between two solutions" if _other(record) else "Around the solution"
    return render_page(
        f"{what}: {model['name']} on {data['name']}",
        _verdict(record),
        _tiles(record),
        [_line(record) if flat else _plane(record), *_shape(record), _how(record), _again(record)],
        _footer(record),
        "landscape",
        css=CSS,
        script="" if flat else SCRIPT,
    )


def _other(record: Record) -> bool:
    return len(record["runs"]) > 1


def _loss(entry: Record) -> float:
    return number(entry["loss"])


def _finite(record: Record) -> list[float]:
    return [loss for loss in map(_loss, record["values"]) if drawable(loss)]


# ---- what it says ----------------------------------------------------------------------------------------------------


def barrier(record: Record) -> float | None:
    """How far the loss on the line between two solutions rises above the straight line between their losses.

    None where no measured place lies on it.
    """
    ends = [_loss(mark) for mark in record["marks"]]
    between = [
        _loss(entry) - (1 - at) * ends[0] - at * ends[1]
        for entry in record["values"]
        for at, *rest in [entry["place"]]
        if 0 <= at <= 1 and not any(rest)
    ]
    return max([0.0, *filter(drawable, between)]) if between else None


def _verdict(record: Record) -> str:
    finite = _finite(record)
    if not finite:
        return "No place but the solution itself has a finite loss: a smaller --span shows more."
    here = _loss(record["marks"][0])
    if not _other(record):
        return (
            f"The loss is {written(here, 3)} at the trained weights; in this picture it goes from "
            f"{written(min(finite), 3)} to {written(max(finite), 3)}."
        )
    ends = " and ".join(written(_loss(mark), 3) for mark in record["marks"])
    wall = barrier(record)
    if wall is None:
        return f"The loss is {ends} at the two solutions."
    if wall < 0.05 * max(map(_loss, record["marks"])):
        return f"The loss is {ends} at the two solutions, and hardly rises on the way from one to the other."
    return f"The loss is {ends} at the two solutions; on the way it rises {written(wall, 3)} above them."


def _tiles(record: Record) -> list[Tile]:
    on = f"on {counted(record['key']['examples'], SETS[record['data']['on']] + ' example')}"
    tiles = []
    for name, mark in zip(record["runs"], record["marks"], strict=True):
        note = f"accuracy {fixed(mark['accuracy'], 3)}, {on}" if "accuracy" in mark else on
        label = f"loss of {name}" if _other(record) else "loss at the trained weights"
        tiles.append(Tile(figure=written(_loss(mark), 3), label=label, note=note))
    finite = _finite(record)
    if finite and not _other(record):
        note = f"lowest {written(min(finite), 3)}, within {exact(record['key']['span'])} of the weights"
        tiles.append(Tile(figure=written(max(finite), 3), label="highest loss in this picture", note=note))
    wall = barrier(record) if _other(record) else None
    if wall is not None:
        tiles.append(Tile(figure=written(wall, 3), label="barrier", note="above the straight line between both"))
    shape = record["curvature"]
    if shape:
        top, trace, sharp = shape["eigenvalue"], shape["trace"], shape["sharpness"]
        within = f"within {written(top['residual'], 2)}" if top["converged"] else "not converged"
        tiles += [
            Tile(figure=written(top["value"], 3), label="largest Hessian eigenvalue", note=within),
            Tile(figure=written(trace["value"], 3), label="trace", note=f"standard error {written(trace['error'], 2)}"),
            Tile(figure=written(sharp["value"], 3), label="sharpness", note=f"within ±{sharp['epsilon']:g} (|w| + 1)"),
        ]
    return tiles


# ---- pictures --------------------------------------------------------------------------------------------------------


def _axes(record: Record) -> list[Axis]:
    if _other(record):
        return [Axis(title="from one (0) to the other (1)"), Axis(title="a random direction")]
    if len(record["axes"]) == 1:
        return [Axis(title="along a random direction")]
    return [Axis(title="one random direction"), Axis(title="another")]


def _measures(record: Record) -> list[str]:
    return [name for name in ("loss", "accuracy") if name in record["marks"][0]]


def _lost(record: Record, most: float) -> str:
    """What could not be drawn as it is."""
    losses = [_loss(entry) for entry in record["values"]]
    odd = sum(not drawable(loss) for loss in losses)
    high = sum(drawable(loss) and loss > most * (1 + 1e-9) for loss in losses)
    text = f" {counted(odd, 'place')} with a loss that is not finite." if odd else ""
    return text + (f" {counted(high, 'place')} with a loss above {written(most, 3)}." if high else "")


def _line(record: Record) -> Section:
    """Loss and accuracy along the line; the loss on a linear and a logarithmic axis."""
    (axis,) = _axes(record)[:1]
    found = range_of(map(_loss, record["values"]))
    charts = {}
    for log in (True, False) if found.log else (False, True):
        name = "logarithmic" if log else "linear"
        series = _series(record, "loss", found.high)
        charts[name] = line_chart("Loss", "", axis, Axis(title="loss", log=log), series, digits=9)
    content = [choice("loss-axis", charts)]
    if "accuracy" in _measures(record):
        series = _series(record, "accuracy", 1.0)
        content.append(line_chart("Accuracy", "", axis, Axis(title="accuracy"), series, digits=9))
    lost = _lost(record, found.high)
    text = f"The line is broken at{lost}" if lost else ""
    return Section(title="Along the line", text=text, content=content)


def _series(record: Record, measure: str, most: float) -> list[Series]:
    entries = sorted([*record["values"], *record["marks"]], key=lambda entry: entry["place"])
    points = {entry["place"][0]: number(entry[measure]) for entry in entries}
    shown = [(x, value if value <= most * (1 + 1e-9) else float("nan")) for x, value in points.items()]
    colour = 0 if measure == "loss" else 2
    marks = [
        Series(label=name, points=[(mark["place"][0], number(mark[measure]))], colour=colour + 1, markers=True)
        for name, mark in zip(_names(record), record["marks"], strict=True)
    ]
    return [Series(points=shown, colour=colour), *marks]


def _names(record: Record) -> list[str]:
    return list(record["runs"]) if _other(record) else ["trained"]


def _plane(record: Record) -> Section:
    """A surface to turn, and a map for each measure."""
    xs, ys = record["axes"]
    marks = [
        Mark(label=name, x=mark["place"][0], y=mark["place"][1])
        for name, mark in zip(_names(record), record["marks"], strict=True)
    ]
    reliefs = []
    for measure in _measures(record):
        flat = [number(entry[measure]) for entry in record["values"]]
        values = [flat[i * len(ys) : (i + 1) * len(ys)] for i in range(len(xs))]
        x, y = _axes(record)
        found = range_of(flat, may_log=measure == "loss")
        reliefs.append(Relief(measure=measure, x=x, y=y, xs=xs, ys=ys, values=values, range=found, marks=marks))
    high = reliefs[0].range.high
    lost = _lost(record, high)
    text = f"Drawn as high as {written(high, 3)}:{lost}" if lost else ""
    rows = [_row(entry, record) for entry in [*record["values"], *record["marks"]]]
    table = Table(["x", "y", *_measures(record)], rows)
    maps = [
        map_chart(relief.measure.capitalize(), "", relief, table if relief is reliefs[0] else None)
        for relief in reliefs
    ]
    return Section(title="On the plane", text=text, content=[space("In three dimensions", reliefs), pair(*maps)])


def _row(entry: Record, record: Record) -> list[str]:
    return [*(exact(at, 9) for at in entry["place"]), *(exact(number(entry[name])) for name in _measures(record))]


# ---- words -----------------------------------------------------------------------------------------------------------


def _shape(record: Record) -> list[Section]:
    if not record["curvature"]:
        return []
    top, trace, sharp = (record["curvature"][name] for name in ("eigenvalue", "trace", "sharpness"))
    text = (
        "Of the whole space of weights, not of this picture alone, by the mean loss of the same examples. "
        "The sum of all eigenvalues is the trace. Sharpness says by how many percent of 1 + loss the loss can rise "
        "while no weight w moves further than epsilon (|w| + 1)."
    )
    facts = {
        "Largest eigenvalue": f"{written(top['value'], 6)}, by value; Lanczos, {top['iterations']:.0f} iterations",
        "Trace": f"{written(trace['value'], 6)}, standard error {written(trace['error'], 2)}; Hutchinson, "
        f"{trace['probes']:.0f} probes",
        "Sharpness": f"{written(sharp['value'], 6)}; loss {written(sharp['loss'], 4)}, "
        f"up to {written(sharp['highest'], 4)} within epsilon {sharp['epsilon']:g}",
    }
    return [Section(title="How sharply it bends", text=text, content=[facts_table(facts)])]


def _how(record: Record) -> Section:
    key, data = record["key"], record["data"]
    random = (
        "A random direction is Gaussian; each of its filters is as long as that filter of the trained weights "
        "(Li et al., arXiv:1712.09913), so that a distance of 1 moves every filter by its own length. "
        "Biases and the parameters of norms stay."
    )
    way = "The way from one solution to the other moves all weights together. "
    said = (way if _other(record) else "") + (random if not _other(record) or len(record["axes"]) == 2 else "")
    facts = {
        "Runs": ", ".join(record["runs"]),
        "Model": f"{record['model']['name']}, {counted(record['model']['parameters'], 'parameter')}",
        "Examples": f"the first {written(key['examples'])} of {counted(data['of'], SETS[data['on']] + ' example')}, "
        f"{data['name']}",
        "Places": " x ".join(written(len(axis)) for axis in record["axes"]),
        "Span": exact(key["span"]),
    }
    if random in said:
        facts["Seed of the directions"] = str(key["seed"])
    if record["batch_norm"]:
        facts["Batch norm"] = _norms(record)
    for name, digest in zip(record["runs"], key["weights_sha256"], strict=True):
        facts[f"Weights of {name}, SHA-256"] = digest
    if any(record.get("averaged", ())):
        facts["Weights"] = "the plain ones, not the moving average that the run was evaluated with"
    return Section(title="How it was made", text=said, content=[facts_table(facts)])


def _norms(record: Record) -> str:
    if record["key"]["reestimate"]:
        return "statistics measured anew at every place, on the same examples"
    if _other(record):
        return (
            "the runs' own statistics, mixed between both solutions as the weights are; in between they fit less well "
            "than measured ones (--reestimate), which makes the loss there look higher"
        )
    return "the run's own statistics, those it is evaluated with, at every place"


def _again(record: Record) -> Section:
    text = "The same command gives the same numbers, on any number of workers; what is kept is not computed again."
    return Section(title="Make it again", content=[commands({text: record["command"]})])


def _footer(record: Record) -> dict[str, str]:
    def listed(facts: Mapping[str, Any]) -> str:
        return ", ".join(f"{key} {value}" for key, value in facts.items() if value)

    return {"Versions": listed(record["versions"]), "Machine": listed(record["machine"])}
