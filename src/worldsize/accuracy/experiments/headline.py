"""Sixteen times the batch at equal epochs: what is lost when nothing changes, and what brings it back."""

from typing import Any

from worldsize.accuracy import trials
from worldsize.accuracy.bench import Bench
from worldsize.accuracy.experiment import Experiment, Finding
from worldsize.accuracy.variants import accuracies, against, capital, in_points, strips, verdicts
from worldsize.report.markup import Html

MARGIN = 0.005
EPOCHS = 12
REFERENCE, NAIVE, LINEAR = "batch 16", "batch 256, nothing changed", "batch 256, linear rule, warm-up"
REFERENCE_RATES = (0.0125, 0.025, 0.05)
LAYERWISE = {"lars": (0.8, 1.6, 3.2), "lamb": (0.015, 0.03, 0.06), "novograd": (0.015, 0.03, 0.06)}


def settings(bench: Bench, **changes: Any) -> dict[str, Any]:
    """The flags of `worldsize train` that all variants share."""
    epochs = 2 if bench.quick else EPOCHS
    common = {"model": "cnn", "data": "fashion-14", "epochs": epochs, "evaluate_every": epochs, "reference_batch": 16}
    return common | {"batch_per_replica": 16, "warmup": 0.5, "drop_short": True} | changes


def measure(bench: Bench) -> dict[str, Any]:
    """Tune the reference's rate and the layer-wise optimizers on other seeds; then every variant with every seed."""
    reference = settings(bench, replicas=1)
    rates = (0.05,) if bench.quick else REFERENCE_RATES
    rate = bench.tune(trials.training, {"": reference}, "lr", {"": rates}, trials.error_of, seeds=2)[""]
    grown = settings(bench, replicas=16, warmup=0.5 if bench.quick else 3)
    layerwise = {name: grown | {"optimizer": name, "lr_rule": "none"} for name in LAYERWISE}
    grids = {name: values[:1] if bench.quick else values for name, values in LAYERWISE.items()}
    best = bench.tune(trials.training, layerwise, "lr", grids, trials.error_of)
    tuned = {name: task | {"lr": best[name]} for name, task in layerwise.items()}
    chosen = bench.best(trials.training, tuned, trials.error_of, seeds=1 if bench.quick else 3)
    found = bench.each(
        trials.training,
        {
            REFERENCE: reference | {"lr": rate},
            NAIVE: settings(bench, replicas=16) | {"lr": rate, "lr_rule": "none"},
            LINEAR: grown | {"lr": rate, "lr_rule": "linear"},
            f"batch 256, {chosen.upper()}": tuned[chosen],
        },
    )
    return {"rate": rate, "layerwise": best, "chosen": chosen, "accuracy": accuracies(found)}


def judge(measured: dict[str, Any]) -> Finding:
    accuracy = measured["accuracy"]
    loss = against(accuracy, REFERENCE, NAIVE, MARGIN)
    told = {verdict.second: verdict for verdict in verdicts(accuracy, REFERENCE, MARGIN)}
    remedies = [verdict for name, verdict in told.items() if name != NAIVE]
    equal = [verdict for verdict in remedies if verdict.answer == "equivalent"]
    shown = equal or [max(remedies, key=lambda verdict: verdict.difference.mean)]
    none = "" if equal else "No remedy is shown to be within the margin. "
    return Finding(
        holds=told[NAIVE].answer == "worse" and bool(equal),
        sentence=f"With nothing changed sixteen times the batch costs {in_points(loss)}. {none}"
        + " ".join(capital(verdict.sentence) for verdict in shown),
    )


def draw(measured: dict[str, Any]) -> list[Html]:
    return [
        strips(
            "Sixteen times the batch, the same number of epochs",
            "One dot per seed. The reference's rate and the layer-wise optimizers' rates were chosen on other seeds.",
            measured["accuracy"],
            REFERENCE,
        )
    ]


EXPERIMENT = Experiment(
    title="Sixteen times the batch, and the accuracy kept",
    question="What does sixteen times the batch cost in accuracy at equal epochs, and what brings it back?",
    setting="Small conv net with batch norm on Fashion-MNIST at 14x14 pixels (10,000 images), 12 epochs, cosine "
    "schedule, SGD with momentum 0.9 at batch 16; then 16 replicas of 16 with nothing changed, with the linear rule "
    "and 3 epochs of warm-up, and with the best of LARS, LAMB and NovoGrad.",
    prediction="Nothing changed costs more than half a point of accuracy; at least one remedy is equivalent to the "
    "reference within half a point.",
    source="Goyal et al., arXiv:1706.02677; You et al., arXiv:1708.03888 and arXiv:1904.00962.",
    passes="`compare` calls the unchanged variant worse by more than 0.5 points, and at least one remedy equivalent "
    "within 0.5 points (two one-sided t-tests at 0.05, Holm over three comparisons, paired by seed).",
    seeds=10,
    measure=measure,
    judge=judge,
    draw=draw,
)
