"""Speed of worldsize's two sync modes against a plain torchrun DDP script with a DataLoader, in one alternating run.

Every round is a fresh torchrun, in which all contestants take steps in turns (contest.py). A turn gives the median
step of each, and from it the ratio to the plain script within that turn. Reported are the median ratio over all turns
of all rounds and its 95 % interval (bootstrap over rounds).

    python benchmarks/against_ddp.py [--rounds 7] [--workers 2] [--out benchmarks/results/FILE.json]
"""

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from worldsize.run.environment import ENVIRONMENT
from worldsize.train.records import machine

HERE = Path(__file__).parent
TURNS = 12
# model: batch per worker, steps in a turn
CASES = {"cnn": (32, 30), "wrn-16-2": (16, 8), "transformer": (32, 15)}


def one_round(model: str, workers: int) -> dict[str, list[float]]:
    """The median step seconds of every contestant in every turn, in fresh processes."""
    batch, steps = CASES[model]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command += [str(HERE / "contest.py"), "--model", model, "--batch", str(batch)]
    command += ["--steps", str(steps), "--turns", str(TURNS)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if not done.stdout.strip():
        sys.exit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    taken = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: [statistics.median(turn) for turn in turns] for name, turns in taken.items()}


def summarise(rounds: list[dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """For each contestant: plain seconds / its seconds, turn by turn; the median and its interval over rounds."""
    draw = random.Random(0)
    found = {}
    for name in rounds[0]:
        ratios = [[p / s for p, s in zip(each["plain"], each[name], strict=True)] for each in rounds]
        medians = sorted(
            statistics.median([ratio for each in draw.choices(ratios, k=len(ratios)) for ratio in each])
            for _ in range(2000)
        )
        found[name] = {
            "median": statistics.median([ratio for each in ratios for ratio in each]),
            "low": medians[50],
            "high": medians[1949],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "against_ddp.json")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "what": "step time of a plain torchrun DDP script over the contestant's: above 1 the contestant is faster",
        "command": shlex.join(["python", *sys.argv]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "environment": ENVIRONMENT,
        "workers": options.workers,
        "turns_per_round": TURNS,
        "models": {},
    }
    for model in options.models:
        load_before = os.getloadavg()[0]
        rounds = [one_round(model, options.workers) for _ in range(options.rounds)]
        summary = summarise(rounds)
        batch, steps = CASES[model]
        result["models"][model] = {
            "batch_per_worker": batch,
            "steps_per_turn": steps,
            "load_before": load_before,
            "step_s": rounds,
            "ratio_to_plain": summary,
        }
        for name, each in summary.items():
            step_ms = 1e3 * statistics.median([turn for r in rounds for turn in r[name]])
            print(
                f"{model:12} {name:6} {step_ms:7.2f} ms  {each['median']:.3f} ({each['low']:.3f} to {each['high']:.3f})"
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
