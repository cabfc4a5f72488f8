"""The job: one object with which an ordinary training loop runs on any number of workers.

    job = worldsize.join(model, optimizer, replicas=8, batch_per_replica=32, seed=0)
    for epoch in job.epochs(10):
        for x, y in job.batches(train_set):
            job.backward(loss(model(x), y))
    print(job.evaluate(correct, test_set))

Each pass of the inner loop is one replica's batch. The last replica of a worker syncs, clips and updates.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from worldsize.errors import LossError, Misuse, ResumeError
from worldsize.parallel import ground
from worldsize.parallel.ddp import DdpSync
from worldsize.parallel.exact import ExactSync
from worldsize.parallel.world import World, join_world
from worldsize.plan import digest, shards, tree
from worldsize.plan.shards import Epoch
from worldsize.plan.streams import stream_seed
from worldsize.train import checkpoint, data
from worldsize.train.buffers import ReplicaBuffers
from worldsize.train.checkpoint import Position
from worldsize.train.evaluation import evaluate
from worldsize.train.experiment import Settings, Sync
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
    device: str | None = None,
    limit_s: float = 600,
    after_step: Callable[["Job"], None] | None = None,
) -> "Job":
    """Join the world that this process was started in, alone if in none, and make the model's training a job of it.

    Every worker must call this with the same arguments. The first worker's weights are copied to all others.
    `scheduler` is stepped once per optimizer step. `scaler` is a torch.amp.GradScaler. With `save_to`, a checkpoint is
    written after every epoch, and with `save_every` after so many steps. `keep_short=False` drops the last short batch.
    `after_step` is called on every worker after each step, also where a worker had no example to read.
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
    )
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
        _check_optimizer(model, optimizer)
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
        self.sync: ExactSync | DdpSync = (
            ExactSync(model, world, settings.replicas, bucket_mb=settings.bucket_mb)
            if exact
            else DdpSync(model, world, bucket_mb=settings.bucket_mb)
        )
        self.grad_norm: Tensor | None = None  # before clipping, of the last step
        self._now: _Pass | None = None
        self._losses = Losses(world, settings.replicas)
        self._walked = 0  # steps of this epoch that earlier loops of this epoch have taken
        self._agreed = ""  # the data set that all workers are known to read
        self._trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}

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
    ) -> Iterator[Any]:
        """This worker's batches of one epoch, one per replica and step, with random streams and buffers set.

        Call `backward` once for each. The first data set says how long the epoch is; further ones go round and round
        beside it, and each pass then gives a tuple with a batch of each. `count` tells how much a batch counts in the
        mean over the global batch (its tokens, say) when that is not its number of examples; it is called with the
        parts of the batch.
        """
        plan = self._plan(sets)
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
            yield from self._step(step, plan, joined, count)
            if self._now is not None:  # the loop was left and entered again
                return
        self._losses.check()
        self._seed("between")

    def backward(self, loss: Tensor) -> bool:
        """Run backward on this replica's mean loss, weighted; after the worker's last replica, sync, clip and update.

        True when this was the last one and the weights have changed.
        """
        now = self._now
        if now is None or now.called:
            raise LossError(
                "job.backward was called without a batch, or twice for one; call it once per pass of job.batches, "
                "on the sum of all losses of that batch"
            )
        self._check_loss(loss, now)
        now.called = True
        factor = now.counted * (1 if isinstance(self.sync, ExactSync) else self.world.size) / now.total
        weighted = (loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss) * factor
        if self.scaler is not None:
            weighted = self.scaler.scale(weighted)
        self.sync.backward(weighted, now.replica, last=now.last)
        if now.last:
            self._update()
        return now.last

    def _step(self, step: int, plan: Epoch, batches: Iterator[Any], count: Callable | None) -> Iterator[Any]:
        """One step: every local replica that has examples, then the update."""
        sizes = plan.sizes(step)
        local = [replica for replica in self.block if sizes[replica]]
        self.sync.begin(plan.active(step))
        total: float = plan.size(step)
        loaded, counted = batches, {replica: float(sizes[replica]) for replica in local}
        if count is not None:
            ahead = [next(batches) for _ in local]
            counted = {replica: float(_counted(count, batch)) for replica, batch in zip(local, ahead, strict=True)}
            total = self._sum_over_replicas(counted)
            loaded = iter(ahead)
        for replica in local:
            batch = next(loaded)
            if not counted[replica]:
                self._leave_out(replica, last=replica == local[-1])
                continue
            self._now = _Pass(replica, counted[replica], total, last=replica == local[-1])
            self.buffers.enter(replica)
            seed_all(stream_seed(self.settings.seed, self.position.epoch, self.position.step, replica, "pass"))
            if isinstance(self.sync, DdpSync):
                self.sync.expect(last=self._now.last)
            yield batch
            if not self._now.called:
                raise LossError(
                    f"the batch of replica {replica} at step {self.position.step} had no job.backward; "
                    "call it for every batch (to leave a batch out, give it a loss of 0 * the loss)"
                )
        self._now = None
        if not local:
            self._update()

    def _leave_out(self, replica: int, *, last: bool) -> None:
        if not isinstance(self.sync, ExactSync):
            raise LossError(f"replica {replica} at step {self.position.step} counts nothing; sync 'ddp' cannot skip it")
        self.sync.skip(replica, last=last)
        if last:
            self._now = None
            self._update()

    def _update(self) -> None:
        """Sync, clip, update; the same on every worker, since all have the same bits."""
        self.sync.finish()
        self._seed("update")  # for optimizers that draw noise
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.settings.clip_norm is not None:
            # Squares are summed tensor by tensor, in index order.
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.position = self.position.next_step()
        every = self.settings.save_every
        if every and self.settings.save_to is not None and self.position.steps_done % every == 0:
            self.save(self.settings.save_to)
        if self.after_step is not None:
            self.after_step(self)

    # ---- what has come of it -------------------------------------------------------------------------------------

    def mean_loss(self) -> float:
        """The mean loss since the last call, at most since the start of the last epoch, over all replicas."""
        return self._losses.mean()

    def evaluate(
        self,
        measure: Callable[..., Tensor | dict[str, Tensor]],
        test_set: Dataset,
        *,
        buffers: Literal["mean", "first"] | None = None,
        collate: Callable[[list], Any] | None = None,
    ) -> Any:
        """The mean of a measure over a data set, every example once, with the same bits for every world size.

        `measure` is called with the parts of a batch and gives one number per example, or a dict of such.
        Batch-norm statistics are the mean over all replicas, or the first replica's (the default under `ddp`).
        """
        with self.buffers.evaluation(buffers or self._default_buffers()):
            means = evaluate(self.model, self.world, self.settings.seed, measure, test_set, collate)
        self._seed("between")
        return means

    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of the weights, and of the buffers that evaluation uses."""
        with self.buffers.evaluation(self._default_buffers()):
            return {
                "weights_sha256": digest.weights_sha256(self.model),
                "buffers_sha256": digest.buffers_sha256(self.model),
            }

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
        kept = self.buffers.gather()
        path = Path(folder) / f"step-{self.position.steps_done:08d}"
        if self.world.worker == 0:
            state = checkpoint.State(
                model=dict(_named(self.model)),
                optimizer=self.optimizer.state_dict(),
                buffers={f"{v}.{n}": t for v, row in enumerate(kept) for n, t in zip(self._names(), row, strict=True)},
                position=self.position,
                experiment=self._experiment(),
                extra={
                    name: part.state_dict()
                    for name, part in (("scheduler", self.scheduler), ("scaler", self.scaler))
                    if part is not None
                },
            )
            checkpoint.write(path, state)
        self.world.barrier()
        return path

    def resume(self, folder: str | Path) -> bool:
        """Continue from the newest whole checkpoint in this folder, at whatever world size; False if there is none."""
        path = checkpoint.newest(Path(folder))
        everyone = self.world.gather(path.name if path else None)
        if any(name != everyone[0] for name in everyone):
            odd = next(worker for worker, name in enumerate(everyone) if name != everyone[0])
            raise ResumeError(
                f"worker 0 finds {everyone[0]} in {folder}, worker {odd} finds {everyone[odd]}; "
                "keep checkpoints on a file system that all hosts share"
            )
        if path is None:
            return False
        state = checkpoint.read(path)
        checkpoint.fits(state, dict(_named(self.model)), self._experiment(), path)
        with torch.no_grad():
            for name, tensor in _named(self.model):
                tensor.copy_(state.model[name])
        self.optimizer.load_state_dict(state.optimizer)
        names = self._names()
        self.buffers.load([[state.buffers[f"{v}.{n}"] for n in names] for v in range(self.settings.replicas)])
        for name, part in (("scheduler", self.scheduler), ("scaler", self.scaler)):
            if part is not None and name in state.extra:
                part.load_state_dict(state.extra[name])
        self.position = state.position
        return True

    def close(self) -> None:
        """Take our hooks off the model and leave the world."""
        self.sync.close()
        self.world.leave()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _plan(self, sets: tuple[Dataset, ...]) -> Epoch:
        if not sets:
            raise Misuse("job.batches needs a data set to read")
        if isinstance(self.sync, ExactSync):
            ground.check(self.world.device)
        self._check_trained()
        plan = self.settings.check_shards(
            data.size_of(sets[0]), batch_norm=has_batch_norm(self.model), workers=self.world.size
        )
        if self._walked == 0:  # the first loop of an epoch names the data of the job
            identity = data.identity(sets[0])
            if self.position.data not in ("", identity):
                raise ResumeError(
                    f"the checkpoint was trained on data {self.position.data}, but this is {identity} (examples, then "
                    "a hash of some); resume with the same data set, or start anew"
                )
            if identity != self._agreed:
                ground.compare(self.world, {"the training data": identity})
                self._agreed = identity
            self.position = self.position.on(identity)
        return plan

    def _check_trained(self) -> None:
        """A parameter that was unfrozen or replaced since would silently differ between workers."""
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in self._trained:
                raise Misuse(
                    f"{name} was unfrozen or replaced after worldsize.join, so its gradient would not be synced; "
                    "join when the model is complete, and freeze afterwards what is not to be trained yet"
                )

    def _check_loss(self, loss: Any, now: "_Pass") -> None:
        if not isinstance(loss, Tensor):
            raise LossError(f"job.backward got a {type(loss).__name__}, but needs the loss, a tensor with one number")
        if loss.numel() != 1:
            raise LossError(f"job.backward got a loss of shape {tuple(loss.shape)}; give its mean over the batch")
        if not loss.requires_grad:
            raise LossError("job.backward got a loss without a graph; do not detach it or compute it under no_grad")
        self._losses.add(loss, step=self.position.steps_done, replica=now.replica, weight=now.counted / now.total)

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

    def _seed(self, purpose: str) -> None:
        seed_all(stream_seed(self.settings.seed, self.position.epoch, self.position.step, 0, purpose))

    def _default_buffers(self) -> Literal["mean", "first"]:
        return "mean" if self.settings.sync == "exact" else "first"

    def _experiment(self) -> dict[str, Any]:
        """What must not change between two parts of one run."""
        parts = {"optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}
        kinds = {name: None if part is None else type(part).__name__ for name, part in parts.items()}
        return self.settings.facts() | kinds

    def _names(self) -> list[str]:
        return [name.replace("_orig_mod.", "") for name in self.buffers.names]


@dataclass
class _Pass:
    """The replica's pass that is under way."""

    replica: int
    counted: float
    total: float
    last: bool
    called: bool = False


def _check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    known = {id(parameter) for parameter in model.parameters()}
    foreign = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
    if foreign:
        raise Misuse(
            f"the optimizer holds {len(foreign)} parameters that are not the model's; "
            "make it from model.parameters() after the last change of the model"
        )


def _shape_of(model: nn.Module, settings: Settings) -> dict[str, Any]:
    tensors = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in model.named_parameters()]
    return settings.facts() | {"bucket_mb": settings.bucket_mb, "the model's parameters": tensors}


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name.replace("_orig_mod.", ""), parameter) for name, parameter in model.named_parameters()]


def _counted(count: Callable[..., Any], batch: Any) -> float:
    number = float(count(*data.parts_of(batch)))
    if not math.isfinite(number) or number < 0:
        raise LossError(f"count gave {number} for a batch; it must give how much the batch counts, 0 or more")
    return number
