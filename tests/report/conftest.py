"""A demo's result and a run's folder, made by arithmetic so that they are the same each time."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def noise(i: int) -> float:
    """A number between -1 and 1 that looks like chance."""
    return math.modf(math.sin(i * 12.9898) * 43758.5453)[0]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def losses(steps: int) -> list[float]:
    return [0.36 + 1.94 * math.exp(-step / (steps / 6)) + 0.06 * noise(step) for step in range(steps)]


def demo_run(name: str, workers: int, epoch_s: float) -> dict[str, Any]:
    accuracies = [0.7812, 0.8353, 0.8561, 0.8712]
    return {
        "name": name,
        "workers": workers,
        "accuracy": accuracies[-1],
        "loss": 0.3621,
        "train_s": 4 * epoch_s,
        "examples_per_s": 10000 / epoch_s,
        "weights_sha256": sha256("weights"),
        "buffers_sha256": sha256("buffers"),
        "epochs": [
            {"epoch": i + 1, "time_s": (i + 1) * epoch_s, "accuracy": accuracy, "loss": 0.6 - 0.08 * i}
            for i, accuracy in enumerate(accuracies)
        ],
        "steps": [{"step": i + 1, "loss": loss} for i, loss in enumerate(losses(160))],
    }


def port(name: str, accuracies: list[float], read: int, share: float, note: str) -> dict[str, Any]:
    epochs = [{"epoch": i + 1, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]
    return {
        "name": name,
        "workers": 8,
        "accuracy": accuracies[-1],
        "examples_read": read,
        "useful_share": share,
        "note": note,
        "epochs": epochs,
    }


def demo_result() -> dict[str, Any]:
    rounds = [
        {"one_s": 0.0851 + 0.002 * noise(i), "many_s": 0.0462 + 0.001 * noise(i + 9)}
        | {"ceiling_s": 0.0441 + 0.001 * noise(i + 20), "joined_s": 0.0829 + 0.002 * noise(i + 30)}
        for i in range(7)
    ]
    return {
        "worldsize": "0.1.0",
        "started": "2026-11-18T21:00:00",
        "command": "worldsize demo",
        "machine": {
            "cpu": "AMD EPYC 7B13",
            "cores": 2,
            "torch": "2.13.0+cpu",
            "python": "3.11.7",
            "device": "cpu",
        },
        "experiment": {
            "model": "cnn",
            "parameters": 24410,
            "data": "fashion-10k",
            "source": "inside the package",
            "train_examples": 10000,
            "test_examples": 10000,
            "replicas": 8,
            "batch_per_replica": 32,
            "global_batch": 256,
            "epochs": 4,
            "learning_rate": 0.1,
            "rule": "linear",
            "optimizer": "sgd",
            "seed": 0,
        },
        "runs": [demo_run("one worker", 1, 3.55), demo_run("2 workers", 2, 1.93)],
        "speed": {
            "rounds": rounds,
            "speedup": {"median": 1.84, "low": 1.78, "high": 1.9},
            "efficiency": {"median": 0.954, "low": 0.93, "high": 0.98},
            "replica_cost": {"median": 1.03, "low": 1.01, "high": 1.05},
        },
        "same_bits": True,
        "naive": [
            port(
                "naive: every worker reads everything",
                [0.775, 0.831, 0.853, 0.869],
                320000,
                0.125,
                "Eight workers do the same work eight times; each epoch takes as long as on one.",
            ),
            port(
                "naive: shards, rate not adapted",
                [0.42, 0.661, 0.742, 0.791],
                40000,
                1.0,
                "The global batch is eight times as large, with an eighth of the steps at the old rate.",
            ),
            port(
                "worldsize, 8 workers' worth: rate adapted",
                [0.70, 0.801, 0.839, 0.861],
                40000,
                1.0,
                "The rate grows with the global batch, after a warm-up.",
            ),
        ],
    }


def write_lines(path: Path, records: list[dict[str, Any]], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def write_run(folder: Path, steps: int = 160, epochs: int = 4, resumed_at: int | None = None) -> Path:
    """The records of a run that finished; with `resumed_at`, one that was stopped a bit later and resumed there."""
    folder.mkdir(parents=True, exist_ok=True)
    per_epoch = steps // epochs
    every = losses(steps)

    def step_records(first: int, last: int) -> list[dict[str, Any]]:
        return [
            {
                "step": step,
                "epoch": (step - 1) // per_epoch + 1,
                "time_s": (step - first + 1) * 0.05,
                "loss": every[step - 1],
                "rate": 0.1 * min(1.0, step / 20) * 0.5 * (1 + math.cos(math.pi * step / steps)),
                "examples_per_s": 5100 + 260 * noise(step) - (2500 if step == first else 0),
            }
            for step in range(first, last + 1)
        ]

    def event_records(first: int, last: int) -> list[dict[str, Any]]:
        found = []
        for step in range(first, last + 1):
            time_s = (step - first + 1) * 0.05
            if step % per_epoch == 0:
                epoch = step // per_epoch
                measures = {"accuracy": 0.9 - 0.25 * math.exp(-epoch), "loss": 0.3 + 0.5 * math.exp(-epoch)}
                found.append({"time_s": time_s, "event": "evaluated", "epoch": epoch, "step": step} | measures)
                path = f"checkpoints/step-{step:06d}"
                found.append({"time_s": time_s + 0.01, "event": "saved", "step": step, "path": path})
        return found

    stop = steps if resumed_at is None else min(steps, resumed_at + 13)
    write_lines(folder / "steps.jsonl", step_records(1, stop))
    write_lines(folder / "events.jsonl", event_records(1, stop))
    if resumed_at is not None:
        write_lines(folder / "steps.jsonl", step_records(resumed_at + 1, steps), "a")
        again = [{"time_s": 0.01, "event": "resumed", "step": resumed_at, "workers": 3}]
        write_lines(folder / "events.jsonl", again + event_records(resumed_at + 1, steps), "a")
    write_lines(
        folder / "events.jsonl", [{"time_s": (steps - (resumed_at or 0)) * 0.05 + 0.1, "event": "finished"}], "a"
    )
    accuracy, loss = 0.9 - 0.25 * math.exp(-epochs), 0.3 + 0.5 * math.exp(-epochs)
    result = {
        "accuracy": accuracy,
        "loss": loss,
        "examples_per_s": 5042.7,
        "train_s": steps * 0.05,
        "weights_sha256": sha256("weights"),
        "buffers_sha256": sha256("buffers"),
        "workers": 2 if resumed_at is None else 3,
        "steps": steps,
        "epochs": epochs,
        "command": "worldsize train --workers 2",
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "run.json").write_text(json.dumps(run_record(steps, epochs)))
    return folder


def run_record(steps: int, epochs: int) -> dict[str, Any]:
    return {
        "format": 1,
        "started": "2026-11-18T21:00:00",
        "command": "worldsize train --model cnn --workers 2",
        "settings": {"model": "cnn", "data": "fashion-10k", "epochs": epochs, "workers": 2, "resume": False},
        "versions": {"worldsize": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
        "machine": {"cpu": "AMD EPYC 7B13", "cores": 2, "device": "cpu"},
        "model": {"name": "cnn", "parameters": 24410},
        "data": {
            "name": "fashion-10k",
            "source": "inside the package",
            "train_examples": 10000,
            "test_examples": 10000,
        },
        "plan": {
            "workers": 2,
            "replicas": 8,
            "batch_per_replica": 32,
            "global_batch": 256,
            "steps_per_epoch": steps // epochs,
            "steps": steps,
            "learning_rate": 0.1,
            "rule": "linear",
            "optimizer": "sgd",
            "device": "cpu",
            "backend": "gloo",
            "sync": "exact",
            "bytes_relative_to_ring": 1.0,
        },
    }


@pytest.fixture
def result() -> dict[str, Any]:
    return demo_result()


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    return lambda **settings: write_run(tmp_path / "run", **settings)
