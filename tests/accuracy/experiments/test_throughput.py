"""Throughput: every batch is timed in turns, a valley holds, a slope does not."""

from worldsize.accuracy.experiments import throughput


def measured(times: dict[int, float], steps: dict[int, int]) -> dict:
    return {
        "step_s": {"mlp": {str(batch): [s, s, s] for batch, s in times.items()}},
        "batches": {
            str(batch): {"rate": 0.1, "steps": {"0.8": [n], "0.7": [n], "0.75": [n]}} for batch, n in steps.items()
        },
    }


TIMES = {batch: 1e-3 + 1e-5 * batch for batch in (8, 128, 2048, 8192)}
VALLEY = {8: 4000, 128: 350, 2048: 200, 8192: 200}


def test_saturation_and_a_valley_hold():
    assert throughput.judge(measured(TIMES, VALLEY)).holds
    assert len(throughput.draw(measured(TIMES, VALLEY))) == 2


def test_no_saturation_or_no_valley_fails():
    assert not throughput.judge(measured(dict.fromkeys(TIMES, 1e-3), VALLEY)).holds
    assert not throughput.judge(measured(TIMES, dict.fromkeys(VALLEY, 300))).holds


def test_every_batch_is_timed():
    found = throughput.paces(model="mlp", batches=(8, 16), rounds=3)["step_s"]
    assert list(found) == ["8", "16"]
    assert all(0 < low <= middle <= high for middle, low, high in found.values())
