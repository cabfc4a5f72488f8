"""Places per second of a landscape: two workers, one, and two programs at once that share nothing, in turns in one run.

python benchmarks/landscape_scaling.py [--turns 9] [--points 15] [--out benchmarks/results/landscape_scaling.json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from worldsize.accuracy import surface
from worldsize.accuracy.landscape import View, make_surface
from worldsize.plan.statistics import bootstrap
from worldsize.run.training import start_training
from worldsize.train.records import machine
from worldsize.train.settings import Run

WORKERS = 2


def measure(view: View, tasks: list, workers: int) -> None:
    found = surface.measure(make_surface, (view,), tasks, workers=workers)
    assert len(found) == len(tasks)


def half(view: View, part: int) -> None:
    """A program of its own: at every line on its standard input it measures its half with one worker, and says so."""
    tasks = view.tasks[part::WORKERS]
    measure(view, tasks[:1], 1)  # its pool is warm
    print("ready", flush=True)
    for _ in sys.stdin:
        measure(view, tasks, 1)
        print("done", flush=True)


def apart(programs: list[subprocess.Popen]) -> None:
    for program in programs:
        program.stdin.write("go\n")
        program.stdin.flush()
    assert [program.stdout.readline() for program in programs] == ["done\n"] * len(programs)


def taken(contestants: dict[str, Callable[[], None]], turns: int) -> dict[str, list[float]]:
    """Seconds of each contestant in every turn; another one begins each time."""
    names, seconds = list(contestants), {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            before = time.perf_counter()
            contestants[name]()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - before)
    return seconds


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, high = bootstrap(len(ratios), lambda picked: statistics.median(ratios[i] for i in picked), 0.95)
    return {"median": statistics.median(ratios), "low": low, "high": high}


def contest(folder: str, points: int, turns: int) -> dict[str, list[float]]:
    run = Run(epochs=1, workers=1)
    start_training(run, out=Path(folder), resume=False, stop_after=None, command="", console=Console(quiet=True))
    view = View(run=folder, points=points)
    command = [sys.executable, __file__, "--points", str(points), "--run", folder, "--half"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([*command, str(part)], **pipes) for part in range(WORKERS)]
    try:
        assert [program.stdout.readline() for program in programs] == ["ready\n"] * WORKERS
        contestants = {
            "one": lambda: measure(view, view.tasks, 1),
            "two": lambda: measure(view, view.tasks, WORKERS),
            "apart": lambda: apart(programs),
        }
        return taken(contestants, turns)
    finally:
        for program in programs:
            program.stdin.close()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--points", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "landscape_scaling.json")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--half", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.half is not None:
        half(View(run=asked.run, points=asked.points), asked.half)
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = contest(folder, asked.points, asked.turns)
    places = asked.points**2
    found = {
        "places": places,
        "places_per_s": {name: places / statistics.median(each) for name, each in seconds.items()},
        "speedup": ratio(seconds["one"], seconds["two"]),
        "efficiency": ratio(seconds["apart"], seconds["two"]),  # of the same workers without any exchange
        "seconds": seconds,
    }
    for name in ("speedup", "efficiency"):
        print(f"{name:12} {found[name]['median']:.2f} ({found[name]['low']:.2f} to {found[name]['high']:.2f})")
    command = f"python benchmarks/landscape_scaling.py --turns {asked.turns} --points {asked.points}"
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "workers": WORKERS}
    asked.out.write_text(json.dumps(about | {"command": command, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
