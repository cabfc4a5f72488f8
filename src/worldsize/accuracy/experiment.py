"""What an experiment is: a question, its setting, what is predicted, the trials that answer it, and what passes."""

import importlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from worldsize.accuracy.bench import PACKAGE, Bench
from worldsize.errors import Misuse
from worldsize.report.experiment import experiment_page, standalone
from worldsize.report.markup import Html
from worldsize.train.records import machine

QUICK_SEEDS = 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came of it: whether the prediction held, and a sentence that says so in numbers."""

    holds: bool
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question about training on many workers, which trials of seconds answer."""

    title: str
    question: str
    setting: str
    prediction: str
    source: str  # whose finding it repeats
    passes: str  # when the prediction is said to hold
    seeds: int
    measure: Callable[[Bench], dict[str, Any]]  # what judge and draw need, as JSON can hold it
    judge: Callable[[dict[str, Any]], Finding]
    draw: Callable[[dict[str, Any]], Sequence[Html]]

    @property
    def about(self) -> dict[str, str]:
        names = ("title", "question", "setting", "prediction", "passes", "source")
        return {name: getattr(self, name) for name in names}


def run_experiment(
    name: str, *, workers: int, seeds: int | None, quick: bool, out: Path, console: Console
) -> dict[str, Any]:
    """Run it, leave NAME.json and NAME.html in the folder `out`, and give what came of it."""
    experiment = named(name)
    count = seeds or (QUICK_SEEDS if quick else experiment.seeds)
    bench = Bench(workers=workers, seeds=count, quick=quick, kept=out / "trials.jsonl", console=console)
    started, since = datetime.now(UTC), time.perf_counter()
    measured = plain(experiment.measure(bench))
    finding = experiment.judge(measured)
    result = {
        "experiment": name,
        "command": f"worldsize experiment run {name}" + (" --quick" if quick else "") + _seeds_flag(seeds),
        "started": started.isoformat(timespec="seconds"),
        "wall_s": round(time.perf_counter() - since, 1),
        "seeds": count,
        "trials": bench.trials,
        "computed": bench.computed,
        "workers": workers,
        "quick": quick,
        "machine": machine(),
        "holds": finding.holds,
        "finding": finding.sentence,
        "measured": measured,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    write_figure(name, result, out / f"{name}.html")
    return result


def _seeds_flag(seeds: int | None) -> str:
    return f" --seeds {seeds}" if seeds is not None else ""


def write_figure(name: str, result: dict[str, Any], target: Path) -> None:
    """The page of a result, or only its first drawing where the target ends in .svg."""
    experiment = named(name)
    figures = experiment.draw(result["measured"])
    svg = target.suffix == ".svg"
    try:
        target.write_text(standalone(figures[0]) if svg else experiment_page(experiment.about, result, figures))
    except OSError as error:
        raise Misuse(f"--out {target} cannot be written: {error.strerror}; name another file") from None


# ---- by name ---------------------------------------------------------------------------------------------------------

NAMES = (
    "linear-neuron",
    "throughput",
    "steps-to-target",
    "noise-scale",
    "warm-up",
    "momentum",
    "layerwise",
    "train-longer",
    "batch-growth",
    "sharpness",
    "landscapes",
    "learning-curve",
    "stale-gradients",
    "big-worlds",
    "headline",
)


def named(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in NAMES:
        raise Misuse(f"unknown experiment {name!r}; there are {', '.join(NAMES)}")
    module = importlib.import_module(f"worldsize.accuracy.experiments.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found


def published(name: str) -> Path:
    """Where the package keeps the result that its docs are made from."""
    return PACKAGE / "accuracy" / "experiments" / "results" / f"{name}.json"


def read_result(path: Path, name: str) -> dict[str, Any]:
    """The result of an experiment of this name, as `run` wrote it."""
    try:
        found = json.loads(path.read_text())
    except OSError:
        raise Misuse(f"there is no result {path}; make one with: worldsize experiment run {name}") from None
    except ValueError:
        raise Misuse(f"{path} is no result of an experiment: it does not read as JSON; run it again") from None
    if not isinstance(found, dict) or found.get("experiment") != name or not isinstance(found.get("measured"), dict):
        raise Misuse(f"{path} is no result of experiment {name}; name the file that `experiment run {name}` wrote")
    return found


def plain(value: Any) -> Any:
    """The same as JSON can hold: tuples become lists, dataclasses objects, what is no number null."""
    if hasattr(value, "__dataclass_fields__"):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
