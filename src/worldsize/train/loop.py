"""Our own training loop, on the same job that everybody else's loop uses. `train_worker` runs in every worker."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import LambdaLR

from worldsize.errors import Misuse, NotFinite
from worldsize.parallel import ground, norm
from worldsize.parallel.world import World, join_world
from worldsize.plan import rates, tree
from worldsize.plan.rates import Stage
from worldsize.plan.shards import Epoch
from worldsize.train import data, models, optimizers
from worldsize.train.checkpoint import newest
from worldsize.train.data import Sets
from worldsize.train.experiment import Settings
from worldsize.train.job import Job
from worldsize.train.meter import NoiseMeter
from worldsize.train.records import Records
from worldsize.train.settings import Run

MOST_RECORDS = 200  # step records of a run, so that long runs do not gather losses at every step
TELL_EVERY_S = 0.1

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, worked out before any worker starts."""

    sets: Sets
    stages: list[tuple[Epoch, Stage]]  # what an epoch is like, and for how many epochs
    asked: int  # epochs, before --same-steps
    optimizer: str
    rate: float  # at the reference batch
    reference_batch: int
    rule: str
    learning_rate: float
    warmup_steps: int
    parameters: int
    lockstep: bool  # are replicas of one worker to be inside one forward pass

    @property
    def epochs(self) -> int:
        return sum(stage.epochs for _, stage in self.stages)

    @property
    def steps(self) -> int:
        return sum(epoch.steps * stage.epochs for epoch, stage in self.stages)

    @property
    def epoch(self) -> Epoch:
        """What the first epoch is like; all others too, unless the batch grows."""
        return self.stages[0][0]

    def of_epoch(self, place: int) -> tuple[Epoch, Stage]:
        """What this epoch is like, from 0."""
        for epoch, stage in self.stages:
            if place < stage.epochs:
                return epoch, stage
            place -= stage.epochs
        return self.stages[-1]

    def epoch_at(self, step: int) -> int:
        """The epoch, from 0, in which this step lies, from 0."""
        before = 0
        for epoch, stage in self.stages:
            if step < epoch.steps * stage.epochs:
                return before + step // epoch.steps
            step, before = step - epoch.steps * stage.epochs, before + stage.epochs
        return self.epochs - 1

    def course(self) -> str:
        """Epochs and steps in words."""
        parts = []
        for epoch, stage in self.stages:
            text = f"{stage.epochs} epoch{'s' * (stage.epochs > 1)} of {epoch.steps:,} steps"
            if len(self.stages) > 1:
                text += f" of {epoch.global_batch:,}"
            parts.append(text + (f" at {stage.rate:.3g} x the rate" if stage.rate < 1 else ""))
        return ", then ".join(parts)

    def facts(self, run: Run, world_size: int, device: str, backend: str) -> dict[str, Any]:
        """The plan for people and records."""
        return {
            "workers": world_size,
            "replicas": run.replicas,
            "batch_per_replica": run.batch_per_replica,
            "global_batch": run.global_batch,
            "global_batch_at_end": self.stages[-1][0].global_batch,
            "steps_per_epoch": self.epoch.steps,
            "epochs": self.epochs,
            "epochs_asked": self.asked,
            "steps": self.steps,
            "course": self.course(),
            "learning_rate": self.learning_rate,
            "rule": self.rule_in_words(run),
            "reference_batch": self.reference_batch,
            "schedule": f"{run.schedule}, {self.warmup_steps} steps of warm-up",
            "gradient_noise": run.gradient_noise,
            "ema": run.ema,
            "optimizer": self.optimizer,
            "model": run.model,
            "parameters": self.parameters,
            "data": self.sets.name,
            "source": self.sets.source,
            "train_examples": len(self.sets.train),
            "test_examples": len(self.sets.test),
            "device": device,
            "backend": backend if world_size > 1 else "none",
            "sync": run.sync,
            "bytes_relative_to_ring": tree.bytes_relative_to_ring(run.replicas, world_size),
        }

    def rule_in_words(self, run: Run) -> str:
        if self.rule == "none" or run.global_batch == self.reference_batch:
            return f"{self.rule}: the rate as it is"
        ratio = f"{run.global_batch} / {self.reference_batch}"
        return f"{self.rule}: {self.rate:g} x {ratio if self.rule == 'linear' else f'sqrt({ratio})'}"


def make_plan(run: Run, workers: int) -> Plan:
    """Work a run out in full, and refuse here whatever cannot be."""
    key = models.family(run.model)
    recipe = models.RECIPES[key]
    job_settings(run, None).check_world(workers)
    sets = data.load(
        run.data, data_dir=Path(run.data_dir) if run.data_dir else None, download=run.download, seed=run.seed
    )
    with torch.device("meta"):
        model = _build(run, sets)
    asked = run.epochs or recipe.epochs
    reference_batch = run.reference_batch or recipe.reference_batch
    stages, lockstep = [], False
    for stage in _stages(run, asked, reference_batch, len(sets.train)):
        epoch, together = _epoch(run, stage, model, len(sets.train), workers)
        stages.append((epoch, stage))
        lockstep = lockstep or together
    optimizer = run.optimizer or recipe.optimizer
    same_kind = optimizer == recipe.optimizer
    rate = run.lr or (recipe.rate if same_kind else optimizers.KINDS[optimizer].rate)
    rule: Any = run.lr_rule or optimizers.KINDS[optimizer].rule
    plan = Plan(
        sets=sets,
        stages=stages,
        asked=asked,
        optimizer=optimizer,
        rate=rate,
        reference_batch=reference_batch,
        rule=rule,
        learning_rate=rates.scaled_rate(rate, rule, run.global_batch, reference_batch),
        warmup_steps=round((recipe.warmup_epochs if run.warmup is None else run.warmup) * stages[0][0].steps),
        parameters=models.parameters_of(model),
        lockstep=lockstep,
    )
    _factor(run, plan)  # refuses a warm-up that does not fit
    return plan


def _stages(run: Run, epochs: int, reference_batch: int, examples: int) -> list[Stage]:
    """How the epochs follow one another, whose number may grow with --same-steps, their batch with --schedule grow."""
    if run.same_steps:
        epochs = rates.same_steps(
            epochs,
            examples=examples,
            global_batch=run.global_batch,
            reference_batch=reference_batch,
            keep_short=not run.drop_short,
        )
    if run.schedule != "grow":
        return [Stage(epochs, 1, 1.0)]
    if run.grow_to is not None and run.grow_to > examples:
        raise Misuse(f"--grow-to {run.grow_to} is more than the {examples:,} examples; use at most those")
    most = max(1, (run.grow_to or examples // 10) // run.global_batch)
    return rates.stages(epochs, most=most)


def _epoch(run: Run, stage: Stage, model: nn.Module, examples: int, workers: int) -> tuple[Epoch, bool]:
    """An epoch of this stage, and whether its replicas have to run in lockstep."""
    settings = replace(job_settings(run, None), batch_per_replica=run.batch_per_replica * stage.batch)
    together = norm.crosses_workers(model)
    epoch = settings.check_shards(
        examples,
        batch_norm=models.has_batch_norm(model),
        workers=workers,
        together=together and run.sync == "ddp",
    )
    lockstep = together and min(workers, epoch.active(epoch.steps - 1)) < run.replicas and run.sync == "exact"
    if lockstep:
        device = run.device or ("cuda" if torch.cuda.is_available() else "cpu")
        settings.check_lockstep(workers, device)
    return epoch, lockstep


def job_settings(run: Run, save_to: Path | None) -> Settings:
    return Settings(
        replicas=run.replicas,
        batch_per_replica=run.batch_per_replica,
        seed=run.seed,
        sync=run.sync,  # type: ignore[arg-type]  # Settings checks it
        clip_norm=run.clip_norm,
        keep_short=not run.drop_short,
        save_to=save_to,
        save_every=run.save_every if save_to is not None else None,
        bucket_mb=run.bucket_mb,
        ema=run.ema,
    )


def enter_world(run: Run) -> World:
    """Join the world of this run; every worker must call this."""
    ground.before_joining(exact=run.sync == "exact")
    return join_world(device=run.device, backend=run.backend, limit_s=run.limit_s)


def train_worker(run: Run, folder: str | None, stop_after: int | None, tell: Tell) -> dict[str, Any]:
    """Train in this worker, together with all others of its world, and give the result."""
    world = enter_world(run)
    plan = make_plan(run, world.size)
    records = Records(Path(folder)) if folder is not None else None
    work = _Work(run, plan, world, records, stop_after, tell)
    try:
        work.train()
    except _Stopped:
        pass
    except BaseException:
        if world.size == 1:  # several would wait for each other; their processes end
            work.job.close()
        raise
    result = work.result()
    work.job.close()
    return result


class _Stopped(Exception):
    """The step was reached at which this sitting was to end."""


class _Work:
    """One worker's part of a run: the job, the clock, and what it reports."""

    def __init__(
        self, run: Run, plan: Plan, world: World, records: Records | None, stop_after: int | None, tell: Tell
    ) -> None:
        self.run, self.plan, self.world, self.stop_after, self.tell = run, plan, world, stop_after, tell
        self.records = records if world.worker == 0 else None
        if world.device.type == "cpu":
            torch.set_num_threads(1)  # before the weights are drawn
        torch.manual_seed(run.seed)
        self.model = _build(run, plan.sets).to(world.device)
        self.optimizer = optimizers.make(plan.optimizer, self.model, plan.learning_rate, run.weight_decay)
        callable_model = torch.compile(self.model, dynamic=False) if run.compile else self.model
        saves = records.checkpoints if records is not None else None
        scaler = torch.amp.GradScaler(world.device.type) if run.precision == "fp16" else None
        self.factor = _factor(run, plan)
        scheduler = LambdaLR(self.optimizer, self.factor)
        settings = job_settings(run, saves)
        self.job = Job(world, settings, self.model, self.optimizer, scheduler, scaler, after_step=self.after_step)
        self.meter = (
            NoiseMeter(self.job, every=min(10, *(epoch.steps for epoch, _ in plan.stages))) if run.noise_scale else None
        )
        self.loss = models.loss_of(plan.sets, callable_model, run.gradient_noise)
        self.measures = models.measures_of(plan.sets, self.model)
        self.last: dict[str, Any] = {}
        self.every = -(-plan.steps // MOST_RECORDS)
        self.started, self.told = time.perf_counter(), 0.0
        self.train_s, self.trained, self.since, self.recorded_at = 0.0, 0, time.perf_counter(), (0.0, 0)
        if saves is not None and newest(saves) is not None:
            self.job.resume(saves)
            self.event("resumed", step=self.job.position.steps_done, workers=world.size)

    def train(self) -> None:
        train_set = self.plan.sets.train.to(self.world.device)
        test_set = self.plan.sets.test.to(self.world.device)
        count = models.count_of(self.plan.sets)
        for epoch in self.job.epochs(self.plan.epochs):
            self.since = time.perf_counter()
            batch = self.plan.of_epoch(epoch)[0].batch_per_replica
            if self.plan.lockstep:
                self.job.lockstep(self.loss_of, train_set, count=count, batch_per_replica=batch)
            else:
                for x, y in self.job.batches(train_set, count=count, batch_per_replica=batch):
                    self.job.backward(self.loss_of(x, y))
            if (epoch + 1) % self.run.evaluate_every and epoch + 1 < self.plan.epochs:
                continue
            self.last = self.evaluate(train_set, test_set) | self.noise()
            self.event("evaluated", epoch=epoch + 1, step=self.job.position.steps_done, **self.last)
            if self.world.worker == 0:
                self.tell({"kind": "evaluated", "epoch": epoch + 1, "time_s": self.elapsed(), **self.last})
        if not self.last:  # resumed when all was done
            self.last = self.evaluate(train_set, test_set)
        if not math.isfinite(self.last["loss"]):
            raise NotFinite(f"the test loss is {self.last['loss']} at the end; a smaller learning rate may help")

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        with self.autocast():
            return self.loss(x, y)

    def evaluate(self, train_set: data.InMemory, test_set: data.InMemory) -> dict[str, float]:
        """The measures, of the averaged weights where there are any, and then of the plain ones too."""
        plain = self.job.evaluate(self.measures, test_set)
        if self.job.ema is None:
            return plain
        with self.job.ema.applied():
            averaged = self.job.evaluate(self.measures, test_set, norms_from=train_set)
        return averaged | {f"plain_{name}": value for name, value in plain.items()}

    def noise(self) -> dict[str, float]:
        """The noise scale of this epoch and its interval, where it is measured."""
        if not self.meter:
            return {}
        found = self.meter.result()
        return {"noise_scale": found.scale, "noise_scale_low": found.low, "noise_scale_high": found.high}

    def autocast(self) -> AbstractContextManager:
        if self.run.precision == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.run.precision == "bf16" else torch.float16
        return torch.autocast(self.world.device.type, dtype)

    def after_step(self, job: Job) -> None:
        """On every worker, after every step: keep time, record, show, stop where asked."""
        now = time.perf_counter()
        self.train_s += now - self.since
        self.since = now
        done = job.position.steps_done
        self.trained += self.plan.of_epoch(job.position.epoch)[0].size(job.position.step - 1)
        if done % self.every == 0 or done == self.plan.steps:
            self.record(done, job.mean_loss())
        elif self.world.worker == 0 and now - self.told > TELL_EVERY_S:
            self.show(done)
        if done == self.stop_after:
            if job.settings.save_to is not None:
                job.save(job.settings.save_to)
            raise _Stopped
        self.since = time.perf_counter()

    def record(self, done: int, loss: float) -> None:
        before_s, before = self.recorded_at
        speed = (self.trained - before) / max(self.train_s - before_s, 1e-9)
        self.recorded_at = (self.train_s, self.trained)
        if self.records is not None:
            rate = self.plan.learning_rate * self.factor(done - 1)  # of this step; the scheduler has gone on
            epoch = self.job.position.epoch
            self.records.step(
                step=done,
                epoch=epoch + 1,
                time_s=self.elapsed(),
                loss=loss,
                rate=rate,
                global_batch=self.plan.of_epoch(epoch)[0].global_batch,
                examples_per_s=round(speed, 1),
            )
        self.show(done, loss=loss)

    def show(self, done: int, **more: float) -> None:
        if self.world.worker == 0:
            self.told = time.perf_counter()
            speed = self.trained / max(self.train_s, 1e-9)
            self.tell({"kind": "step", "step": done, "examples_per_s": speed, **more})

    def event(self, name: str, **facts: Any) -> None:
        if self.records is not None:
            self.records.event(name, time_s=self.elapsed(), **facts)

    def elapsed(self) -> float:
        return round(time.perf_counter() - self.started, 3)

    def result(self) -> dict[str, Any]:
        done = self.job.position.steps_done
        facts = self.plan.facts(self.run, self.world.size, self.world.device.type, self.world.backend)
        return {
            **facts,
            "steps_done": done,
            "finished": done >= self.plan.steps,
            **self.last,
            "train_s": round(self.train_s, 3),
            "examples_per_s": round(self.trained / max(self.train_s, 1e-9), 1),
            **self.job.fingerprint(),
        }


def _build(run: Run, sets: Sets) -> nn.Module:
    model = models.build(run.model, sets, run.dropout)
    if run.norm != "batch" and not any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise Misuse(f"--norm {run.norm} converts batch norm, of which model {run.model} has none; leave it out")
    return norm.convert(model, run.norm, ghost_batch=run.ghost_batch)  # type: ignore[arg-type]  # Run checks it


def _factor(run: Run, plan: Plan) -> Callable[[int], float]:
    shape: Any = "constant" if run.schedule == "grow" else run.schedule  # Run checks it
    first = plan.epoch.steps * plan.stages[0][1].epochs
    if len(plan.stages) > 1 and plan.warmup_steps > first:
        raise Misuse(
            f"a warm-up of {plan.warmup_steps} steps would go on when the batch grows, after {first}; use a shorter one"
        )
    factor = rates.schedule(plan.steps, shape=shape, warmup_steps=plan.warmup_steps, warmup_from=run.warmup_from)
    if len(plan.stages) == 1:
        return factor
    return lambda step: factor(step) * plan.of_epoch(plan.epoch_at(step))[1].rate
