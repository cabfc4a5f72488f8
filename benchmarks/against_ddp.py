"""Speed of worldsize's two sync modes against a plain torchrun DDP script, in one alternating run.

Every round starts a fresh torchrun for each contestant, in turn. A round gives the median step of each; the result is
the median over rounds of the ratio within a round, so a busy spell of the machine hits all contestants alike.

    python benchmarks/against_ddp.py [--rounds 7] [--workers 2] [--out benchmarks/results/FILE.json]
"""

import argparse
import json
import os
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
# model: batch per worker, steps measured, steps before
CASES = {"cnn": (32, 120, 20), "wrn-16-2": (16, 30, 5), "transformer": (32, 60, 10)}


def contestants(workers: int) -> dict[str, list[str]]:
    mine = ["with_worldsize.py", "--replicas", str(workers), "--sync"]
    return {
        "plain": ["plain_ddp.py"],
        "ddp": [*mine, "ddp"],
        "exact": [*mine, "exact"],
        "tuned": ["plain_ddp.py", "--tuned"],
    }


def measure(words: list[str], model: str, workers: int) -> float:
    """Median step seconds of one contestant, in fresh processes."""
    batch, steps, warmup = CASES[model]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command += [str(HERE / words[0]), *words[1:], "--model", model, "--batch-per-worker", str(batch)]
    command += ["--steps", str(steps), "--warmup", str(warmup)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["step_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "against_ddp.json")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "what": "step time of a plain torchrun DDP script over that of worldsize: above 1, worldsize is faster",
        "command": shlex.join(["python", *sys.argv]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "environment": ENVIRONMENT,
        "workers": options.workers,
        "rounds": options.rounds,
        "models": {},
    }
    for model in options.models:
        names = contestants(options.workers)
        load_before = os.getloadavg()[0]
        rounds = []
        for turn in range(options.rounds):
            # A round starts with another contestant each time, so that none always follows the same neighbour.
            order = list(names)[turn % len(names) :] + list(names)[: turn % len(names)]
            rounds.append({name: measure(names[name], model, options.workers) for name in order})
            print(model, {name: f"{rounds[-1][name] * 1e3:.2f} ms" for name in names}, flush=True)
        ratios = {name: [each["plain"] / each[name] for each in rounds] for name in names if name != "plain"}
        summary = {name: {"median": statistics.median(r), "low": min(r), "high": max(r)} for name, r in ratios.items()}
        batch, steps, warmup = CASES[model]
        result["models"][model] = {
            "batch_per_worker": batch,
            "steps": steps,
            "warmup": warmup,
            "load_before": load_before,
            "step_s": rounds,
            "ratio_to_plain": summary,
        }
        print(model, {name: f"{s['median']:.3f} ({s['low']:.3f} to {s['high']:.3f})" for name, s in summary.items()})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
