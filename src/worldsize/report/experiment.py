"""The page of one experiment: what was asked, what was found, the figures, how to run it again; and single drawings."""

from collections.abc import Mapping, Sequence
from typing import Any

from worldsize.report.markup import Html
from worldsize.report.page import Section, Tile, commands, facts_table, render_page
from worldsize.report.style import COLOURS, DRAWING
from worldsize.report.values import counted, duration, moment, number, part, written

LABELS = {
    "question": "Question",
    "setting": "Setting",
    "prediction": "Prediction",
    "passes": "It holds if",
    "source": "After",
}
FONT = 'svg{font-family:"Liberation Sans",Arial,sans-serif;background:var(--paper)}'


def experiment_page(about: Mapping[str, str], result: Mapping[str, Any], figures: Sequence[Html]) -> str:
    """One self-contained page; `about` has the title, the question and what else was said beforehand."""
    name, holds = str(result["experiment"]), bool(result["holds"])
    quick = bool(result.get("quick"))
    facts = {label: about[name] for name, label in LABELS.items()}
    sections = [
        Section(title="What was asked", content=[facts_table(facts)]),
        Section(title="What was measured", content=list(figures)),
        Section(
            title="Run it again",
            content=[
                commands(
                    {
                        "All of it, on all cores": f"worldsize experiment run {name}",
                        "A small part of it, to see that it runs": f"worldsize experiment run {name} --quick",
                    }
                )
            ],
        ),
    ]
    tiles = [
        Tile(
            figure="not judged" if quick else "yes" if holds else "no",
            label="Did the prediction hold?",
            tone="plain" if quick else "good" if holds else "bad",
        ),
        Tile(figure=written(result.get("seeds")), label="seeds"),
        Tile(figure=written(result.get("trials")), label="trials"),
        Tile(figure=duration(result.get("wall_s")), label="to run", note=_what_ran(result)),
    ]
    return render_page(about["title"], str(result["finding"]), tiles, sections, _footer(result), "experiment")


def standalone(figure: Html) -> str:
    """The wide drawing of a figure as an SVG file of its own, which follows the reader's light or dark setting."""
    start = figure.index("<svg")
    end = figure.index("</svg>") + len("</svg>")
    drawing = figure[start:end]
    assert 'class="wide"' in drawing
    style = f"<style>{COLOURS}{DRAWING}{FONT}</style>"
    opening, _, rest = drawing.partition(">")
    return f'{opening} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'


def _what_ran(result: Mapping[str, Any]) -> str:
    """On how many cores, and how many trials had been kept by an earlier run."""
    kept = number(result.get("trials")) - number(result.get("computed"))
    cores = f"on {counted(result.get('workers'), 'core')}"
    return f"{cores}; {counted(kept, 'trial')} had been kept" if kept > 0 else cores


def _footer(result: Mapping[str, Any]) -> dict[str, str]:
    machine = part(result, "machine") or {}
    return {
        "Run": moment(result.get("started")),
        "Command": str(result.get("command", "")),
        "Machine": f"{machine.get('cpu', 'not known')}, {counted(machine.get('cores'), 'core')}",
        "Versions": ", ".join(f"{name} {machine.get(name, '?')}" for name in ("worldsize", "torch", "python")),
    }
