"""How many workers this machine has room for."""

import os
from pathlib import Path

# Where Linux says how much of its cores' time a container may take; cgroup version 2, then 1.
QUOTAS = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))


def cores() -> float:
    """The CPU cores that this process may use: those it is bound to, or the time that its container is given."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return min(allowed, quota) if quota is not None else allowed


def places_for_workers(device: str | None = None) -> int:
    """One per GPU where there are GPUs (or `device` says so), else one per core; at least one."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.device_count()
    return max(1, int(cores()))


def _quota() -> float | None:
    newer, older = QUOTAS
    try:
        if newer.exists():
            quota, period = newer.read_text().split()
        else:
            quota, period = older.read_text(), older.with_name("cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # no cgroup, or "max"
        return None
