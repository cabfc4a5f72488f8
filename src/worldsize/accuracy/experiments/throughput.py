"""Examples a second, and seconds to an accuracy, against the batch."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.experiments import steps_to_target
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.markup import Html
from worldsize.train import models
from worldsize.train.job import join

TARGET = steps_to_target.TARGETS[-1]
BATCHES = {"mlp": (8, 32, 128, 512, 2048, 8192), "cnn": (8, 32, 128, 512)}


def paces(*, model: str, batches: Sequence[int], rounds: int) -> dict[str, Any]:
    """Seconds of a step at each batch, in turns: every round takes one step of each."""
    sets = trials.load("fashion-14")
    walks = {}
    jobs = []
    for batch in batches:
        torch.manual_seed(0)
        net = models.build(model, sets)
        job = join(net, torch.optim.SGD(net.parameters(), 1e-4), replicas=1, batch_per_replica=batch, keep_short=False)
        jobs.append(job)
        walks[batch] = trials.walk(job, sets.train, models.loss_of(sets, net), list(range(1, rounds + 3)))
    found: dict[int, list[float]] = {batch: [] for batch in batches}
    for turn in range(rounds + 2):
        for batch, steps in walks.items():
            since = time.perf_counter()
            next(steps)
            if turn > 1:  # the first ones pay for memory and for code not yet read
                found[batch].append(time.perf_counter() - since)
    for job in jobs:
        job.close()
    return {"step_s": {str(batch): [median(times), *_quartiles(times)] for batch, times in found.items()}}


def _quartiles(times: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(times)
    return ranked[len(ranked) // 4], ranked[-1 - len(ranked) // 4]


def measure(bench: Bench) -> dict[str, Any]:
    """The pace of two models, and the steps to the target that another experiment counts."""
    rounds = 5 if bench.quick else 60
    wanted = {"mlp": (64, 256, 1024), "cnn": (8, 32, 128)} if bench.quick else BATCHES
    tasks = [{"model": model, "batches": list(batches), "rounds": rounds} for model, batches in wanted.items()]
    found = bench.run(paces, tasks, alone=True)
    return {
        "step_s": {task["model"]: one["step_s"] for task, one in zip(tasks, found, strict=True)},
        "batches": steps_to_target.at_best_rates(bench),
    }


def speeds(measured: dict[str, Any], model: str) -> dict[int, float]:
    """Examples a second at each batch."""
    return {int(batch): int(batch) / times[0] for batch, times in measured["step_s"][model].items()}


def seconds_to_target(measured: dict[str, Any]) -> dict[int, float]:
    """Steps to the target times the seconds of a step."""
    steps = steps_to_target.means(measured, TARGET)
    return {batch: steps[batch] * measured["step_s"]["mlp"][str(batch)][0] for batch in sorted(steps)}


def judge(measured: dict[str, Any]) -> Finding:
    speed, needed = speeds(measured, "mlp"), seconds_to_target(measured)
    if len(needed) < 3:
        return Finding(
            holds=False, sentence=f"{len(needed)} batches reached {TARGET:g}, and it takes 3 to see a valley."
        )
    (small, slow), (large, fast) = min(speed.items()), max(speed.items())
    before_last = sorted(speed)[-2]
    fastest = min(needed, key=lambda batch: needed[batch])
    return Finding(
        holds=fast / slow > 3 and speed[large] / speed[before_last] < 1.5 and fastest not in (min(needed), max(needed)),
        sentence=f"The MLP reads {slow:,.0f} examples a second at batch {small} and {fast:,.0f} at {large}, where "
        f"{large // before_last} times the batch brings {speed[large] / speed[before_last]:.2f} times the speed; "
        f"accuracy {TARGET:g} is there soonest at batch {fastest}, in {needed[fastest]:.2f} s against "
        f"{needed[min(needed)]:.2f} s at {min(needed)} and {needed[max(needed)]:.2f} s at {max(needed)}.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    lines = []
    for i, (model, rows) in enumerate(measured["step_s"].items()):
        lines.append(
            Series(
                label=model,
                points=[(int(batch), int(batch) / times[0]) for batch, times in rows.items()],
                band=[(int(batch), int(batch) / times[2], int(batch) / times[1]) for batch, times in rows.items()],
                colour=i,
                markers=True,
            )
        )
    needed = seconds_to_target(measured)
    return [
        line_chart(
            "Speed saturates",
            "Examples a second on one core, steps of all batches in turns; median and middle half. A step costs a "
            "fixed time and a time per example: once the second outweighs the first, a larger batch buys no speed.",
            Axis(title="global batch", log=True),
            Axis(title="examples a second", log=True),
            lines,
        ),
        line_chart(
            "The shortest way to an accuracy is at neither end",
            f"Seconds of training to test accuracy {TARGET:g}: steps at the best rate of each batch, times the "
            "seconds of a step.",
            Axis(title="global batch", log=True),
            Axis(title="seconds", log=True),
            [Series(label="mlp", points=list(needed.items()), markers=True)],
        ),
    ]


EXPERIMENT = Experiment(
    title="Throughput saturates, and time to accuracy has a valley",
    question="Which batch is fastest in examples a second, and which in seconds to an accuracy?",
    setting="The MLP and the small conv net on Fashion-MNIST at 14x14 pixels on one core, steps timed in turns; "
    f"steps to accuracy {TARGET:g} from experiment steps-to-target, at the best of five rates for each batch.",
    prediction="Throughput rises with the batch until the fixed cost of a step no longer counts; time to accuracy is "
    "shortest in between, since beyond the critical batch more examples are read for the same.",
    source="Kurth et al., arXiv:1810.01993 (throughput); Shallue et al., arXiv:1811.03600 (steps).",
    passes="The MLP's throughput rises more than 3 times in all and less than 1.5 times between the two largest "
    "batches, and the shortest time is neither at the smallest nor at the largest batch.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
