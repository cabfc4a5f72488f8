"""`worldsize experiment list | run | figure`: what the words of the command line come to."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from worldsize.accuracy import experiment
from worldsize.accuracy.bench import TUNING
from worldsize.errors import Misuse
from worldsize.run import pool
from worldsize.run.machine import places_for_workers


def list_all(arguments: argparse.Namespace) -> int:
    """Every experiment, what it asks, and what the result in the package found."""
    _refuse_unused(arguments, ("quick", "seeds", "workers", "out", "result"))
    if arguments.names:
        raise Misuse(f"`experiment list` takes no name, but {arguments.names[0]} was given; it lists all")
    rows = [_row(name) for name in experiment.NAMES]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    console = Console(highlight=False)
    for row in rows:
        console.print(f"[bold]{row['name']}[/bold]  {row['question']}", soft_wrap=True)
        if row["finding"]:
            console.print(f"    {'held' if row['holds'] else 'did not hold'}: {row['finding']}", soft_wrap=True)
    return 0


def _row(name: str) -> dict[str, Any]:
    path = experiment.published(name)
    result = experiment.read_result(path, name) if path.exists() else {}
    return {
        "name": name,
        "question": experiment.named(name).question,
        "holds": result.get("holds"),
        "finding": result.get("finding"),
        "wall_s": result.get("wall_s"),
    }


def run(arguments: argparse.Namespace) -> int:
    """Run each; 0 if every prediction held (or with --quick, which judges nothing), 1 otherwise."""
    _refuse_unused(arguments, ("result",))
    names = _names(arguments)
    workers = places_for_workers("cpu") if arguments.workers is None else arguments.workers
    for flag, value in (("workers", workers), ("seeds", arguments.seeds)):
        if value is not None and value < 1:
            raise Misuse(f"--{flag} {value} cannot be; it must be a whole number of at least 1")
    if arguments.seeds == 1:
        raise Misuse("--seeds 1 has no spread, and without one nothing can be said; use at least 2")
    if arguments.seeds is not None and arguments.seeds > TUNING:
        raise Misuse(
            f"--seeds {arguments.seeds} are too many: rates are chosen on those from {TUNING} on; use at most "
            f"{TUNING:,}"
        )
    out = Path(arguments.out or "experiments")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"--out {out} cannot be written: {error.strerror}; name another folder") from None
    console = Console(stderr=arguments.json, highlight=False)
    pool.warm_up()
    results = []
    for name in names:
        about = experiment.named(name)
        console.print(f"[bold]{name}[/bold]  {about.question}", soft_wrap=True)
        result = experiment.run_experiment(
            name, workers=workers, seeds=arguments.seeds, quick=arguments.quick, out=out, console=console
        )
        _say(console, result, out)
        results.append(result)
    if arguments.json:
        print(json.dumps(results, indent=1))
    return 0 if arguments.quick or all(result["holds"] for result in results) else 1


def _say(console: Console, result: dict[str, Any], out: Path) -> None:
    judged = "not judged, since --quick" if result["quick"] else "held" if result["holds"] else "did not hold"
    console.print(f"    {judged}: {result['finding']}", soft_wrap=True)
    console.print(
        f"    {result['trials']} trials in {result['wall_s']:.0f} s; {out / result['experiment']}.html", soft_wrap=True
    )


def figure(arguments: argparse.Namespace) -> int:
    """Draw results again, those in the package unless told otherwise."""
    _refuse_unused(arguments, ("quick", "seeds", "workers", "json"))
    names = _names(arguments)
    if len(names) > 1 and (arguments.out or arguments.result):
        raise Misuse(f"--out and --result are for one figure, but {len(names)} were named; name one")
    for name in names:
        path = Path(arguments.result) if arguments.result else experiment.published(name)
        target = Path(arguments.out or f"{name}.html")
        if target.suffix not in (".html", ".svg"):
            raise Misuse(f"--out {target} is no page and no drawing; let it end in .html or .svg")
        result = experiment.read_result(path, name)
        try:
            experiment.write_figure(name, result, target)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, StopIteration) as error:
            raise Misuse(
                f"{path} is no whole result of experiment {name} as it is today ({type(error).__name__}: {error}); "
                "run it again"
            ) from error
        print(target)
    return 0


def _refuse_unused(arguments: argparse.Namespace, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise Misuse(f"`experiment {arguments.action}` has no use for --{name}; leave it out")


def _names(arguments: argparse.Namespace) -> list[str]:
    if not arguments.names:
        known = ", ".join(experiment.NAMES)
        raise Misuse(f"`experiment {arguments.action}` needs a name; there are {known}, or all for every one")
    names = list(experiment.NAMES) if arguments.names == ["all"] else list(dict.fromkeys(arguments.names))
    for name in names:
        experiment.named(name)
    return names


ACTIONS = {"list": list_all, "run": run, "figure": figure}
