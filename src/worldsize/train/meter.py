"""The gradient noise scale, measured while a model trains, from gradients that are there anyway."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from worldsize.errors import Misuse
from worldsize.plan.noise import NoiseScale, measured, noise_scale
from worldsize.train.job import Job

Number = float | Tensor  # a tensor while it is still on a GPU


class NoiseMeter:
    """Watches a job: every so many steps, the squares of the replicas' gradients and of their mean.

        meter = NoiseMeter(job, every=10)
        ...                                  # the loop, as it is
        print(meter.result().scale)          # every worker must call it

    Nothing is sent while training; the squares are put together when the result is asked for.
    """

    def __init__(self, job: Job, *, every: int = 10) -> None:
        self._every, self._world = _checked(every), job.world
        self._parts: list[tuple[int, int, float, Number]] = []  # step, replica, its weight, square
        self._open: list[tuple[int, int, float, Number]] = []  # those of the step under way
        self._wholes: dict[int, tuple[float, float, Number]] = {}  # step: examples, factor on gradients, square
        job.watch(self)

    def __bool__(self) -> bool:
        """Whether a step has been measured since the last result; the same on every worker."""
        return bool(self._wholes)

    def begin(self, step: int) -> bool:
        self._open = []
        return step % self._every == 0

    def part(self, step: int, replica: int, weight: float, parameters: Sequence[nn.Parameter]) -> None:
        """Some of one replica's gradients, weighted by its share of the examples."""
        self._open.append((step, replica, weight, _square(parameters)))

    def whole(self, step: int, examples: float, factor: float, parameters: Sequence[nn.Parameter]) -> None:
        """All gradients of the step, after the sync; they are `factor` times too large (loss scaling)."""
        self._wholes[step] = (examples, factor, _square(parameters))
        self._parts += self._open

    def result(self) -> NoiseScale:
        """The noise scale over all steps since the last call. Every worker must call this."""
        parts = [(step, replica, weight, float(square)) for step, replica, weight, square in self._parts]
        wholes = {step: (n, factor, float(square)) for step, (n, factor, square) in self._wholes.items()}
        self._parts, self._wholes = [], {}
        weights: dict[int, dict[int, float]] = {step: {} for step in wholes}
        squares: dict[int, dict[int, float]] = {step: {} for step in wholes}
        for step, replica, weight, square in sorted(part for theirs in self._world.gather(parts) for part in theirs):
            weights[step][replica] = weight
            squares[step][replica] = squares[step].get(replica, 0.0) + square / wholes[step][1] ** 2
        return noise_scale(
            [measured(n, weights[at], squares[at], whole / factor**2) for at, (n, factor, whole) in wholes.items()]
        )


class DdpNoiseMeter:
    """The same for a program of one's own that uses stock DDP with the same batch on every worker.

        meter = DdpNoiseMeter(batch_per_worker=32)
        ddp_model.register_comm_hook(None, meter.hook)

    It sees each bucket before and after the hook that averages it (`inner`, torch's own all-reduce unless told).
    """

    def __init__(
        self,
        batch_per_worker: int,
        *,
        every: int = 10,
        inner: Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]] = allreduce_hook,
        inner_state: Any = None,
    ) -> None:
        if batch_per_worker < 1:
            raise Misuse(f"batch_per_worker is {batch_per_worker}, but a worker reads at least one example a step")
        self._batch, self._every, self._inner, self._inner_state = batch_per_worker, _checked(every), inner, inner_state
        self._step = 0
        self._local: dict[int, float] = {}
        self._mean: dict[int, float] = {}

    def hook(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What to give to `register_comm_hook`."""
        step = self._step
        if bucket.is_last():
            self._step += 1
        if step % self._every:
            return self._inner(self._inner_state, bucket)
        self._local[step] = self._local.get(step, 0.0) + _square_of(bucket.buffer())

        def averaged(done: torch.futures.Future[Any]) -> Tensor:
            value = done.value()
            mean: Tensor = value[0] if isinstance(value, list | tuple) else value
            self._mean[step] = self._mean.get(step, 0.0) + _square_of(mean)
            return mean

        return self._inner(self._inner_state, bucket).then(averaged)

    def result(self) -> NoiseScale:
        """The noise scale over all steps since the last call. Every worker must call this."""
        size = dist.get_world_size()
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, self._local)
        means, self._local, self._mean = self._mean, {}, {}
        weights = dict.fromkeys(range(size), 1 / size)
        steps = []
        for step, mean in means.items():
            squares = {worker: theirs[step] / size**2 for worker, theirs in enumerate(everyone)}
            steps.append(measured(self._batch * size, weights, squares, mean))
        return noise_scale(steps)


def _square(parameters: Sequence[nn.Parameter]) -> Number:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    norms = torch._foreach_norm([gradient.detach() for gradient in gradients])
    square = torch.stack([norm.double() for norm in norms]).square().sum()
    return square if square.is_cuda else square.item()


def _square_of(buffer: Tensor) -> float:
    norm = torch.linalg.vector_norm(buffer).item()
    return norm * norm if math.isfinite(norm) else math.nan


def _checked(every: int) -> int:
    if every < 1:
        raise Misuse(f"every is {every}, but steps are counted from 1; 10 measures every tenth")
    return every
