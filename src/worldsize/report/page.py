"""The skeleton of a page: header with the verdict, tiles, sections, footer; one file that fetches nothing."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from worldsize.report.markup import Html, element, join
from worldsize.report.style import CSS, SCRIPT

Tone = Literal["plain", "good", "bad"]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A key figure: the number, what it is, and how sure it is."""

    figure: str
    label: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, a paragraph, and what it speaks about."""

    title: str
    text: str = ""
    content: Sequence[Html] = ()


def render_page(
    title: str,
    verdict: str,
    tiles: Sequence[Tile],
    sections: Sequence[Section],
    footer: Mapping[str, str],
    kind: str = "report",
    tone: Tone = "plain",
    css: str = "",
    script: str = "",
) -> str:
    """The whole page, with style and script of its own where it needs some; the same input gives the same bytes."""
    script = Html(SCRIPT + script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The browser itself is told to fetch nothing and to run no other script than ours.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(CSS + css)),
    )
    brand = element("p", element("b", "worldsize"), " ", kind, class_="brand")
    header = element(
        "header",
        brand,
        element("h1", title),
        element("p", verdict, class_=f"verdict {tone}"),
        *([_tiles(tiles)] if tiles else []),
    )
    main = element("main", *(_section(section) for section in sections))
    body = element("body", header, main, _footer(footer), element("script", script))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _tiles(tiles: Sequence[Tile]) -> Html:
    cells = []
    for tile in tiles:
        parts = [element("dt", tile.label), element("dd", tile.figure, class_="figure")]
        parts += [element("dd", tile.note, class_="note")] if tile.note else []
        cells.append(element("div", *parts, class_=f"tile {tile.tone}"))
    return element("dl", *cells, class_="tiles")


def _section(section: Section) -> Html:
    text = [element("p", section.text)] if section.text else []
    return element("section", element("h2", section.title), *text, *section.content)


def _footer(facts: Mapping[str, str]) -> Html:
    pairs = [join([element("dt", name), element("dd", fact)]) for name, fact in facts.items()]
    return element("footer", element("dl", *pairs))


def facts_table(facts: Mapping[str, object]) -> Html:
    """A table of names and what they are."""
    rows = [element("tr", element("th", name, scope="row"), element("td", fact)) for name, fact in facts.items()]
    return element("div", element("table", element("tbody", *rows), class_="facts"), class_="scroll")


def pair(*figures: Html) -> Html:
    """Two figures side by side where the window is wide enough."""
    return element("div", *figures, class_="pair")


def command(verb: str, flags: Sequence[str]) -> str:
    """A command on lines of at most 80 characters, as a shell takes them.

    >>> command("worldsize train", ["--workers 2"])
    'worldsize train --workers 2'
    """
    lines = [verb]
    for flag in flags:
        if len(lines[-1]) + len(flag) > 76:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {flag}"
    return "\n".join(lines)


def choice(name: str, options: Mapping[str, Html]) -> Html:
    """Several drawings of which one is shown, the first until another is chosen; needs no script."""
    parts: list[Html] = []
    for i, label in enumerate(options):
        key = f"{name}-{i}"
        parts.append(element("input", type="radio", name=name, id=key, checked=None if i else "checked"))
        parts.append(element("label", label, for_=key))
    parts += [element("div", drawing, class_="option") for drawing in options.values()]
    return element("div", *parts, class_="choice")


def commands(steps: Mapping[str, str]) -> Html:
    """Commands to type, each below what it is for."""
    items = [element("li", purpose, element("pre", command)) for purpose, command in steps.items()]
    return element("ul", *items, class_="steps")
