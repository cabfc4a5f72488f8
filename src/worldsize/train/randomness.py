"""All random generators of this process, set from one number."""

import random
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Set torch (CPU and this worker's GPU), numpy and random."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)


def streams() -> Any:
    """Where all random generators of the CPU stand."""
    return torch.default_generator.get_state(), np.random.get_state(), random.getstate()


def go_on(streams: Any) -> None:
    """Have them go on from where they stood."""
    torch.default_generator.set_state(streams[0])
    np.random.set_state(streams[1])
    random.setstate(streams[2])
