"""LARS, LAMB and NovoGrad against SGD at sixteen and sixty-four times the batch, each at its best rate."""

from collections.abc import Sequence
from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import accuracies, against, in_points, strips
from worldsize.report.markup import Html

EPOCHS = 8
GROWN = {16: "batch 512", 64: "batch 2048"}
LAYERWISE = ("lars", "lamb", "novograd")
RATES: dict[str, dict[int, Sequence[float]]] = {
    "sgd": {16: (0.2, 0.4, 0.8, 1.6), 64: (0.2, 0.4, 0.8, 1.6)},
    "lars": {16: (0.8, 1.6, 3.2), 64: (1.6, 3.2, 6.4)},
    "lamb": {16: (0.03, 0.06, 0.12), 64: (0.03, 0.06, 0.12)},
    "novograd": {16: (0.03, 0.06, 0.12), 64: (0.03, 0.06, 0.12)},
}


def measure(bench: Bench) -> dict[str, Any]:
    """Each optimizer's best rate at each batch, then its accuracy with every seed."""
    epochs = 2 if bench.quick else EPOCHS
    variants: dict[str, dict[str, Any]] = {}
    rates: dict[str, Sequence[float]] = {}
    for replicas, batch in list(GROWN.items())[: 1 if bench.quick else None]:
        for name, grid in RATES.items():
            variants[f"{batch}, {name}"] = {
                "model": "cnn",
                "data": "fashion-14",
                "epochs": epochs,
                "evaluate_every": epochs,
                "replicas": replicas,
                "batch_per_replica": 32,
                "optimizer": name,
                "lr_rule": "none",
                "warmup": epochs / 4,
            }
            rates[f"{batch}, {name}"] = grid[replicas][: 1 if bench.quick else None]
    best = bench.tune(trials.training, variants, "lr", rates, trials.error_of)
    tuned = {name: task | {"lr": best[name]} for name, task in variants.items()}
    chosen = {
        batch: bench.best(
            trials.training,
            {name: task for name, task in tuned.items() if name in [f"{batch}, {one}" for one in LAYERWISE]},
            trials.error_of,
            seeds=1 if bench.quick else 3,
        )
        for batch in GROWN.values()
        if f"{batch}, sgd" in tuned
    }
    found = bench.each(trials.training, tuned)
    edge = [name for name, rate in best.items() if rate in (rates[name][0], rates[name][-1])]
    return {"rates": best, "chosen": chosen, "at_the_edge_of_its_rates": edge, "accuracy": accuracies(found)}


def judge(measured: dict[str, Any]) -> Finding:
    accuracy, holds, said = measured["accuracy"], True, []
    for batch, best in measured["chosen"].items():
        gain = against(accuracy, f"{batch}, sgd", best, 0.005)
        holds = holds and gain.interval(0.95)[0] > 0
        said.append(f"at {batch} {best.partition(', ')[2].upper()} is the best of them, {in_points(gain)} against SGD")
    edge = ", ".join(
        f"{name.partition(', ')[2].upper()} at {name.partition(', ')[0]}"
        for name in measured["at_the_edge_of_its_rates"]
    )
    more = f" The best rate was the last one tried for {edge}." if edge else ""
    return Finding(holds=holds, sentence=f"Each at the best of its rates: {'; '.join(said)}.{more}")


def draw(measured: dict[str, Any]) -> list[Html]:
    accuracy, figures = measured["accuracy"], []
    for batch in GROWN.values():
        rows = {
            f"{name.partition(', ')[2].upper()}, rate {measured['rates'][name]:g}": values
            for name, values in accuracy.items()
            if name.startswith(f"{batch},")
        }
        if rows:
            about = "8 epochs with 2 of warm-up, each optimizer at the best of its rates. One dot per seed."
            figures.append(strips(f"Optimizers at {batch}", about, rows, next(iter(rows))))
    return figures


EXPERIMENT = Experiment(
    title="Layer-wise optimizers against SGD at large batches",
    question="Do LARS, LAMB and NovoGrad keep more accuracy than SGD at 16 and 64 times the batch?",
    setting="Small conv net with batch norm on Fashion-MNIST at 14x14 pixels (10,000 images), 8 epochs, cosine "
    "schedule, 2 epochs of warm-up; 16 and 64 replicas of 32. Each optimizer at the best of three or four rates, "
    "chosen on a seed of its own, and the best of the three on two more.",
    prediction="At both batches the best layer-wise optimizer is ahead of SGD.",
    source="You et al., arXiv:1708.03888 (LARS) and arXiv:1904.00962 (LAMB); Ginsburg et al., arXiv:1905.11286 "
    "(NovoGrad). Nado et al., arXiv:2102.06356, find no advantage over well-tuned SGD.",
    passes="The gain over SGD is above zero at both batches (95 % interval over seeds).",
    seeds=5,
    measure=measure,
    judge=judge,
    draw=draw,
)
