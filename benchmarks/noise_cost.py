"""What measuring the gradient noise scale every tenth step costs: turns with and without, alternating in one run.

python benchmarks/noise_cost.py [--turns 12] [--out benchmarks/results/noise_cost.json]
"""

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from worldsize.plan.statistics import bootstrap
from worldsize.train import data, loop, models, optimizers
from worldsize.train.job import Job
from worldsize.train.meter import NoiseMeter
from worldsize.train.records import machine
from worldsize.train.settings import Run

STEPS = 30  # of a turn; no divisor of an epoch's steps, so that epochs begin in turns of both kinds
RUNS = {
    "cnn": Run(replicas=8, batch_per_replica=32),
    "wrn-16-2": Run(model="wrn-16-2", replicas=2, batch_per_replica=16),
    "transformer": Run(model="transformer", data="sums", replicas=2, batch_per_replica=32),
}


class _Switched(NoiseMeter):
    """A meter that can be turned off for some steps."""

    on = False

    def begin(self, step: int) -> bool:
        return super().begin(step) and self.on


def turns(name: str, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each turn without, and of the turn with measuring that follows it."""
    run = RUNS[name]
    world = loop.enter_world(run)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sets = data.load(run.data)
    model = models.build(run.model, sets)
    job = Job(world, loop.job_settings(run, None), model, optimizers.make("sgd", model, 0.01, 0.0))
    meter, loss = _Switched(job, every=10), models.loss_of(sets, model)
    taken: tuple[list[float], list[float]] = ([], [])
    done, started = 0, time.perf_counter()
    for _ in job.epochs(10**6):
        for x, y in job.batches(sets.train):
            if not job.backward(loss(x, y)):
                continue
            done += 1
            if done % STEPS:
                continue
            if done > 2 * STEPS:  # the first turns warm up
                taken[meter.on].append(time.perf_counter() - started)
            if len(taken[1]) == count:
                meter.result()
                job.close()
                return taken
            meter.on, started = not meter.on, time.perf_counter()
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "noise_cost.json")
    asked = parser.parse_args()
    found = {}
    for name in RUNS:
        without, measured = turns(name, asked.turns)
        ratios = [b / a for a, b in zip(without, measured, strict=False)]
        low, high = bootstrap(len(ratios), lambda picked, r=ratios: statistics.median(r[i] for i in picked), 0.95)
        found[name] = {"ratio": statistics.median(ratios), "low": low, "high": high, "turns": ratios}
        print(f"{name:12} {found[name]['ratio']:.3f} ({low:.3f} to {high:.3f}) of the time without")
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "workers": 1}
    asked.out.write_text(
        json.dumps(about | {"command": "python benchmarks/noise_cost.py", "cost": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
