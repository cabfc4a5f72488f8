"""Trials for the bench's tests."""

import os
from pathlib import Path
from typing import Any


def count(*, folder: str, seed: int, rate: float = 1.0) -> dict[str, Any]:
    """Leave a trace of having been run."""
    with (Path(folder) / "runs").open("a") as lines:
        lines.write(f"{seed} {rate} {os.getpid()}\n")
    return {"seed": seed, "miss": abs(rate - 0.2) + seed * 1e-9}
