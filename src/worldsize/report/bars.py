"""Charts with a row per thing: horizontal bars with their range, and strips of dots with one dot per round."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from worldsize.report.axis import Axis, Scale, lay
from worldsize.report.markup import Html, element, join
from worldsize.report.paper import (
    LETTER_PX,
    LINE_PX,
    Reference,
    Sheet,
    Table,
    figure,
    grid_below,
    lettering,
    wrapped,
)
from worldsize.report.values import drawable, exact, written

LABELS_PX = 235.0
BAR_PX = 20.0


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar; `low` and `high` draw its range, `note` stands small below its label."""

    label: str
    value: float
    low: float = math.nan
    high: float = math.nan
    note: str = ""
    highlight: bool = False


@dataclass(frozen=True, kw_only=True)
class Strip:
    """One row of dots; their median is marked."""

    label: str
    values: Sequence[float]
    note: str = ""
    highlight: bool = False


@dataclass(frozen=True)
class _Row:
    label: str
    note: str
    text: str
    reach: float
    draw: Callable[[Scale, float], Html]


def bar_chart(
    title: str, about: str, axis: Axis, bars: Sequence[Bar], references: Sequence[Reference] = (), digits: int = 3
) -> Html:
    """A figure with one horizontal bar per value; bars begin at zero."""
    rows = []
    for bar in bars:
        high = bar.high if drawable(bar.high) else bar.value
        text = written(bar.value, digits) if drawable(bar.value) else "not measured"
        rows.append(_Row(bar.label, bar.note, text, max(bar.value, high), _bar_marks(bar)))
    table = Table(
        ["", axis.title, "lowest", "highest"],
        [[bar.label, *(exact(v) if drawable(v) else "" for v in (bar.value, bar.low, bar.high))] for bar in bars],
    )
    values = [value for bar in bars for value in (bar.value, bar.high)]
    return _rows_chart(title, about, Axis(title=axis.title, zero=True), rows, values, references, table)


def strip_chart(
    title: str, about: str, axis: Axis, strips: Sequence[Strip], references: Sequence[Reference] = (), digits: int = 3
) -> Html:
    """A figure with one row of dots per strip, one dot per value."""
    rows = []
    for strip in strips:
        values = [value for value in strip.values if drawable(value)]
        text = f"median {written(median(values), digits)}" if values else "not measured"
        rows.append(_Row(strip.label, strip.note, text, max(values, default=math.nan), _strip_marks(strip, values)))
    longest = max((len(strip.values) for strip in strips), default=0)
    table = Table(
        ["round", *(strip.label for strip in strips)],
        [
            [str(i + 1), *(exact(strip.values[i]) if i < len(strip.values) else "" for strip in strips)]
            for i in range(longest)
        ],
    )
    every = [value for strip in strips for value in strip.values]
    return _rows_chart(title, about, axis, rows, every, references, table)


def _bar_marks(bar: Bar) -> Callable[[Scale, float], Html]:
    def draw(scale: Scale, y: float) -> Html:
        if not drawable(bar.value):
            return Html()
        zero, end = scale.place(0.0), scale.place(bar.value)
        hint = element("title", f"{bar.label}: {exact(bar.value, 4)}")
        name = "bar highlight" if bar.highlight else "bar"
        width = max(0.5, end - zero)
        parts = [element("rect", hint, x=zero, y=y - BAR_PX / 2, width=width, height=BAR_PX, rx=2, class_=name)]
        if drawable(bar.low) and drawable(bar.high):
            low, high = scale.place(bar.low), scale.place(bar.high)
            parts.append(element("path", d=f"M{low:.1f},{y:.1f}H{high:.1f}", class_="whisker"))
            parts += [element("path", d=f"M{x:.1f},{y - 5:.1f}V{y + 5:.1f}", class_="whisker") for x in (low, high)]
        return join(parts)

    return draw


def _strip_marks(strip: Strip, values: Sequence[float]) -> Callable[[Scale, float], Html]:
    def draw(scale: Scale, y: float) -> Html:
        if not values:
            return Html()
        name = "dot highlight" if strip.highlight else "dot"
        dots = [
            element("circle", element("title", exact(value, 4)), cx=scale.place(value), cy=y, r=5, class_=name)
            for value in values
        ]
        low, high, middle = (scale.place(value) for value in (min(values), max(values), median(values)))
        track = element("path", d=f"M{low:.1f},{y:.1f}H{high:.1f}", class_="track")
        return join([track, *dots, element("path", d=f"M{middle:.1f},{y - 11:.1f}V{y + 11:.1f}", class_="whisker")])

    return draw


def _rows_chart(
    title: str,
    about: str,
    axis: Axis,
    rows: Sequence[_Row],
    values: Sequence[float],
    references: Sequence[Reference],
    table: Table,
) -> Html:
    every = [*values, *(reference.value for reference in references)]

    def draw(sheet: Sheet) -> tuple[float, Html]:
        label_px = min(LABELS_PX, max((_width_of(row) for row in rows), default=0.0) + 14) if sheet.is_wide else 4.0
        value_px = max((len(row.text) for row in rows), default=0) * (LETTER_PX + 0.8) + 18
        scale = lay(axis, every, label_px + 4, sheet.width - value_px, sheet.ticks)
        top = 6.0 + (LINE_PX + 6 if references else 0)
        parts, foot = [], top
        for row in rows:
            content, foot = _row(sheet, scale, row, foot, label_px, references)
            parts.append(content)
        lines = [_reference(scale, reference, top, foot) for reference in references if drawable(reference.value)]
        return foot + 48, element("g", grid_below(scale, axis, top, foot), *parts, *lines)

    return figure(title, about, draw, table, data_kind="rows")


def _width_of(row: _Row) -> float:
    lines = wrapped(row.label, LABELS_PX - 14) + wrapped(row.note, LABELS_PX - 14)
    return max(map(len, lines)) * LETTER_PX


def _row(
    sheet: Sheet, scale: Scale, row: _Row, top: float, label_px: float, references: Sequence[Reference]
) -> tuple[Html, float]:
    """One row and its foot: the label left of the marks on a wide sheet, above them on a narrow one."""
    width = label_px - 14 if sheet.is_wide else sheet.width - 10
    lines = wrapped(row.label, width)
    notes = wrapped(row.note, width * 1.1) if row.note else []
    text_px = LINE_PX * (len(lines) + len(notes))
    height = max(BAR_PX + 18, text_px + 14) if sheet.is_wide else text_px + BAR_PX + 22
    first = top + (height - text_px) / 2 + 12 if sheet.is_wide else top + 18
    y = top + height / 2 if sheet.is_wide else top + text_px + BAR_PX / 2 + 10
    name, x = ("label end", label_px - 8) if sheet.is_wide else ("label", 4.0)
    parts = [lettering(lines, x, first, class_=name)]
    if notes:
        parts.append(lettering(notes, x, first + LINE_PX * len(lines), class_=name.replace("label", "tick")))
    parts.append(row.draw(scale, y))
    at = _text_place(scale, row, references)
    parts.append(element("text", row.text, x=at, y=y + 5, class_="value"))
    return join(parts), top + height


def _text_place(scale: Scale, row: _Row, references: Sequence[Reference]) -> float:
    """Right of the marks, and right of a reference line that would run through the text."""
    at = 9 + (scale.place(row.reach) if drawable(row.reach) else scale.start)
    for line in sorted(scale.place(reference.value) for reference in references if drawable(reference.value)):
        at = line + 7 if at - 5 < line < at + len(row.text) * LETTER_PX + 8 else at
    return at


def _reference(scale: Scale, reference: Reference, top: float, foot: float) -> Html:
    x = scale.place(reference.value)
    side = "end" if x > (scale.start + scale.end) / 2 else ""
    line = element("line", x1=x, x2=x, y1=top - 4, y2=foot, class_="reference")
    return join([line, element("text", reference.label, x=x + 4, y=top - 9, class_=f"remark {side}".strip())])
