"""The bench: where trials are run, on all cores, and every finished one is kept."""

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from worldsize.run.farm import Task, farm

PACKAGE = Path(__file__).parent.parent
TUNING = 1000  # the first seed of those that only choose a rate

Outcome = dict[str, Any]


class Bench:
    """Runs trials, each of which is kept as it ends, so that nothing is computed twice.

    A trial is a function of a module and its named arguments, and gives what JSON can hold. What was kept by other
    code is not used: its key has a digest of the sources that a trial rests on.
    """

    def __init__(
        self, *, workers: int, seeds: int, quick: bool = False, kept: Path | None = None, console: Console | None = None
    ) -> None:
        self.workers, self.seeds, self.quick, self.kept = workers, range(seeds), quick, kept
        self.console = console or Console(quiet=True)
        self.trials = self.computed = 0  # all that were asked for, and those of them that no earlier run had kept
        self._known = _read_kept(kept)

    def run(self, trial: Callable[..., Outcome], tasks: Sequence[Task], *, alone: bool = False) -> list[Outcome]:
        """The outcome of each task; with `alone` one after another, for those that measure time."""
        keys = [_key(trial, task) for task in tasks]
        # A time is measured anew, and not beside others.
        missing = [place for place, key in enumerate(keys) if alone or key not in self._known]
        self.trials, self.computed = self.trials + len(tasks), self.computed + len(missing)
        with self._progress() as progress:
            line = progress.add_task("trials", total=len(tasks), completed=len(tasks) - len(missing))

            def done(place: int, outcome: Outcome) -> None:
                self._keep(keys[missing[place]], tasks[missing[place]], outcome)
                progress.advance(line)

            farm(trial, [tasks[place] for place in missing], workers=1 if alone else self.workers, on_done=done)
        return [self._known[key] for key in keys]

    def each(self, trial: Callable[..., Outcome], variants: dict[str, Task]) -> dict[str, list[Outcome]]:
        """Every variant with every seed: the outcomes of each variant, in the order of the seeds."""
        tasks = [task | {"seed": seed} for task in variants.values() for seed in self.seeds]
        outcomes = iter(self.run(trial, tasks))
        return {name: [next(outcomes) for _ in self.seeds] for name in variants}

    def tune(
        self,
        trial: Callable[..., Outcome],
        variants: dict[str, Task],
        key: str,
        values: Mapping[str, Sequence[float]],
        worse: Callable[[Outcome], float],
        seeds: int = 1,
    ) -> dict[str, float]:
        """For each variant the value of `key` with the lowest mean of `worse`, on seeds that nothing else uses."""
        places = [(name, value) for name in variants for value in values[name]]
        tasks = [variants[name] | {key: value, "seed": TUNING + i} for name, value in places for i in range(seeds)]
        outcomes = self.run(trial, tasks)
        scores: dict[str, dict[float, float]] = {name: {} for name in variants}
        for i, (name, value) in enumerate(places):
            scores[name][value] = sum(worse(outcome) for outcome in outcomes[i * seeds : (i + 1) * seeds])
        return {name: min(found, key=lambda value: found[value]) for name, found in scores.items()}

    def best(
        self, trial: Callable[..., Outcome], variants: dict[str, Task], worse: Callable[[Outcome], float], seeds: int
    ) -> str:
        """The variant with the lowest mean of `worse`, on those seeds too."""
        tasks = [task | {"seed": TUNING + i} for task in variants.values() for i in range(seeds)]
        outcomes = iter(self.run(trial, tasks))
        scores = {name: sum(worse(next(outcomes)) for _ in range(seeds)) for name in variants}
        return min(scores, key=lambda name: scores[name])

    def _keep(self, key: str, task: Task, outcome: Outcome) -> None:
        self._known[key] = outcome
        if self.kept is not None:
            with self.kept.open("a") as lines:
                lines.write(json.dumps({"key": key, "task": task, "outcome": outcome}) + "\n")

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )


def _read_kept(path: Path | None) -> dict[str, Outcome]:
    """What earlier runs kept; a last line that was cut off is left out, and ended so that the next one is whole."""
    found = {}
    if path is not None and path.exists():
        text = path.read_text(errors="replace")
        if text and not text.endswith("\n"):
            path.write_text(text + "\n")
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                found[entry["key"]] = entry["outcome"]
            except (ValueError, KeyError, TypeError):
                continue
    return found


def _key(trial: Callable[..., Outcome], task: Task) -> str:
    name = f"{trial.__module__}:{trial.__qualname__}"
    return f"{name} {_sources(trial.__module__)} {json.dumps(task, sort_keys=True)}"


@functools.cache  # the code that runs is what was there at first
def _sources(module: str) -> str:
    """A digest of the code, and of torch, that a trial of this module rests on."""
    rooms = [path for room in ("plan", "parallel", "train") for path in sorted((PACKAGE / room).glob("*.py"))]
    own = Path(str(importlib.import_module(module).__file__))
    shared = [PACKAGE / "accuracy" / f"{name}.py" for name in ("trials", "curvature", "directions", "surface")]
    digest = hashlib.sha256(torch.__version__.encode())
    for path in [*rooms, *shared, own]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
