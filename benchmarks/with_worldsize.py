"""The same training as plain_ddp.py, with worldsize's job."""

import argparse
import itertools
import json
import statistics
import time

import torch
from models_and_data import make

import worldsize


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-per-worker", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--sync", required=True)
    parser.add_argument("--replicas", type=int, required=True)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, data, loss_of = make(options.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    borders = []
    job = worldsize.join(
        model,
        optimizer,
        replicas=options.replicas,
        batch_per_replica=options.batch_per_worker,
        sync=options.sync,
        keep_short=False,
        after_step=lambda _: borders.append(time.perf_counter()),
    )
    epoch = 0
    while len(borders) <= options.steps + options.warmup:
        epoch += 1
        for _ in job.epochs(epoch):
            for x, y in job.batches(data):
                job.backward(loss_of(model(x), y))
    if job.world.worker == 0:
        steps = [b - a for a, b in itertools.pairwise(borders)][options.warmup : options.warmup + options.steps]
        print(json.dumps({"step_s": statistics.median(steps), "threads": torch.get_num_threads()}))
    job.close()


if __name__ == "__main__":
    main()
