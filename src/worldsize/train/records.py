"""What a run leaves on disk: one folder, one format, read by reports, comparisons and the workshop.

run.json      what was asked for, with which versions, on what machine; written once
steps.jsonl   a line for every few steps: step, epoch, time_s, loss, rate, global_batch, examples_per_s
events.jsonl  a line for every evaluation, checkpoint, resumption, end
result.json   what came of it; missing while the run goes on, or when it failed
checkpoints/  step-NNNNNNNN, see checkpoint.py
"""

import json
import math
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import worldsize
from worldsize.errors import Misuse

FORMAT = 1
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Records:
    """The folder of one run, written by one process."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / CHECKPOINTS

    def begin(self, facts: dict[str, Any]) -> None:
        """Make the folder and write what the run is."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _write(self.folder / "run.json", {"format": FORMAT, **facts})
        except OSError as error:
            raise Misuse(f"{self.folder} cannot be written: {error.strerror}; name another folder") from None

    def step(self, **facts: Any) -> None:
        self._append("steps.jsonl", facts)

    def event(self, name: str, **facts: Any) -> None:
        self._append("events.jsonl", {"event": name, **facts})

    def finish(self, result: dict[str, Any]) -> None:
        _write(self.folder / "result.json", result)

    def read(self) -> dict[str, Any]:
        """What run.json says."""
        try:
            found = json.loads((self.folder / "run.json").read_text())
        except (OSError, ValueError):
            raise Misuse(
                f"{self.folder} holds no run that can be read; name a folder that `worldsize train` wrote"
            ) from None
        if not isinstance(found, dict) or (
            found.get("format") == FORMAT and not isinstance(found.get("settings"), dict)
        ):
            raise Misuse(f"{self.folder}/run.json is not what `worldsize train` writes; name another run")
        if found.get("format") != FORMAT:
            raise Misuse(f"{self.folder} has format {found.get('format')}, this worldsize reads {FORMAT}")
        return found

    def _append(self, name: str, facts: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as lines:
            lines.write(json.dumps(_plain(facts)) + "\n")


def machine() -> dict[str, Any]:
    """The machine and the versions, as every record and benchmark states them."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "worldsize": worldsize.__version__,
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def _cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _write(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(_plain(content), indent=1) + "\n")
    partial.rename(path)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN or infinity: they become text."""
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in facts.items()}
