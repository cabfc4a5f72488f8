"""`worldsize demo`: one worker, then all cores, with the same weights; and what a naive port would have given."""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from worldsize.errors import Misuse
from worldsize.parallel.world import World, join_world
from worldsize.report.demo import demo_page
from worldsize.run import pool
from worldsize.run.machine import places_for_workers
from worldsize.train import loop, models, optimizers
from worldsize.train.job import Job
from worldsize.train.records import machine
from worldsize.train.settings import Run

REPLICAS, BATCH, EPOCHS = 8, 16, 4
RATE: dict[str, Any] = {
    "device": "cpu",  # cores are what every machine has several of
    "drop_short": True,
    "epochs": EPOCHS,
    "lr": 0.2,
    "reference_batch": REPLICAS * BATCH,
    "warmup": 0.5,
}
KEPT = Run(replicas=REPLICAS, batch_per_replica=BATCH, **RATE)
# A port that gives every worker the whole data set takes the one-device step on each of them.
ALL_READ_ALL = Run(replicas=1, batch_per_replica=REPLICAS * BATCH, **RATE)
# A port that gives every worker the one-device batch has a global batch eight times as large, at the old rate.
BATCH_GROWN = Run(replicas=REPLICAS, batch_per_replica=REPLICAS * BATCH, lr_rule="none", **RATE)
ROUNDS, STEPS_PER_ROUND = 7, 7


def run_demo(workers: int | None, page: Path, *, as_json: bool) -> int:
    """Run the demo, leave its page, say what was seen; 0 when the weights are the same, else 1."""
    workers = workers if workers is not None else max(2, min(places_for_workers("cpu"), REPLICAS))
    if not 2 <= workers <= REPLICAS:
        raise Misuse(f"--workers {workers}: the demo compares one worker with 2 to {REPLICAS}")
    if not page.parent.is_dir():
        raise Misuse(f"--out {page}: there is no folder {page.parent}; name a file in a folder that is there")
    console = Console(stderr=as_json, quiet=as_json and not sys.stderr.isatty(), highlight=False)
    started = time.perf_counter()
    result = _measure(workers, console)
    result["wall_s"] = round(time.perf_counter() - started, 1)
    page.write_text(demo_page(result), encoding="utf-8")
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        _show(console, result, page)
    return 0 if result["same_bits"] else 1


def _measure(workers: int, console: Console) -> dict[str, Any]:
    pool.warm_up()
    plan = loop.make_plan(KEPT, workers)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    console.print(
        f"[bold]{KEPT.model}[/bold], {plan.parameters:,} parameters, on {len(plan.sets.train):,} images of "
        f"{plan.sets.name} ({plan.sets.source})\n{REPLICAS} replicas of {BATCH} examples: global batch "
        f"{KEPT.global_batch}, {EPOCHS} epochs, learning rate {plan.learning_rate:g}\n"
    )
    one = _train(console, "one worker", KEPT, 1)
    many = _train(console, f"{workers} workers", KEPT, workers)
    with console.status("speed: one, all, all without exchange, in turns"):
        rounds = pool.run_workers(measure_speed, KEPT, ROUNDS, STEPS_PER_ROUND, workers=workers)[0]
    all_read_all = _train(console, "naive port: every worker reads everything", ALL_READ_ALL, 1, shown_as=REPLICAS)
    all_read_all |= {
        "useful_share": 1 / REPLICAS,
        "examples_read": all_read_all["examples_read"] * REPLICAS,
        "note": f"all {REPLICAS} workers compute the same step: {REPLICAS} times the work, no time won",
    }
    grown = _train(console, "naive port: batch grown, rate not adapted", BATCH_GROWN, workers, shown_as=REPLICAS)
    grown |= {
        "useful_share": 1.0,
        "note": f"a global batch of {BATCH_GROWN.global_batch:,} leaves an eighth of the updates",
    }
    kept = many | {"name": "worldsize: the same global batch", "workers": REPLICAS, "useful_share": 1.0}
    return {
        "started": started,
        "command": "worldsize demo",
        "machine": machine() | {"device": "cpu"},
        "experiment": plan.facts(KEPT, workers, "cpu", "gloo"),
        "runs": [one, many],
        "speed": summarise(rounds),
        "same_bits": all(one[name] == many[name] for name in ("weights_sha256", "buffers_sha256")),
        "naive": [all_read_all, grown, kept],
    }


def _train(console: Console, name: str, run: Run, workers: int, shown_as: int | None = None) -> dict[str, Any]:
    """One training, its result and its curves."""
    epochs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []

    def receive(worker: int, message: dict[str, Any]) -> None:
        if message["kind"] == "evaluated":
            epochs.append({key: message[key] for key in ("epoch", "accuracy", "loss", "time_s")})
        elif "loss" in message:
            steps.append({"step": message["step"], "loss": message["loss"]})
            status.update(f"{name}: step {message['step']}, loss {message['loss']:.3f}")

    with console.status(name) as status:
        result = pool.run_workers(loop.train_worker, run, None, None, pool.tell, workers=workers, on_message=receive)[0]
    console.print(
        f"  {name:<41} accuracy {result['accuracy']:.4f}  {result['train_s']:5.1f} s  {result['weights_sha256'][:8]}"
    )
    kept = ("accuracy", "loss", "train_s", "examples_per_s", "weights_sha256", "buffers_sha256")
    return {
        "name": name,
        "workers": shown_as or workers,
        **{key: result[key] for key in kept},
        "examples_read": result["steps"] * result["global_batch"],
        "epochs": epochs,
        "steps": steps,
    }


# ---- speed ----------------------------------------------------------------------------------------------------------


def measure_speed(run: Run, rounds: int, steps: int) -> list[dict[str, float]]:
    """In every worker: the step in turns alone, together, together without exchange, and alone as one joined batch."""
    world = join_world()
    alone = World(worker=0, size=1, device=world.device, backend="none", ours=False)
    joined = Run(**(run.as_json() | {"replicas": 1, "batch_per_replica": run.global_batch}))
    # Without exchange: each worker takes its own block's share of the global batch as a job of its own.
    share = Run(**(run.as_json() | {"replicas": run.replicas // world.size}))
    kinds: dict[str, tuple[Run, World]] = {
        "one_s": (run, alone),
        "many_s": (run, world),
        "ceiling_s": (share, alone),
        "joined_s": (joined, alone),
    }
    timers = {name: _timer(each, where) for name, (each, where) in kinds.items()}
    found = []
    for turn in range(rounds + 1):
        took: dict[str, float] = {}
        for name, timer in timers.items():
            world.barrier()
            if world.worker == 0 or name in ("many_s", "ceiling_s"):
                took[name] = timer(steps)
            world.barrier()
        if turn:  # the first round warms up
            found.append(took)
    return found


def _timer(run: Run, world: World) -> Callable[[int], float]:
    """A function that takes so many steps of a run and gives the median seconds of one."""
    plan = loop.make_plan(run, world.size)
    torch.manual_seed(run.seed)
    model = models.build(run.model, plan.sets, run.dropout)
    borders: list[float] = []
    settings = loop.job_settings(run, None)
    job = Job(
        world,
        settings,
        model,
        optimizers.make(plan.optimizer, model, plan.learning_rate, run.weight_decay),
        after_step=lambda _: borders.append(time.perf_counter()),
    )
    loss = models.loss_of(plan.sets, model)

    def passes() -> Any:
        for _ in job.epochs(sys.maxsize):
            for x, y in job.batches(plan.sets.train):
                yield job.backward(loss(x, y))

    running = passes()

    def take(steps: int) -> float:
        borders[:] = [time.perf_counter()]
        while len(borders) <= steps:
            next(running)
        return statistics.median(late - early for early, late in itertools.pairwise(borders))

    return take


def summarise(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Ratios within each round, their median and range: nothing else holds on a machine that others use too."""
    return {
        "rounds": rounds,
        "speedup": _spread([each["one_s"] / each["many_s"] for each in rounds]),
        "efficiency": _spread([each["ceiling_s"] / each["many_s"] for each in rounds]),
        "replica_cost": _spread([each["one_s"] / each["joined_s"] for each in rounds]),
    }


def _spread(ratios: list[float]) -> dict[str, float]:
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def _show(console: Console, result: dict[str, Any], page: Path) -> None:
    one, many = result["runs"]
    speed = result["speed"]
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")  # a path is not cut
    rows = {
        "same weights": f"{'yes, bit for bit' if result['same_bits'] else 'NO'}: {many['weights_sha256'][:32]}...",
        "test accuracy": f"{many['accuracy']:.4f}, that of one worker {one['accuracy']:.4f}",
        "speed-up": f"{_words(speed['speedup'])} on {many['workers']} workers, step against step, in turns",
        "efficiency": f"{_words(speed['efficiency'])} of the same workers without any exchange",
        "cost of replicas": f"{_words(speed['replica_cost'])} the time of one joined batch on one worker",
        "naive port": f"{result['naive'][1]['accuracy']:.4f} when the batch grows and the rate stays; "
        "no time won when every worker reads everything",
        "page": f"{page} ({result['wall_s']:.0f} s in all)",
    }
    for name, text in rows.items():
        table.add_row(f"[dim]{name}[/dim]", text)
    console.print()
    console.print(table)


def _words(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"
