"""All random generators of this process, set from one number."""

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Set torch (CPU and this worker's GPU), numpy and random."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)
