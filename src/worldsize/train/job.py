"""The job: one object with which an ordinary training loop runs on any number of workers.

    job = worldsize.join(model, optimizer, replicas=8, batch_per_replica=32, seed=0)
    for epoch in job.epochs(10):
        for x, y in job.batches(train_set):
            job.backward(loss(model(x), y))
    print(job.evaluate(correct, test_set))

Each pass of the inner loop is one replica's batch. The last replica of a worker syncs, clips and updates.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from worldsize.errors import LossError, Misuse
from worldsize.parallel import ground
from worldsize.parallel.ddp import DdpSync
from worldsize.parallel.exact import ExactSync
from worldsize.parallel.norm import crosses_workers
from worldsize.parallel.world import World, join_world
from worldsize.plan import digest, shards, tree
from worldsize.plan.shards import Epoch
from worldsize.plan.streams import stream_seed
from worldsize.train import checkpoint, checks, data, lockstep
from worldsize.train.buffers import ReplicaBuffers
from worldsize.train.checkpoint import Position
from worldsize.train.ema import EMA
from worldsize.train.evaluation import evaluate, refit_norms
from worldsize.train.experiment import Settings, Sync
from worldsize.train.keeping import Keeping, plain_state
from worldsize.train.losses import Losses
from worldsize.train.models import has_batch_norm
from worldsize.train.randomness import seed_all


def join(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    replicas: int = 8,
    batch_per_replica: int = 32,
    seed: int = 0,
    sync: Sync = "exact",
    scheduler: Any = None,
    scaler: Any = None,
    clip_norm: float | None = None,
    keep_short: bool = True,
    save_to: str | Path | None = None,
    save_every: int | None = None,
    bucket_mb: float = 25.0,
    ema: float | None = None,
    device: str | None = None,
    limit_s: float = 600,
    after_step: Callable[["Job"], None] | None = None,
) -> "Job":
    """Join the world that this process was started in, alone if in none, and make the model's training a job of it.

    Every worker must call this with the same arguments. The first worker's weights are copied to all others.
    `scheduler` is stepped once per optimizer step. `scaler` is a torch.amp.GradScaler. With `save_to`, a checkpoint is
    written after every epoch, and with `save_every` after so many steps. `keep_short=False` drops the last short batch.
    `after_step` is called on every worker after each step, also where a worker had no example to read.
    `ema` is the decay of a moving average of the weights, which is then in `job.ema`.
    """
    settings = Settings(
        replicas=replicas,
        batch_per_replica=batch_per_replica,
        seed=seed,
        sync=sync,
        clip_norm=clip_norm,
        keep_short=keep_short,
        save_to=Path(save_to) if save_to is not None else None,
        save_every=save_every,
        bucket_mb=bucket_mb,
        ema=ema,
    )
    checks.check_parts(model, optimizer, scheduler, scaler)
    if settings.save_to is not None:
        checkpoint.prepare(settings.save_to)
    ground.before_joining(exact=sync == "exact")
    world = join_world(device=device, limit_s=limit_s)
    return Job(world, settings, model, optimizer, scheduler, scaler, after_step=after_step)


class Job:
    """One model in training on all workers. Made by `join`; every worker must call its methods together."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: Any = None,
        scaler: Any = None,
        *,
        after_step: Callable[["Job"], None] | None = None,
    ) -> None:
        settings.check_world(world.size)
        exact = settings.sync == "exact"
        ground.prepare(world.device, exact=exact)
        self.world, self.settings = world, settings
        self.model = model.to(world.device)
        self.optimizer, self.scheduler, self.scaler, self.after_step = optimizer, scheduler, scaler, after_step
        self.position = Position(epoch=0, step=0, steps_done=0, data="")
        self.block = tree.block(settings.replicas, world.size, world.worker)
        ground.compare(world, ground.facts(world.device) | _shape_of(model, settings))
        world.copy_from_first([*model.parameters(), *model.buffers()])
        self.buffers = ReplicaBuffers(model, world, settings.replicas)
        self.ema = EMA(model, settings.ema) if settings.ema is not None else None
        self.sync: ExactSync | DdpSync = (
            ExactSync(model, world, settings.replicas, bucket_mb=settings.bucket_mb)
            if exact
            else DdpSync(model, world, bucket_mb=settings.bucket_mb)
        )
        others = {"scheduler": scheduler, "scaler": scaler, "ema": self.ema}
        self._keeping = Keeping(world, settings, model, optimizer, self.buffers, others)
        self.grad_norm: Tensor | None = None  # before clipping, of the last step
        self._now: _Pass | None = None
        self._losses = Losses(world, settings.replicas)
        self._walked = 0  # steps of this epoch that earlier loops of this epoch have taken
        self._agreed: dict[str, Any] = {}  # what all workers are known to read, in which batches
        self._watcher: Watcher | None = None
        self._total = 0.0  # examples, or whatever is counted, of the step under way
        self._trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        self._before_step: list[tuple[str, Any]] = []  # the optimizer's settings when this step began
        self._updating = False
        if isinstance(optimizer, Optimizer) and optimizer not in _stepped_by:
            optimizer.register_step_pre_hook(_refuse_foreign_step)
        _stepped_by[optimizer] = self
        _open_jobs.add(self)

    # ---- the loop ------------------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs still to train, of `count` in all; a resumed job starts in the epoch it was interrupted in."""
        started = self.position.steps_done
        while self.position.epoch < count:
            self._losses.forget(before=started)  # those that nobody has asked for are kept for one epoch more
            self._walked, started = 0, self.position.steps_done
            yield self.position.epoch
            self.position = self.position.next_epoch()
            if self.settings.save_to is not None:
                self.save(self.settings.save_to)

    def batches(
        self,
        *sets: Dataset,
        count: Callable[..., Any] | None = None,
        loader_workers: int = 0,
        collate: Callable[[list], Any] | None = None,
        batch_per_replica: int | None = None,
    ) -> Iterator[Any]:
        """This worker's batches of one epoch, one per replica and step, with random streams and buffers set.

        Call `backward` once for each. The first data set says how long the epoch is; further ones go round and round
        beside it, and each pass then gives a tuple with a batch of each. `count` tells how much a batch counts in the
        mean over the global batch (its tokens, say) when that is not its number of examples; it is called with the
        parts of the batch. `batch_per_replica` is that of `join` unless given; it may change from epoch to epoch.
        """
        for step, plan, read in self._walk(sets, batch_per_replica, loader_workers, collate):
            yield from self._step(step, plan, read, count)

    def lockstep(
        self,
        loss: Callable[..., Tensor],
        *sets: Dataset,
        count: Callable[..., Any] | None = None,
        loader_workers: int = 0,
        collate: Callable[[list], Any] | None = None,
        batch_per_replica: int | None = None,
    ) -> None:
        """One epoch in which all replicas of a step are inside one forward pass, as batch norm across workers needs it.

        In place of the loop over `batches`, whose further arguments mean the same here: `loss` is called with the parts
        of each replica's batch and gives its mean loss. Replicas of one worker take turns, from one batch norm to the
        next, with random streams and buffers of their own; anything else that the model or the loss keeps on itself
        between two of them would be mixed up. A worker holds the activations and gradients of all its replicas at once.
        """
        self.settings.check_lockstep(self.world.size, self.world.device.type)
        for step, plan, read in self._walk(sets, batch_per_replica, loader_workers, collate, together=True):
            passes, batches = self._open(step, plan, read, count)
            self._together(loss, plan.active(step), [(now, next(batches)) for now in passes])

    def _walk(
        self,
        sets: tuple[Dataset, ...],
        batch_per_replica: int | None,
        loader_workers: int,
        collate: Callable[[list], Any] | None,
        *,
        together: bool = False,
    ) -> Iterator[tuple[int, Epoch, Iterator[Any]]]:
        """The steps of one epoch that are still to take, and what reads this worker's batches."""
        plan = self._plan(sets, batch_per_replica, together)
        first_of_loop = self._walked
        done = self.position.step - first_of_loop
        self._walked += plan.steps
        if done >= plan.steps:
            return
        steps = range(max(done, 0), plan.steps)
        reading = []
        for place, part in enumerate(sets):
            places = shards.places(
                plan,
                self.block,
                steps,
                examples=data.size_of(part),
                seed=self.settings.seed,
                epoch=self.position.epoch,
                steps_done=self.position.steps_done,
                stream=first_of_loop * 256 + place,
                endless=place > 0,
            )
            reading.append(
                data.serve(
                    part,
                    places,
                    device=self.world.device,
                    seed=self.settings.seed,
                    epoch=self.position.epoch,
                    loader_workers=loader_workers,
                    collate=collate,
                )
            )
        joined = reading[0] if len(sets) == 1 else zip(*reading, strict=True)
        for step in steps:
            yield step, plan, joined
            if self._now is not None:  # the loop was left and entered again
                return
            if step == steps.start:
                self.buffers.check(self.model)
        self._losses.check()
        self.buffers.settle(self._default_buffers())
        self._seed("between")

    def backward(self, loss: Tensor, **others: Tensor) -> bool:
        """Run backward on this replica's mean loss, weighted; after the worker's last replica, sync, clip and update.

        True when this was the last one and the weights have changed. `others` are further means over this batch (its
        accuracy, say), of which `means` then gives the mean over all workers.
        """
        now = self._now
        if now is None or now.called:
            raise LossError(
                "job.backward was called without a batch, or twice for one; call it once per pass of job.batches, "
                "on the sum of all losses of that batch"
            )
        weighted = self._weighted(now, loss, others)
        now.called = True
        self.sync.backward(weighted, now.replica, last=now.last)
        if now.last:
            self._update()
        return now.last

    def _weighted(self, now: "_Pass", loss: Tensor, others: dict[str, Tensor]) -> Tensor:
        """A replica's loss as its backward pass needs it, looked at and kept for the means."""
        checks.check_loss(loss)
        self._losses.add(
            loss, others, step=self.position.steps_done, replica=now.replica, weight=now.counted / now.total
        )
        factor = now.counted * (1 if isinstance(self.sync, ExactSync) else self.world.size) / now.total
        weighted = (loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss) * factor
        return weighted if self.scaler is None else self.scaler.scale(weighted)

    def _open(
        self, step: int, plan: Epoch, batches: Iterator[Any], count: Callable | None
    ) -> tuple[list["_Pass"], Iterator[Any]]:
        """Begin a step: the passes of all local replicas that have examples, and their batches."""
        sizes = plan.sizes(step)
        local = [replica for replica in self.block if sizes[replica]]
        self._begin_step(plan.active(step))
        total = float(plan.size(step))
        loaded, counted = batches, {replica: float(sizes[replica]) for replica in local}
        if count is not None:
            ahead = [next(batches) for _ in local]
            counted = {replica: checks.checked_count(count, batch) for replica, batch in zip(local, ahead, strict=True)}
            total = self._sum_over_replicas(counted)
            loaded = iter(ahead)
        self._total = total
        return [_Pass(replica, counted[replica], total, last=replica == local[-1]) for replica in local], loaded

    def _step(self, step: int, plan: Epoch, batches: Iterator[Any], count: Callable | None) -> Iterator[Any]:
        """One step: every local replica that has examples, then the update."""
        passes, loaded = self._open(step, plan, batches, count)
        for now, batch in zip(passes, loaded, strict=False):
            if not now.counted:
                self._leave_out(now.replica, last=now.last)
                continue
            self._now = now
            self.buffers.enter(now.replica)
            self._seed("pass", now.replica)
            if isinstance(self.sync, DdpSync):
                self.sync.expect(last=now.last)
            yield batch
            if not now.called:
                raise LossError(
                    f"the batch of replica {now.replica} at step {self.position.step} had no job.backward; "
                    "call it for every batch (to leave a batch out, give it a loss of 0 * the loss)"
                )
        self._now = None
        if not passes:
            self._update()

    def _together(self, loss: Callable[..., Tensor], active: int, batches: list[tuple["_Pass", Any]]) -> None:
        """One step whose local replicas run in lockstep, then the update."""
        assert isinstance(self.sync, ExactSync)
        sync, replicas = self.sync, self.settings.replicas
        group = self.world.holding(replicas, active)

        def one(now: _Pass, batch: Any) -> dict[nn.Parameter, Tensor]:
            self._seed("pass", now.replica)
            return sync.hold(self._weighted(now, loss(*data.parts_of(batch)), {}))

        for now, _ in batches:
            if not now.counted:
                self._check_skip(now.replica)
        found = lockstep.run(
            {now.replica: partial(one, now, batch) for now, batch in batches if now.counted},
            self.buffers,
            partial(self.world.gather_rows, replicas=replicas, active=active, group=group),
        )
        for now, _ in batches:
            self._now = now
            if now.counted:
                sync.push(found[now.replica], now.replica, last=now.last)
            else:
                sync.skip(now.replica, last=now.last)
        self._now = None
        self._update()

    def _begin_step(self, active: int) -> None:
        other = _open_step[0]() if _open_step else None
        if other is not None and other is not self:
            raise Misuse(
                "another job is in the middle of a step, so what this one sees of its model would depend on the number "
                "of workers; finish that step first (leave its loop when job.backward gives True), or close that job"
            )
        _open_step[:] = [weakref.ref(self)]
        self._before_step = checks.settings_of(self.optimizer)
        self.sync.begin(active)
        if isinstance(self.sync, ExactSync):
            watched = self._watcher is not None and self._watcher.begin(self.position.steps_done)
            self.sync.watch = self._watch if watched else None

    def _watch(self, replica: int, parameters: Sequence[nn.Parameter]) -> None:
        if self._watcher is not None and self._now is not None:
            weight = self._now.counted / self._now.total
            self._watcher.part(self.position.steps_done, replica, weight, parameters)

    def _check_skip(self, replica: int) -> None:
        if crosses_workers(self.model) or isinstance(self.sync, DdpSync):
            raise LossError(
                f"replica {replica} at step {self.position.step} counts nothing; neither sync 'ddp' nor batch norm "
                "across workers can skip it; leave such examples out of the data set"
            )

    def _leave_out(self, replica: int, *, last: bool) -> None:
        self._check_skip(replica)
        assert isinstance(self.sync, ExactSync)
        self.sync.skip(replica, last=last)
        if last:
            self._now = None
            self._update()

    def _update(self) -> None:
        """Sync, clip, update; the same on every worker, since all have the same bits."""
        self.sync.finish()
        checks.check_untouched(self.optimizer, self._before_step)
        self._seed("update")  # for optimizers that draw noise
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self._watcher is not None and isinstance(self.sync, ExactSync) and self.sync.watch is not None:
            factor = self.scaler.get_scale() if self.scaler is not None else 1.0
            self._watcher.whole(self.position.steps_done, self._total, factor, parameters)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.settings.clip_norm is not None:
            # Squares are summed tensor by tensor, in index order.
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip_norm)
        self._updating = True
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self._updating = False
        if self.ema is not None:
            self.ema.follow()
        if self.scheduler is not None:
            self.scheduler.step()
        self.position = self.position.next_step()
        _open_step.clear()
        every = self.settings.save_every
        if every and self.settings.save_to is not None and self.position.steps_done % every == 0:
            self.save(self.settings.save_to)
        if self.after_step is not None:
            self.after_step(self)

    def watch(self, watcher: "Watcher") -> None:
        """Show it every replica's gradient before the sum and the sum before clipping, at the steps that it wants."""
        if not isinstance(self.sync, ExactSync):
            raise Misuse(
                "sync 'ddp' keeps no gradient of a single replica; use sync 'exact', "
                "or worldsize.train.meter.DdpNoiseMeter as a communication hook of your own DDP model"
            )
        self._watcher = watcher

    # ---- what has come of it -------------------------------------------------------------------------------------

    def mean_loss(self) -> float:
        """The mean loss since the last call, at most since the start of the last epoch, over all replicas."""
        return self.means()["loss"]

    def means(self) -> dict[str, float]:
        """The mean of the loss, and of whatever else `backward` was given, over the same; every worker must call it."""
        return self._losses.means()

    def evaluate(
        self,
        measure: Callable[..., Tensor | dict[str, Tensor]],
        test_set: Dataset,
        *,
        buffers: Literal["mean", "first"] | None = None,
        norms_from: Dataset | None = None,
        collate: Callable[[list], Any] | None = None,
    ) -> Any:
        """The mean of a measure over a data set, every example once, with the same bits for every world size.

        `measure` is called with the parts of a batch and gives one number per example, or a dict of such.
        Batch-norm statistics are the mean over all replicas, or the first replica's (the default under `ddp`);
        with `norms_from` they are taken anew from some of that data set, as averaged weights need.
        """
        self.buffers.settle(buffers or self._default_buffers())
        if norms_from is not None:
            refit_norms(self.model, self.world, self.settings.seed, measure, norms_from, collate)
        means = evaluate(self.model, self.world, self.settings.seed, measure, test_set, collate)
        self._seed("between")
        return means

    def state_dict(self) -> dict[str, Tensor]:
        """The trained model for `load_state_dict`, with the buffers for evaluation: the same on every worker.

        Every worker must call this. The model itself holds them too, after each loop and evaluation.
        """
        self.buffers.settle(self._default_buffers())
        return plain_state(self.model)

    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of the weights, of the buffers that evaluation uses, and of the averaged weights, if there are.

        Every worker must call this.
        """
        self.buffers.settle(self._default_buffers())
        return {
            "weights_sha256": digest.weights_sha256(self.model),
            "buffers_sha256": digest.buffers_sha256(self.model),
        } | ({"ema_sha256": self.ema.sha256()} if self.ema is not None else {})

    def print(self, *values: Any) -> None:
        """Print on the first worker alone."""
        if self.world.worker == 0:
            print(*values, flush=True)

    # ---- saving and leaving --------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write a checkpoint at a step border; every worker must call this, the first one writes."""
        if self._now is not None and not (self._now.last and self._now.called):
            raise Misuse("job.save was called in the middle of a step; use save_every, or call it after the loop")
        self._losses.check()
        return self._keeping.write(Path(folder), self.position, self._default_buffers())

    def resume(self, folder: str | Path) -> bool:
        """Continue from the newest whole checkpoint in this folder, at whatever world size; False if there is none."""
        position = self._keeping.read(Path(folder))
        if position is None:
            return False
        self.position = position
        self.buffers.settle(self._default_buffers())
        return True

    def close(self) -> None:
        """Take our hooks off the model and the optimizer; the last job to close leaves the world."""
        self.sync.close()
        _stepped_by.pop(self.optimizer, None)
        _open_jobs.discard(self)
        if _open_step and _open_step[0]() is self:
            _open_step.clear()
        if not _open_jobs:
            self.world.leave()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _plan(self, sets: tuple[Dataset, ...], batch_per_replica: int | None, together: bool) -> Epoch:
        if not sets:
            raise Misuse(f"job.{'lockstep' if together else 'batches'} needs a data set to read")
        if isinstance(self.sync, ExactSync):
            ground.check(self.world.device)
        checks.check_model(self.model, self._trained)
        self.buffers.check(self.model)
        batch = self.settings.batch_per_replica if batch_per_replica is None else batch_per_replica
        plan = replace(self.settings, batch_per_replica=batch).check_shards(
            data.size_of(sets[0]),
            batch_norm=has_batch_norm(self.model),
            workers=self.world.size,
            together=crosses_workers(self.model) and not together,
        )
        if self._walked == 0:  # the first loop of an epoch names the data of the job
            identity = data.identity(sets[0])
            checks.check_reading(self.position, identity, plan.batch_per_replica)
            reads = {"the training data": identity, "batch_per_replica": plan.batch_per_replica}
            if reads != self._agreed:
                ground.compare(self.world, reads)
                self._agreed = reads
            self.position = self.position.on(identity, plan.batch_per_replica)
        return plan

    def _sum_over_replicas(self, counted: dict[int, float]) -> float:
        """The sum of what all replicas count, which need not be whole numbers: rounded once, whoever brings them."""
        row = torch.zeros(self.settings.replicas, dtype=torch.float64, device=self.world.device)
        for replica, number in counted.items():
            row[replica] = number
        if self.world.size > 1:
            dist.all_reduce(row)  # to each number only zeros are added
        total = math.fsum(row.tolist())
        if not total:
            raise LossError(
                f"count gave 0 for every batch of step {self.position.steps_done}, so there is no mean to take; "
                "leave such examples out of the data set"
            )
        return total

    def _seed(self, purpose: str, replica: int = 0) -> None:
        seed_all(stream_seed(self.settings.seed, self.position.epoch, self.position.step, replica, purpose))

    def _default_buffers(self) -> Literal["mean", "first"]:
        return "mean" if self.settings.sync == "exact" else "first"


class Watcher(Protocol):
    """Sees gradients and changes none."""

    def begin(self, step: int) -> bool:
        """This step of the run begins, perhaps anew after an error; whether to look, the same on every worker."""

    def part(self, step: int, replica: int, weight: float, parameters: Sequence[nn.Parameter]) -> None:
        """Some of one replica's gradients are in `grad`, times its weight in the global batch."""

    def whole(self, step: int, examples: float, factor: float, parameters: Sequence[nn.Parameter]) -> None:
        """The step's gradients are in `grad`, synced, times the factor of loss scaling."""


@dataclass
class _Pass:
    """The replica's pass that is under way."""

    replica: int
    counted: float
    total: float
    last: bool
    called: bool = False


# Which job steps an optimizer, and which job is in the middle of a step: one of each at most in a process.
_stepped_by: "weakref.WeakKeyDictionary[Optimizer, Job]" = weakref.WeakKeyDictionary()
_open_step: "list[weakref.ref[Job]]" = []
_open_jobs: "weakref.WeakSet[Job]" = weakref.WeakSet()  # those that still need the world


def _refuse_foreign_step(optimizer: Optimizer, *_: Any) -> None:
    job = _stepped_by.get(optimizer)
    if job is not None and not job._updating:
        raise Misuse("the job steps the optimizer, and has synced and clipped before; remove optimizer.step()")


def _shape_of(model: nn.Module, settings: Settings) -> dict[str, Any]:
    tensors = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in model.named_parameters()]
    return settings.facts() | {"bucket_mb": settings.bucket_mb, "the model's parameters": tensors}
