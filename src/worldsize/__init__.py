"""Worldsize: change the world size, keep the model.

The names below are all that is public; each is loaded when it is first used, so that the command line starts fast.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "join": "worldsize.train.job",
    "Job": "worldsize.train.job",
    "scaled_rate": "worldsize.plan.rates",
    "same_steps": "worldsize.plan.rates",
    "growth": "worldsize.plan.rates",
    "schedule": "worldsize.plan.rates",
    "groups": "worldsize.train.optimizers",
    "noisy_mean": "worldsize.train.noise",
    "weights_sha256": "worldsize.plan.digest",
    "buffers_sha256": "worldsize.plan.digest",
    "WorldsizeError": "worldsize.errors",
    "Misuse": "worldsize.errors",
    "Failure": "worldsize.errors",
}
__all__ = ["Failure", "Job", "Misuse", "WorldsizeError", "__version__", "buffers_sha256", "join", "scaled_rate"]
__all__ += ["groups", "growth", "noisy_mean", "same_steps", "schedule", "weights_sha256"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'worldsize' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
