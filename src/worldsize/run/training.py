"""`worldsize train` as its parent sees it: check, say what will be done, start the workers, show how it goes."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from worldsize.errors import Failure, Misuse, WorldsizeError
from worldsize.parallel.place import Place, place_from
from worldsize.parallel.world import World, pick_backend, pick_device
from worldsize.plan.noise import in_words, sigma_for
from worldsize.plan.rates import GROWING, LONGER, REASONS
from worldsize.run import pool
from worldsize.run.failures import lost_peer
from worldsize.run.machine import places_for_workers
from worldsize.train import checkpoint, loop
from worldsize.train.loop import Plan
from worldsize.train.records import Records, machine
from worldsize.train.settings import Run


def new_folder(run: Run) -> Path:
    """A folder under ./runs that says what and when."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = f"{run.model}-{run.data.replace(':', '-')}-{stamp}"
    found = Path("runs") / name
    again = 2
    while found.exists():
        found = Path("runs") / f"{name}-{again}"
        again += 1
    return found


def start_training(
    run: Run, *, out: Path, resume: bool, stop_after: int | None, command: str, console: Console
) -> dict[str, Any] | None:
    """Train, with progress on the console; the result, which is also in the run's folder.

    Alone, this process starts the workers. Where torchrun or srun has started several, it is one of them, and only the
    first has a result to give.
    """
    place = place_from(os.environ)
    launched = place.size > 1
    if not launched:
        pool.warm_up()  # it loads torch while we do
    workers = _workers(run, place)
    device = pick_device(run.device, place.local if launched else workers - 1)
    backend = pick_backend(run.backend, device)
    plan = loop.make_plan(run, workers)
    if stop_after is not None and not 1 <= stop_after <= plan.steps:
        raise Misuse(f"--stop-after {stop_after} is no step of this run, which has {plan.steps}; use 1 to {plan.steps}")
    records = Records(out)
    if resume:
        _check_goes_on(records, stop_after)
    else:
        _check_folder(out)
    if launched:
        world = loop.enter_world(run)
        out = Path(world.gather(str(out))[0])  # a folder named by the clock is the first worker's
        if world.worker:
            _stay_in_step(world, loop.train_worker, run, str(out), stop_after, _say_nothing)
            return None
    facts = plan.facts(run, workers, device.type, backend)
    if not resume:
        records.begin(_about(run, facts, command))
    show_plan(console, facts, out, resume)
    started = time.perf_counter()
    with _Display(console, plan) as display:
        task = (loop.train_worker, run, str(out), stop_after)
        try:
            if launched:
                result = _stay_in_step(world, *task, lambda message: display.receive(0, message))
            else:
                result = pool.run_workers(*task, pool.tell, workers=workers, on_message=display.receive)[0]
        except BaseException as error:
            _note_failure(records, error, time.perf_counter() - started)
            raise
    result |= {"run": str(out), "wall_s": round(time.perf_counter() - started, 3)}
    if result["finished"]:
        records.event("finished", time_s=result["wall_s"])
        records.finish(result)
    else:
        records.event("stopped", time_s=result["wall_s"], step=result["steps_done"])
    return result


def _workers(run: Run, place: Place) -> int:
    if place.size == 1:
        return run.workers or min(places_for_workers(run.device), run.replicas)
    if run.workers not in (None, place.size):
        raise Misuse(
            f"--workers {run.workers} was asked for, but {place.size} were started around this one; leave --workers out"
        )
    return place.size


def _stay_in_step(world: World, function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call it as one of the workers of this world; what another worker's end does to this one is said in a line."""
    try:
        return function(*arguments)
    except RuntimeError as error:
        if lost_peer(type(error).__name__, str(error)):
            raise Failure(
                f"worker {world.worker} lost the connection to another, which ended first; see what that one wrote last"
            ) from error
        raise


def _say_nothing(message: Any) -> None:
    """Of all workers the first one tells how it goes."""


def show_plan(console: Console, facts: dict[str, Any], out: Path, resume: bool) -> None:
    """What will be done, before it is done."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")  # a path is not cut
    rows = {
        "model": f"{facts['model']}, {facts['parameters']:,} parameters",
        "data": f"{facts['data']}, {facts['train_examples']:,} to train on, from {facts['source']}",
        "workers": f"{facts['workers']} ({facts['device']}, {facts['backend']})",
        "replicas": f"{facts['replicas']} of {facts['batch_per_replica']}: global batch {facts['global_batch']:,}",
        "steps": facts["course"],
        "learning rate": f"{facts['learning_rate']:g} ({facts['rule']}), {facts['optimizer']}, {facts['schedule']}",
        "gradient noise": _noise_in_words(facts),
        "evaluation": f"averaged weights, decay {facts['ema']:g}" if facts["ema"] else "",
        "sync": f"{facts['sync']}, {facts['bytes_relative_to_ring']:.2f} x the bytes of a ring",
        "run": f"{out}{' (resumed)' if resume else ''}",
    }
    rule = facts["rule"].partition(":")[0]
    if rule in REASONS and facts["global_batch"] != facts["reference_batch"]:
        rows["learning rate"] += f"\n{rule} rule: {REASONS[rule]}"
    if facts["epochs"] != facts["epochs_asked"]:
        rows["steps"] += (
            f"\nas many as {facts['epochs_asked']} epochs at a global batch of {facts['reference_batch']:,}: {LONGER}"
        )
    if facts["global_batch_at_end"] != facts["global_batch"]:
        rows["steps"] += f"\nthe batch grows: {GROWING}"
    for name, text in rows.items():
        if text:
            table.add_row(f"[dim]{name}[/dim]", text)
    console.print(table)


def _noise_in_words(facts: dict[str, Any]) -> str:
    if not facts["gradient_noise"]:
        return ""
    text = f"each example's loss times 1 + {facts['gradient_noise']:g} z, z from N(0, 1)"
    if facts["global_batch"] <= facts["reference_batch"]:
        return text
    sigma = sigma_for(facts["global_batch"], facts["reference_batch"])
    return f"{text}; {sigma:.3g} gives the gradient noise of a global batch of {facts['reference_batch']:,}"


def show_result(console: Console, result: dict[str, Any]) -> None:
    """What came of it, in a few lines."""
    if not result["finished"]:
        console.print(
            f"stopped after step {result['steps_done']} of {result['steps']}; "
            f"go on with: worldsize train --resume {result['run']}"
        )
    if "loss" in result:
        averaged = ", of averaged weights" if "plain_loss" in result else ""
        console.print(f"{_score(result)}test loss {result['loss']:.4f}{averaged}")
    if "noise_scale" in result:
        console.print(f"noise scale {in_words(result['noise_scale'], result['global_batch_at_end'])}", soft_wrap=True)
    console.print(f"{result['examples_per_s']:,.0f} examples/s on {result['workers']} workers")
    for name in ("weights_sha256", "ema_sha256"):
        if name in result:
            console.print(f"{name} {result[name]}", soft_wrap=True)


def _score(measures: dict[str, Any]) -> str:
    if "accuracy" not in measures:
        return ""
    plain = f" (plain {measures['plain_accuracy']:.4f})" if "plain_accuracy" in measures else ""
    return f"test accuracy {measures['accuracy']:.4f}{plain}, "


def _check_folder(out: Path) -> None:
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise Misuse(f"{out} cannot be read: {error.strerror}; name another folder") from None
    if taken:
        raise Misuse(f"--out {out} is there already; go on with --resume {out}, or name another folder")


def _check_goes_on(records: Records, stop_after: int | None) -> None:
    """Refuse here, before anything is shown, what every worker would refuse: checkpoints of which none is whole."""
    found = checkpoint.newest(records.checkpoints)
    if found is None or stop_after is None:
        return
    done = checkpoint.read(found).position.steps_done
    if stop_after <= done:
        raise Misuse(f"--stop-after {stop_after}: this run has done {done} steps already; name a later step")


def _about(run: Run, facts: dict[str, Any], command: str) -> dict[str, Any]:
    about = machine()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "settings": run.as_json(),
        "versions": {name: about.pop(name) for name in ("worldsize", "torch", "python")},
        "machine": about,
        "model": {"name": facts["model"], "parameters": facts["parameters"]},
        "data": {name: facts[key] for name, key in _DATA.items()},
        "plan": {name: value for name, value in facts.items() if name not in _DATA.values()},
    }


_DATA = {
    "name": "data",
    "source": "source",
    "train_examples": "train_examples",
    "test_examples": "test_examples",
}


def _note_failure(records: Records, error: BaseException, after_s: float) -> None:
    if isinstance(error, WorldsizeError):
        records.event("failed", time_s=round(after_s, 3), error=str(error))
    elif isinstance(error, KeyboardInterrupt):
        records.event("interrupted", time_s=round(after_s, 3))


class _Display:
    """One live line on a terminal; elsewhere one line per epoch."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self.console, self.plan = console, plan
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]} examples/s  loss {task.fields[loss]}  accuracy {task.fields[accuracy]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(
            "train", total=plan.steps, epoch=1, epochs=plan.epochs, speed="-", loss="-", accuracy="-"
        )

    def __enter__(self) -> "_Display":
        self.progress.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self.progress.__exit__(*failure)

    def receive(self, worker: int, message: dict[str, Any]) -> None:
        if message["kind"] == "step":
            epoch = self.plan.epoch_at(message["step"] - 1) + 1
            known: dict[str, Any] = {"loss": f"{message['loss']:.4f}"} if "loss" in message else {}
            speed = f"{message['examples_per_s']:,.0f}"
            self.progress.update(self.task, completed=message["step"], epoch=epoch, speed=speed, **known)
            self.speed = speed
        elif message["kind"] == "evaluated":
            score = f"{message['accuracy']:.4f}" if "accuracy" in message else "-"
            self.progress.update(self.task, accuracy=score)
            words = _score(message)
            if "noise_scale" in message:
                words += f"noise scale {message['noise_scale']:,.0f} examples, "
            epochs = f"epoch {message['epoch']}/{self.plan.epochs}"
            self.console.print(
                f"{epochs}  {words}test loss {message['loss']:.4f}, {self.speed} examples/s", soft_wrap=True
            )
