"""The opponent: an ordinary DDP script with a DataLoader, which knows nothing of worldsize's engine."""

import argparse
import itertools
import json
import statistics
import time

import torch
import torch.distributed as dist
from models_and_data import make
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-per-worker", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--tuned", action="store_true", help="DDP with its best documented settings")
    options = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, data, loss_of = make(options.model)
    extra = {"gradient_as_bucket_view": True, "static_graph": True} if options.tuned else {}
    ddp = DistributedDataParallel(model, **extra)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch_per_worker, sampler=sampler, drop_last=True)

    borders = []
    epoch = 0
    while len(borders) <= options.steps + options.warmup:
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(ddp(x), y).backward()
            optimizer.step()
            borders.append(time.perf_counter())
        epoch += 1
    if dist.get_rank() == 0:
        steps = [b - a for a, b in itertools.pairwise(borders)][options.warmup : options.warmup + options.steps]
        print(json.dumps({"step_s": statistics.median(steps), "threads": torch.get_num_threads()}))
    dist.barrier()  # without it, a worker that leaves early can abort the other at exit (gloo, torch 2.13)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
