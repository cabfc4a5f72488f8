"""Layer-wise optimizers: a gain at both batches holds, a gain at one does not."""

from worldsize.accuracy.experiments import layerwise

LEVEL = [0.84, 0.842, 0.838, 0.841, 0.839]


def judged(small: float, large: float):
    accuracy = {}
    for batch, gain in (("batch 512", small), ("batch 2048", large)):
        accuracy[f"{batch}, sgd"] = LEVEL
        accuracy[f"{batch}, lars"] = [a - 0.05 for a in LEVEL]
        accuracy[f"{batch}, lamb"] = [a + gain + 0.001 * (-1) ** i for i, a in enumerate(LEVEL)]
    chosen = {batch: f"{batch}, lamb" for batch in ("batch 512", "batch 2048")}
    return layerwise.judge({"accuracy": accuracy, "chosen": chosen, "at_the_edge_of_its_rates": ["batch 512, lars"]})


def test_both_batches_have_to_gain():
    assert judged(0.01, 0.02).holds
    assert not judged(0.0, 0.02).holds
    assert not judged(0.01, -0.01).holds
    assert judged(0.01, 0.02).sentence.count("LAMB") == 2
