"""What a job was asked for, and whether it can be: checked before anything is started."""

import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from worldsize.errors import DataError, Misuse
from worldsize.plan import tree
from worldsize.plan.shards import Epoch

Sync = Literal["exact", "ddp"]


MOST_REPLICAS = 2**20  # each has a place in every step's plan


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job; all but where and how often to save, and the buckets, decide the weights."""

    replicas: int
    batch_per_replica: int
    seed: int = 0
    sync: Sync = "exact"
    clip_norm: float | None = None
    keep_short: bool = True
    save_to: Path | None = None
    save_every: int | None = None
    bucket_mb: float = 25.0
    ema: float | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("replicas", 1, MOST_REPLICAS),
            ("batch_per_replica", 1, 2**31),
            ("seed", 0, 2**62),
            ("save_every", 1, 2**62),
        ):
            value = getattr(self, name)
            if value is None and name == "save_every":
                continue
            if not hasattr(value, "__index__") or isinstance(value, bool) or not least <= value <= most:
                raise Misuse(f"{name} is {value!r}, but must be a whole number from {least} to {most:,}")
            object.__setattr__(self, name, operator.index(value))  # numpy's whole numbers are none to JSON
        if self.sync not in ("exact", "ddp"):
            raise Misuse(f"unknown sync {self.sync!r}; there are 'exact' and 'ddp'")
        if not _above_zero(self.bucket_mb):
            raise Misuse(f"bucket_mb is {self.bucket_mb}, but a bucket needs a size above 0; the default is 25")
        if self.clip_norm is not None and not _above_zero(self.clip_norm):
            raise Misuse(f"clip_norm is {self.clip_norm}, but a norm to clip at must be above 0")
        if self.ema is not None and not (_above_zero(self.ema) and self.ema < 1):
            raise Misuse(f"ema is {self.ema}, but a decay must be above 0 and below 1, such as 0.999")
        if self.save_every is not None and self.save_to is None:
            raise Misuse(f"save_every={self.save_every} needs a folder in save_to")

    def check_world(self, size: int) -> None:
        """Does this experiment fit so many workers?"""
        if size > self.replicas:
            raise Misuse(
                f"{size} workers cannot share {self.replicas} replicas, since each computes at least one; "
                f"use at most {self.replicas} workers, or at least {size} replicas"
            )

    def check_shards(self, examples: int, *, batch_norm: bool, workers: int, together: bool = False) -> Epoch:
        """The plan of an epoch over so many examples, if it can be trained on.

        `batch_norm` says that a replica needs two examples, `together` that a forward pass needs all replicas at once.
        """
        epoch = Epoch(
            examples=examples,
            replicas=self.replicas,
            batch_per_replica=self.batch_per_replica,
            keep_short=self.keep_short,
        )
        if not epoch.steps:
            raise DataError(
                f"{examples} examples make no whole global batch of {epoch.global_batch}, and short ones are dropped; "
                "keep the short batch, or use fewer replicas or examples per replica"
            )
        if batch_norm and epoch.smallest_shard() < 2:
            raise Misuse(
                f"a replica would read {epoch.smallest_shard()} example at the last of {epoch.steps} steps "
                f"({examples} examples, {self.replicas} replicas of {self.batch_per_replica}), and batch norm needs at "
                "least 2; drop the short batch (keep_short=False, --drop-short), or change replicas or batch per "
                "replica"
            )
        door = "job.lockstep" if self.sync == "exact" else "sync 'exact'"
        if together and workers != self.replicas:
            raise Misuse(
                f"batch norm across workers needs all {self.replicas} replicas inside one forward pass, but {workers} "
                f"workers compute some one after another; use {door}, {self.replicas} workers, or ghost batch norm"
            )
        if together and epoch.active(epoch.steps - 1) < self.replicas:
            raise Misuse(
                f"the last step has examples for {epoch.active(epoch.steps - 1)} of {self.replicas} replicas, and "
                f"batch norm across workers would wait for the others; use {door}, or drop the short batch "
                "(keep_short=False, --drop-short)"
            )
        if self.sync == "ddp" and epoch.active(epoch.steps - 1) < self.replicas:
            last = epoch.active(epoch.steps - 1)
            if tree.block(self.replicas, workers, workers - 1).start >= last:
                raise Misuse(
                    f"the last step has examples for {last} of {self.replicas} replicas, which leaves a worker without "
                    "any, and stock DDP would wait for it; drop the short batch or use sync 'exact'"
                )
        return epoch

    def check_lockstep(self, workers: int, device: str) -> None:
        """Can so many workers, on such devices, run their replicas in lockstep?"""
        why = ""
        if self.sync == "ddp":
            why = "sync 'ddp' takes their gradients one by one; use sync 'exact', or job.batches"
        elif workers < self.replicas and device == "cuda":
            why = f"on a GPU all backward passes share one thread; use device 'cpu', or {self.replicas} workers"
        if why:
            raise Misuse(f"{self.replicas} replicas on {workers} workers cannot run in lockstep, since {why}")

    def facts(self) -> dict[str, Any]:
        """What makes the experiment: the same on all workers, and in every part of one run."""
        names = ("replicas", "batch_per_replica", "seed", "sync", "clip_norm", "keep_short", "ema")
        return {name: getattr(self, name) for name in names}


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")
