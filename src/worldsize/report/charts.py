"""Line charts, drawn as SVG: several series, bands, markers, reference lines, labels at the ends of the lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from worldsize.report.axis import Axis, Scale, lay
from worldsize.report.curves import Band, Point
from worldsize.report.markup import Html, element, join
from worldsize.report.paper import (
    LETTER_PX,
    LINE_PX,
    Reference,
    Sheet,
    Table,
    figure,
    grid_below,
    grid_left,
    lettering,
    polygon,
    wrapped,
)
from worldsize.report.values import drawable, exact

COLOURS = 6
LABELS_PX = 190.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line, without a label if it is alone; `halo` is wide and pale, to lie below another, `faint` thin."""

    label: str = ""
    points: Sequence[Point] = ()
    band: Sequence[Band] = ()
    colour: int = 0
    style: Literal["plain", "halo", "faint", "dashed"] = "plain"
    markers: bool = False


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A distance along x that deserves words: from `start` to `end` at the height y."""

    start: float
    end: float
    y: float
    label: str


@dataclass(frozen=True)
class _Plot:
    """Where everything of one drawing goes."""

    sheet: Sheet
    x: Scale
    y: Scale

    def spot(self, point: Point) -> Point:
        return self.x.place(point[0]), self.y.place(point[1])

    def shows(self, point: Point) -> bool:
        return self.x.shows(point[0]) and self.y.shows(point[1])


def line_chart(
    title: str,
    about: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    references: Sequence[Reference] = (),
    gaps: Sequence[Gap] = (),
    digits: int = 6,
) -> Html:
    """A figure with one line per series; `about` is one sentence on what it shows, `digits` those in its table."""

    def draw(sheet: Sheet) -> tuple[float, Html]:
        plot, height, legend = _layout(sheet, x, y, series, references, gaps)
        parts = [
            element("text", y.title, x=4, y=14, class_="axis"),
            legend,
            grid_left(plot.y, plot.x.start, plot.x.end),
            grid_below(plot.x, x, plot.y.end, plot.y.start, rules=False),
            *(_curve(plot, one) for one in series),
            *(_reference(plot, reference, series) for reference in references if plot.y.shows(reference.value)),
            *(_gap(plot, gap) for gap in gaps if plot.shows((gap.start, gap.y)) and plot.shows((gap.end, gap.y))),
            _end_labels(plot, series) if sheet.is_wide else Html(),
        ]
        if not any(plot.shows(point) for one in series for point in one.points):
            middle = (plot.x.start + plot.x.end) / 2, (plot.y.start + plot.y.end) / 2
            parts.append(element("text", "nothing recorded", x=middle[0], y=middle[1], class_="axis mid"))
        scale = " ".join(f"{v:.6g}" for v in (plot.x.start, plot.x.end, plot.x.low, plot.x.high, x.log))
        return height, element("g", *parts, data_x=scale, data_y=f"{plot.y.end:.0f} {plot.y.start:.0f}")

    return figure(title, about, draw, _table(x, y, series, digits), data_kind="lines")


# ------------------------------------------------------------------------------------------------ layout


def _layout(
    sheet: Sheet,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    references: Sequence[Reference],
    gaps: Sequence[Gap],
) -> tuple[_Plot, float, Html]:
    """The place of the plot, the height of the whole, and the legend where labels do not fit at the lines' ends."""
    xs = [point[0] for one in series for point in one.points if drawable(point[1])]
    ys = [point[1] for one in series for point in one.points]
    ys += [value for one in series for band in one.band for value in band[1:]]
    ys += [reference.value for reference in references] + [gap.y for gap in gaps]
    legend, legend_px = (Html(), 0.0) if sheet.is_wide else _legend(sheet, series)
    labels = [wrapped(one.label, LABELS_PX) for one in series if one.label]
    longest = max((len(line) for lines in labels for line in lines), default=0)
    right = sheet.width - (longest * LETTER_PX + 30 if sheet.is_wide and labels else 12)
    top, plot_px = 30 + legend_px, 300.0 if sheet.is_wide else 220.0
    y_scale = lay(y, ys, top + plot_px, top, 5 if sheet.is_wide else 4)
    x_axis = Axis(title=x.title, log=x.log, zero=x.zero, whole=x.whole, tight=True)
    return _Plot(sheet, lay(x_axis, xs, 58, right, sheet.ticks), y_scale), top + plot_px + 50, legend


def _legend(sheet: Sheet, series: Sequence[Series]) -> tuple[Html, float]:
    """One line per series above the plot, and the height that takes."""
    parts, y = [], 38.0
    for one in [one for one in series if one.label]:
        lines = wrapped(one.label, sheet.width - 50)
        parts.append(element("path", d=polygon([(4, y - 4), (26, y - 4)]), class_=_line_class(one)))
        parts.append(lettering(lines, 34, y, class_="label"))
        y += LINE_PX * len(lines) + 2
    return join(parts), y - 38 + (8 if parts else 0)


def _spread(wanted: Sequence[tuple[float, float]], low: float, high: float) -> list[float]:
    """The tops of blocks (wanted top, height), moved apart so that none overlaps, between low and high."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    tops = [top for top, _ in wanted]
    free = low
    for i in order:
        tops[i] = max(tops[i], free)
        free = tops[i] + wanted[i][1]
    limit = high
    for i in reversed(order):
        tops[i] = min(tops[i], limit - wanted[i][1])
        limit = tops[i]
    return tops


# ------------------------------------------------------------------------------------------------ drawing


def _line_class(one: Series) -> str:
    return f"line {one.style} c{one.colour % COLOURS}"


def _curve(plot: _Plot, one: Series) -> Html:
    """Band, line and markers of one series; the line is broken where a value cannot be drawn."""
    colour = f"c{one.colour % COLOURS}"
    parts = []
    band = [(x, low, high) for x, low, high in one.band if plot.shows((x, low)) and plot.shows((x, high))]
    if band:
        around = [plot.spot((x, high)) for x, _, high in band] + [plot.spot((x, low)) for x, low, _ in reversed(band)]
        parts.append(element("path", d=polygon(around, closed=True), class_=f"band {colour}"))
    for run in _unbroken(plot, one.points):
        if len(run) > 1:
            parts.append(element("path", d=polygon(run), class_=_line_class(one)))
        elif not one.markers:
            parts.append(element("circle", cx=run[0][0], cy=run[0][1], r=2.5, class_=f"mark {colour}"))
    for point in one.points if one.markers else ():
        if plot.shows(point):
            x, y = plot.spot(point)
            hint = element("title", f"{one.label} {exact(point[1], 4)} at {exact(point[0], 4)}".strip())
            parts.append(_marker(x, y, one.colour, hint))
    return element("g", *parts)


def _unbroken(plot: _Plot, points: Sequence[Point]) -> list[list[Point]]:
    runs: list[list[Point]] = [[]]
    for point in points:
        if plot.shows(point):
            runs[-1].append(plot.spot(point))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _marker(x: float, y: float, colour: int, *content: Html) -> Html:
    """A shape per colour, so that colour never carries the meaning alone."""
    name = f"mark c{colour % COLOURS}"
    shape = colour % 4
    if shape == 0:
        return element("circle", *content, cx=x, cy=y, r=4.5, class_=name)
    shapes: dict[int, list[Point]] = {
        1: [(-4.2, -4.2), (4.2, -4.2), (4.2, 4.2), (-4.2, 4.2)],
        2: [(0, -5.5), (5.2, 4), (-5.2, 4)],
        3: [(0, -6), (6, 0), (0, 6), (-6, 0)],
    }
    corners = shapes[shape]
    return element("path", *content, d=polygon([(x + dx, y + dy) for dx, dy in corners], closed=True), class_=name)


def _reference(plot: _Plot, reference: Reference, series: Sequence[Series]) -> Html:
    """A line across, its label above or below it, at the left or the right: where the fewest points lie."""
    y, width = plot.y.place(reference.value), len(reference.label) * LETTER_PX
    line = element("line", x1=plot.x.start, x2=plot.x.end, y1=y, y2=y, class_="reference")
    shown = [plot.spot(point) for one in series for point in one.points if plot.shows(point)]
    places = [(x, foot) for x in (plot.x.start + 8, plot.x.end - width - 4) for foot in (y - 6, y + 16)]
    x, foot = min(
        places, key=lambda at: sum(at[0] <= px <= at[0] + width and abs(at[1] - 4 - py) < 12 for px, py in shown)
    )
    return join([line, element("text", reference.label, x=x, y=foot, class_="remark")])


def _gap(plot: _Plot, gap: Gap) -> Html:
    (x1, y), (x2, _) = plot.spot((gap.start, gap.y)), plot.spot((gap.end, gap.y))
    ends = [element("line", x1=x, x2=x, y1=y - 20, y2=y - 8, class_="reference") for x in (x1, x2)]
    line = element("line", x1=x1, x2=x2, y1=y - 14, y2=y - 14, class_="reference")
    return join([line, *ends, element("text", gap.label, x=(x1 + x2) / 2, y=y - 20, class_="remark mid")])


def _end_labels(plot: _Plot, series: Sequence[Series]) -> Html:
    """The name of each line in the margin, as near to its end as the others allow; a thin line leads there."""
    ends, parts = [], []
    for one in series:
        shown = [plot.spot(point) for point in one.points if plot.shows(point)]
        if shown and one.label and shown[-1][0] < plot.x.end - 24:
            parts.append(_inner_label(one.label, shown))
        elif shown and one.label:
            ends.append((one, shown[-1], wrapped(one.label, LABELS_PX)))
    blocks = [(end[1] - LINE_PX * len(lines) / 2, LINE_PX * len(lines) + 5) for _, end, lines in ends]
    for (one, end, lines), top in zip(ends, _spread(blocks, plot.y.end - 16, plot.y.start + 16), strict=True):
        x, middle = plot.x.end + 14, top + LINE_PX * len(lines) / 2
        start = (end[0] + 5, end[1])
        parts.append(element("path", d=polygon([start, (x - 6, middle), (x + 2, middle)]), class_="leader"))
        parts.append(_marker(x + 4, middle, one.colour))
        parts.append(lettering(lines, x + 14, top + 12, class_="label"))
    return join(parts)


def _inner_label(label: str, shown: Sequence[Point]) -> Html:
    """The name of a line that ends inside the plot: left of its end, on the side that the line does not come from."""
    (x, y), before = shown[-1], shown[-2] if len(shown) > 1 else shown[-1]
    return element("text", label, x=x - 9, y=y - 9 if before[1] >= y else y + 19, class_="label end")


# ------------------------------------------------------------------------------------------------ numbers


def _table(x: Axis, y: Axis, series: Sequence[Series], digits: int) -> Table:
    """All points of all lines, a row per x; a cell stays empty where a line has no point."""
    columns: list[tuple[str, dict[float, float]]] = []
    for one in series:
        columns.append((one.label or y.title, dict(one.points)))
        if one.band:
            columns.append((f"{one.label or y.title}, lowest", {at: low for at, low, _ in one.band}))
            columns.append((f"{one.label or y.title}, highest", {at: high for at, _, high in one.band}))
    places = sorted({at for _, column in columns for at in column if drawable(at)})
    rows = [[exact(at), *(exact(column[at], digits) if at in column else "" for _, column in columns)] for at in places]
    return Table([x.title, *(name for name, _ in columns)], rows)
