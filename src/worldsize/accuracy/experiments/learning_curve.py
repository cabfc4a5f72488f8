"""How the error falls with more examples: a power law, and how sure its exponent is."""

from typing import Any

import torch

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import curve
from worldsize.plan.fits import PowerLaw, fit_power_law
from worldsize.plan.statistics import jackknife
from worldsize.report.axis import Axis
from worldsize.report.charts import Series, line_chart
from worldsize.report.markup import Html
from worldsize.train import models
from worldsize.train.job import join

SIZES = (156, 312, 625, 1250, 2500, 5000, 10_000)
STEPS, BATCH, RATE = 3_000, 32, 0.05
CHOOSING = 5_000  # test images that choose when to stop; the others say how good it was


def train_on(*, examples: int, steps: int, seed: int) -> dict[str, Any]:
    """Train on so many examples, drawn by the seed; the error where an early stop would have ended."""
    sets = trials.load("fashion-14")
    torch.manual_seed(seed)
    drawn = torch.randperm(len(sets.train), generator=torch.Generator().manual_seed(seed))[:examples]
    part = trials.subset(sets.train, drawn)
    choosing, judging = (trials.subset(sets.test, places) for places in torch.arange(len(sets.test)).split(CHOOSING))
    net = models.build("mlp", sets)
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
    best = (1.0, 1.0)
    with join(net, optimizer, replicas=1, batch_per_replica=BATCH, seed=seed) as job:
        loss, measures = models.loss_of(sets, net), models.measures_of(sets, net)
        for _ in trials.walk(job, part, loss, [steps * i // 15 for i in range(1, 16)]):
            errors = [1 - job.evaluate(measures, side)["accuracy"] for side in (choosing, judging)]
            best = min(best, (errors[0], errors[1]), key=lambda pair: pair[0])
    return {"error": best[1]}


def measure(bench: Bench) -> dict[str, Any]:
    """The error at each size with each seed."""
    sizes, steps = ((625, 2500, 10_000), 60) if bench.quick else (SIZES, STEPS)
    found = bench.each(train_on, {str(size): {"examples": size, "steps": steps} for size in sizes})
    return {"errors": {name: [one["error"] for one in outcomes] for name, outcomes in found.items()}}


def law(measured: dict[str, Any]) -> tuple[PowerLaw, tuple[float, float]]:
    """The law through the means, and the 95 % interval of its exponent over seeds."""
    sizes, rows = [int(name) for name in measured["errors"]], list(measured["errors"].values())

    def fitted(picked: list[int]) -> PowerLaw:
        return fit_power_law(sizes, [sum(row[i] for i in picked) / len(picked) for row in rows])

    seeds = list(range(len(rows[0])))
    return fitted(seeds), jackknife(len(seeds), lambda picked: fitted(picked).exponent)


def judge(measured: dict[str, Any]) -> Finding:
    found, (low, high) = law(measured)
    misses = [sum(row) / len(row) / found.error(int(name)) for name, row in measured["errors"].items()]
    worst = max(abs(miss - 1) for miss in misses)
    return Finding(
        holds=worst < 0.05 and low > 0,
        sentence=f"Error = {found.factor:.3g} x examples^-{found.exponent:.2f} + {found.floor:.3f} (exponent "
        f"{low:.2f} to {high:.2f}) passes within {100 * worst:.1f} % of every point.",
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    found, _ = law(measured)
    rows = {int(name): row for name, row in measured["errors"].items()}
    smooth = [min(rows) * (max(rows) / min(rows)) ** (i / 40) for i in range(41)]
    return [
        line_chart(
            "Twice the data, a fixed share off the error",
            "Each point a training with early stopping; mean over seeds and 95 % interval. Each seed draws its own "
            "part of the data.",
            Axis(title="examples to train on", log=True),
            Axis(title="error on images that chose nothing", log=True),
            [
                curve("measured", rows),
                Series(
                    label=f"{found.factor:.3g} m^-{found.exponent:.2f} + {found.floor:.3f}",
                    points=[(size, found.error(size)) for size in smooth],
                    colour=1,
                    style="dashed",
                ),
            ],
        )
    ]


EXPERIMENT = Experiment(
    title="Error falls as a power of the data",
    question="How does the error fall with the number of examples to train on?",
    setting="MLP with two hidden layers of 128 on 156 to 10,000 images of Fashion-MNIST at 14x14 pixels, 3,000 steps "
    "of batch 32, momentum 0.9; half of the test images choose when to stop, the other half are judged.",
    prediction="A power law with a floor: error = factor x examples^-exponent + floor.",
    source="Hestness et al., arXiv:1712.00409.",
    passes="The law passes within 5 % of every mean, and the exponent's 95 % interval lies above zero.",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
