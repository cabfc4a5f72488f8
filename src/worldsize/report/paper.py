"""What all charts stand on: the sheet and its two sizes, grid, labels, tooltips, and the table of the numbers."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worldsize.report.axis import Axis, Scale, tick_texts
from worldsize.report.markup import Html, element, join

LINE_PX = 16.0
LETTER_PX = 7.0


@dataclass(frozen=True)
class Sheet:
    """The paper a chart is drawn on: each chart is drawn twice, and the page shows what fits the window."""

    name: str
    width: float
    ticks: int

    @property
    def is_wide(self) -> bool:
        return self.name == "wide"


WIDE, NARROW = Sheet("wide", 900, 6), Sheet("narrow", 400, 4)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A line across the whole chart at one value, such as a target or a ceiling."""

    value: float
    label: str


@dataclass(frozen=True)
class Table:
    """The numbers of a chart, for those who cannot or do not want to see it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def wrapped(text: str, width_px: float, lines: int = 3) -> list[str]:
    """Text broken into at most so many lines of about this width."""
    letters = max(4, int(width_px / LETTER_PX))
    return textwrap.wrap(text, letters, max_lines=lines, placeholder=" …") or [""]


def lettering(lines: Sequence[str], x: float, y: float, **attributes: object) -> Html:
    """Lines of text, the first with its foot at y."""
    if len(lines) == 1:
        return element("text", lines[0], x=x, y=y, **attributes)
    spans = [element("tspan", line, x=x, y=y + i * LINE_PX) for i, line in enumerate(lines)]
    return element("text", *spans, **attributes)


def polygon(points: Sequence[tuple[float, float]], closed: bool = False) -> str:
    """The `d` of a path through these pixels."""
    return "M" + "L".join(f"{_px(x)},{_px(y)}" for x, y in points) + ("Z" if closed else "")


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def grid_below(scale: Scale, axis: Axis, top: float, bottom: float, rules: bool = True) -> Html:
    """A horizontal axis at the foot of a chart: ticks, their labels, its title."""
    parts = []
    for tick, text in zip(scale.ticks, tick_texts(scale), strict=True):
        x = scale.place(tick)
        parts.append(element("line", x1=x, x2=x, y1=top if rules else bottom, y2=bottom + 4, class_="rule"))
        parts.append(element("text", text, x=x, y=bottom + 19, class_="tick mid"))
    middle = (scale.start + scale.end) / 2
    parts.append(element("text", axis.title, x=middle, y=bottom + 40, class_="axis mid"))
    return join(parts)


def grid_left(scale: Scale, left: float, right: float) -> Html:
    """A vertical axis at the left of a chart: rules across it, and their labels."""
    parts = []
    for tick, text in zip(scale.ticks, tick_texts(scale), strict=True):
        y = scale.place(tick)
        parts.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="rule"))
        parts.append(element("text", text, x=left - 8, y=y + 4, class_="tick end"))
    return join(parts)


def figure(
    title: str,
    about: str,
    draw: Callable[[Sheet], tuple[float, Html]],
    table: Table | None,
    sheets: Sequence[Sheet] = (WIDE, NARROW),
    **data: str,
) -> Html:
    """A chart as the page shows it: caption, the drawing in its sizes, and its numbers in a table to unfold."""
    drawings = []
    for sheet in sheets:
        height, content = draw(sheet)
        drawings.append(
            element(
                "svg",
                element("title", title),
                element("desc", about),
                content,
                viewBox=f"0 0 {sheet.width:.0f} {height:.0f}",
                class_=sheet.name,
                role="img",
            )
        )
    caption = element("figcaption", element("b", title), element("span", class_="readout"))
    note = [element("p", about, class_="about")] if about else []
    folded = [numbers(table)] if table else []
    return element("figure", caption, *drawings, *note, *folded, **data)


def numbers(table: Table) -> Html:
    """A table of numbers, folded."""
    return element("details", element("summary", "The numbers of this chart"), plain_table(table, "numbers"))


def plain_table(table: Table, kind: str = "") -> Html:
    """A table that scrolls sideways where it is too wide."""
    head = element("tr", *(element("th", name, scope="col") for name in table.head))
    rows = [element("tr", *(element("td", cell) for cell in row)) for row in table.rows]
    parts = [element("thead", head)] if table.head else []
    content = element("table", *parts, element("tbody", *rows), class_=kind or None)
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label="table")
