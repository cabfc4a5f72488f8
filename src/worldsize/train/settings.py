"""What a run of `worldsize train` was asked for: one field per flag, checked as a whole before anything starts."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from worldsize.errors import Misuse, ResumeError


def option(default: Any, text: str, **details: Any) -> Any:
    """A field that is also a flag: its default, its help, and what argparse needs to know besides."""
    return field(default=default, metadata={"help": text, **details})


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run. Everything but the number of workers belongs to the experiment and decides the weights."""

    model: str = option("cnn", "which model (--list shows all)")
    data: str = option("fashion-10k", "which data set (--list shows all)")
    epochs: int | None = option(None, "how often to go through the data; the model's recipe unless set", type=int)
    same_steps: bool = option(
        False, "as many more epochs as it takes to do the steps of the reference batch", action="store_true"
    )
    workers: int | None = option(
        None, "processes, each on a device or core of its own; all there are unless set", type=int
    )
    replicas: int = option(8, "shares of a step; with the batch per replica they make the experiment", type=int)
    batch_per_replica: int = option(32, "examples each replica reads in a step", type=int)
    sync: str = option("exact", "how gradients are made equal", choices=["exact", "ddp"])
    optimizer: str | None = option(
        None,
        "sgd (momentum 0.9), adamw, or for large batches lars, lamb, novograd; the model's recipe unless set",
        choices=["sgd", "adamw", "lars", "lamb", "novograd"],
    )
    lr: float | None = option(None, "learning rate at the reference batch; the model's recipe unless set", type=float)
    reference_batch: int | None = option(
        None, "global batch for which the rate was chosen; the recipe's unless set", type=int
    )
    lr_rule: str | None = option(
        None,
        "how the rate follows the global batch: linear (sgd and lars unless set), sqrt (the others unless set), none",
        choices=["linear", "sqrt", "none"],
    )
    schedule: str = option(
        "cosine",
        "the rate after the warm-up; grow: where step divides the rate by ten, the batch grows tenfold instead",
        choices=["constant", "cosine", "step", "grow"],
    )
    grow_to: int | None = option(
        None, "largest global batch of --schedule grow; a tenth of the examples unless set", type=int
    )
    warmup: float | None = option(
        None, "epochs over which the rate rises, step by step; the recipe's unless set", type=float, metavar="EPOCHS"
    )
    warmup_from: float = option(0.0, "share of the rate from which the warm-up rises", type=float)
    weight_decay: float = option(0.0, "decay of the weights; norms and biases are not decayed", type=float)
    clip_norm: float | None = option(None, "clip gradients at this global norm", type=float)
    gradient_noise: float | None = option(
        None, "weigh each example's loss by 1 + SIGMA z, z from N(0, 1)", type=float, metavar="SIGMA"
    )
    ema: float | None = option(
        None, "evaluate a moving average of the weights with this decay", type=float, metavar="DECAY"
    )
    norm: str = option(
        "batch",
        "batch norm over a replica's batch, over all workers together (sync), or over parts of a batch (ghost)",
        choices=["batch", "sync", "ghost"],
    )
    ghost_batch: int = option(16, "examples in a part, for --norm ghost", type=int)
    dropout: float = option(0.0, "share of features left out in training", type=float)
    drop_short: bool = option(False, "leave out the last batch of an epoch when it is short", action="store_true")
    precision: str = option("fp32", "compute in float32, or under autocast", choices=["fp32", "bf16", "fp16"])
    compile: bool = option(False, "compile the model (its bits differ from an uncompiled one's)", action="store_true")
    seed: int = option(0, "of the weights, the order of examples, dropout, augmentation", type=int)
    device: str | None = option(None, "cpu or cuda; cuda where there is one unless set", choices=["cpu", "cuda"])
    backend: str | None = option(None, "gloo or nccl; by the device unless set", choices=["gloo", "nccl"])
    bucket_mb: float = option(25.0, "gradients sent together, in MiB; changes no bit of exact", type=float)
    data_dir: str | None = option(None, "folder with the files of the full Fashion-MNIST", metavar="DIR")
    download: bool = option(False, "fetch the full Fashion-MNIST if it is nowhere here", action="store_true")
    save_every: int | None = option(None, "write a checkpoint every so many steps, besides every epoch", type=int)
    evaluate_every: int = option(1, "test after every so many epochs, and at the end", type=int, metavar="EPOCHS")
    noise_scale: bool = option(
        False, "measure the gradient noise scale, every tenth step; changes no bit", action="store_true"
    )
    limit_s: float = option(600.0, "seconds after which a wait of one worker for the others is given up", type=float)

    def __post_init__(self) -> None:
        for name in (
            "epochs",
            "workers",
            "replicas",
            "batch_per_replica",
            "reference_batch",
            "save_every",
            "ghost_batch",
            "grow_to",
            "evaluate_every",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Misuse(f"--{name.replace('_', '-')} {value} cannot be; it must be a whole number of at least 1")
        for name in ("lr", "clip_norm", "limit_s", "bucket_mb"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Misuse(f"--{name.replace('_', '-')} {value} cannot be; it must be above 0")
        for name in ("warmup", "warmup_from", "weight_decay", "gradient_noise"):
            if (getattr(self, name) or 0) < 0:
                raise Misuse(f"--{name.replace('_', '-')} {getattr(self, name)} cannot be; it must be 0 or more")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise Misuse(f"--{each.name.replace('_', '-')} {value} cannot be; it must be a finite number")
        for name in ("sync", "optimizer", "lr_rule", "schedule", "precision", "device", "backend", "norm"):
            self._check_choice(name)
        if self.ema is not None and not 0 < self.ema < 1:
            raise Misuse(f"--ema {self.ema} cannot be; a decay is above 0 and below 1, such as 0.999")
        if self.grow_to is not None and self.schedule != "grow":
            raise Misuse(f"--grow-to {self.grow_to} has nothing to grow under --schedule {self.schedule}; use grow")
        if self.grow_to is not None and self.grow_to < self.global_batch:
            raise Misuse(
                f"--grow-to {self.grow_to} is less than the global batch of {self.global_batch} that the run begins "
                "with; name a larger one"
            )
        if self.same_steps and self.schedule == "grow":
            raise Misuse("--same-steps keeps the number of steps, which --schedule grow is to lower; use one of them")
        if self.noise_scale and (self.sync != "exact" or self.replicas < 2):
            raise Misuse(
                f"--noise-scale compares the gradients of single replicas, which {self.replicas} under sync "
                f"{self.sync} do not give; use at least 2 with --sync exact"
            )

    def _check_choice(self, name: str) -> None:
        choices = next(each.metadata["choices"] for each in fields(self) if each.name == name)
        value = getattr(self, name)
        if value is not None and value not in choices:
            raise Misuse(f"--{name.replace('_', '-')} {value} is unknown; there are {', '.join(choices)}")

    @property
    def global_batch(self) -> int:
        return self.replicas * self.batch_per_replica

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


MAY_CHANGE = (
    "workers",
    "device",
    "backend",
    "bucket_mb",
    "limit_s",
    "data_dir",
    "download",
    "save_every",
    "evaluate_every",
    "noise_scale",
)


def from_record(kept: dict[str, Any], given: dict[str, Any], folder: Path) -> Run:
    """The settings of a run that is resumed: what was kept, and of what is given now only what may change."""
    unknown = [name for name in kept if name not in {each.name for each in fields(Run)}]
    if unknown:
        raise ResumeError(
            f"{folder} was trained with settings that this worldsize does not know ({', '.join(unknown)}); "
            "resume it with the version that its run.json names"
        )
    for name, value in given.items():
        if name not in MAY_CHANGE and kept.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            raise ResumeError(
                f"{folder} was trained with {flag} {kept.get(name)}, now it is {value}; leave {flag} out to resume, "
                "or start a new run with --out"
            )
    try:
        return Run(**(kept | given))
    except TypeError as error:
        raise ResumeError(f"{folder} has settings of another kind ({error}); its run.json was changed") from None
