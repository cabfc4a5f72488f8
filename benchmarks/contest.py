"""Started by torchrun from against_ddp.py: an ordinary DDP loop and worldsize's job, taking steps in turns.

Every contestant trains a model of its own, on the same data, in the same processes, so that the machine's moods and
the allocator's settings are the same for all. Prints the seconds of every step of the first worker as JSON.
"""

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import worldsize
from worldsize.train import data, models

SETS = {"cnn": "fashion-10k", "wrn-16-2": "fashion-10k", "transformer": "sums"}


def plain(model: nn.Module, dataset: TensorDataset, batch: int, **settings: bool) -> Iterator[None]:
    """A stock DDP script's loop with a DataLoader; yields after every step."""
    ddp = DistributedDataParallel(model, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=batch, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(ddp(x), y).backward()
            optimizer.step()
            yield
        epoch += 1


def ours(model: nn.Module, dataset: TensorDataset, batch: int, sync: str) -> Iterator[None]:
    """The same training as a job, a replica for each worker; yields after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    replicas = dist.get_world_size()
    job = worldsize.join(model, optimizer, replicas=replicas, batch_per_replica=batch, sync=sync, keep_short=False)
    for _ in job.epochs(10**9):
        for x, y in job.batches(dataset):
            job.backward(loss_of(model(x), y))
            yield


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), ignore_index=data.UNCOUNTED)


CONTESTANTS: dict[str, Callable[..., Iterator[None]]] = {
    "plain": plain,
    "ddp": functools.partial(ours, sync="ddp"),
    "exact": functools.partial(ours, sync="exact"),
    "tuned": functools.partial(plain, gradient_as_bucket_view=True, static_graph=True),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True, help="examples per worker and step")
    parser.add_argument("--steps", type=int, required=True, help="steps a contestant takes before the next one does")
    parser.add_argument("--turns", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    sets = data.load(SETS[options.model])
    dataset = TensorDataset(*sets.train.take(torch.arange(len(sets.train))))
    running = {}
    for name, contestant in CONTESTANTS.items():
        torch.manual_seed(0)
        running[name] = contestant(models.build(options.model, sets), dataset, options.batch)
    taken: dict[str, list[list[float]]] = {name: [] for name in running}
    names = list(running)
    for turn in range(options.turns + 1):
        # Another one begins each time, so that none always follows the same neighbour.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            dist.barrier()
            next(running[name])  # the first step after the others' is cold
            seconds = []
            for _ in range(options.steps):
                before = time.perf_counter()
                next(running[name])
                seconds.append(time.perf_counter() - before)
            if turn:  # the first turn warms up
                taken[name].append(seconds)
    if dist.get_rank() == 0:
        print(json.dumps(taken), flush=True)
    dist.barrier()
    os._exit(0)  # torch 2.13: a DDP reducer that outlives its gloo group can abort the process at its end


if __name__ == "__main__":
    main()
