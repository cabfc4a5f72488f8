"""Values on a plane: a map with filled contours, and a surface to turn around, drawn by the page's own script."""

from collections.abc import Sequence
from dataclasses import dataclass

from worldsize.report.axis import Axis, Scale, lay, tick_texts
from worldsize.report.contours import Range, colour, region_above
from worldsize.report.markup import Html, element, join
from worldsize.report.paper import NARROW, Sheet, Table, figure, grid_below, grid_left, polygon
from worldsize.report.values import exact

LEVELS = 14
MAP_PX = 268.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place with a name."""

    label: str
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Relief:
    """values[i][j] of one measure at (xs[i], ys[j]), and the range of its colours."""

    measure: str
    x: Axis
    y: Axis
    xs: Sequence[float]
    ys: Sequence[float]
    values: Sequence[Sequence[float]]
    range: Range
    marks: Sequence[Mark] = ()


def map_chart(title: str, about: str, relief: Relief, table: Table | None) -> Html:
    """A figure with the map of one measure; the first on a page has the table: x, y, then every measure."""

    def draw(sheet: Sheet) -> tuple[float, Html]:
        left, top = 52.0, 26.0
        across = lay(_tight(relief.x), relief.xs, left, left + MAP_PX, 4)
        up = lay(_tight(relief.y), relief.ys, top + MAP_PX, top, 4)
        parts = [
            element("text", relief.y.title, x=4, y=14, class_="axis"),
            grid_left(up, left - 4, left),
            grid_below(across, relief.x, up.start, up.start, rules=False),
            *_bands(relief, across, up),
            *(_mark(mark, across, up) for mark in relief.marks),
            _bar(relief, left + MAP_PX + 16, top, MAP_PX),
        ]
        ends = {
            "data_across": " ".join(exact(v, 9) for v in (across.start, across.end, across.low, across.high)),
            "data_up": " ".join(exact(v, 9) for v in (up.start, up.end, up.low, up.high)),
        }
        return top + MAP_PX + 50, element("g", *parts, **ends)

    return figure(title, about, draw, table, sheets=(NARROW,), data_kind="map")


def _tight(axis: Axis) -> Axis:
    return Axis(title=axis.title, tight=True)


def _bands(relief: Relief, across: Scale, up: Scale) -> list[Html]:
    """Each level's region painted over those below it, then the lines between."""
    xs, ys = [across.place(x) for x in relief.xs], [up.place(y) for y in relief.ys]
    heights = [[relief.range.share(value) for value in column] for column in relief.values]
    size = {"width": xs[-1] - xs[0], "height": ys[0] - ys[-1]}
    parts = [element("rect", x=xs[0], y=ys[-1], fill=colour(0.5 / LEVELS), **size)]
    lines = []
    for level in range(1, LEVELS):
        polygons, border = region_above(xs, ys, heights, level / LEVELS)
        if polygons:
            path = "".join(polygon(each, closed=True) for each in polygons)
            parts.append(element("path", d=path, fill=colour((level + 0.5) / LEVELS)))
        lines += [polygon(piece) for piece in border]
    if lines:
        parts.append(element("path", d="".join(lines), class_="contour"))
    return parts


def _mark(mark: Mark, across: Scale, up: Scale) -> Html:
    x, y = across.place(mark.x), up.place(mark.y)
    side = "end" if x > (across.start + across.end) / 2 + 30 else ""
    text = element("text", mark.label, x=x - 9 if side else x + 9, y=y + 4.5, class_=f"place {side}".strip())
    return join([element("circle", cx=x, cy=y, r=4.5, class_="place"), text])


def _bar(relief: Relief, x: float, top: float, height: float) -> Html:
    """The colours and what they stand for."""
    step = height / LEVELS
    parts = [
        element(
            "rect", x=x, y=top + height - (i + 1) * step, width=14, height=step + 0.6, fill=colour((i + 0.5) / LEVELS)
        )
        for i in range(LEVELS)
    ]
    found = relief.range
    scale = lay(Axis(title="", log=found.log, tight=True), (found.low, found.high), top + height, top, 5)
    for tick, text in zip(scale.ticks, tick_texts(scale), strict=True):
        y = scale.place(tick)
        parts.append(element("line", x1=x + 14, x2=x + 18, y1=y, y2=y, class_="rule"))
        parts.append(element("text", text, x=x + 22, y=y + 4, class_="tick"))
    name = f"{relief.measure}, log" if found.log else relief.measure
    parts.append(element("text", name, x=x, y=14, class_="axis"))
    return join(parts)


def space(title: str, reliefs: Sequence[Relief]) -> Html:
    """A surface to turn around, of the numbers in the table of the first map; hidden where no script runs."""
    options = []
    for relief in reliefs:
        spans = {"data_low": exact(relief.range.low, 9), "data_high": exact(relief.range.high, 9)}
        options.append(element("option", relief.measure, value=relief.measure, **spans))
        if relief.range.log:
            options.insert(0, element("option", f"{relief.measure}, log", value=relief.measure, data_log="1", **spans))
    first = reliefs[0]
    canvas = element(
        "canvas",
        tabindex="0",
        role="img",
        aria_label=f"{title}. Arrow keys turn it, plus and minus zoom, 0 puts it back.",
        data_palette=" ".join(colour(i / 63) for i in range(64)),
        data_grid=f"{len(first.xs)} {len(first.ys)}",
        data_titles=f"{first.x.title}|{first.y.title}",
        data_marks="|".join(f"{exact(mark.x, 9)},{exact(mark.y, 9)},{mark.label}" for mark in first.marks),
    )
    controls = element(
        "p",
        element("label", "height ", element("select", *options)),
        element("span", "Drag or use the arrow keys to turn; click, then wheel or + and − to zoom; 0 puts it back."),
        class_="controls",
    )
    caption = element("figcaption", element("b", title), element("span", class_="readout"))
    return element("figure", caption, canvas, controls, data_kind="space", hidden="hidden")
