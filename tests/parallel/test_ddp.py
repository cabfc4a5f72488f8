"""`ddp` sync is stock DDP: bit for bit a script written by hand, and close to `exact`."""

import numpy as np
import pytest
from parallel.worlds import our_weights, stock_weights
from train.jobs import Case, one_result

from worldsize.errors import Misuse
from worldsize.run.pool import run_workers


@pytest.mark.parametrize(("net", "optimizer"), [("conv", "sgd"), ("mlp", "adamw")])
@pytest.mark.parametrize("workers", [2, 3])
def test_with_a_replica_a_worker_the_weights_are_those_of_a_stock_script_bit_for_bit(net, optimizer, workers):
    # Whole batches in each epoch, then a short one that all workers share equally.
    case = Case(net=net, optimizer=optimizer, replicas=workers, batch_per_replica=4, examples=workers * 11, sync="ddp")
    stock = set(run_workers(stock_weights, case, workers=workers))
    ours = {found["weights_sha256"] for found in run_workers(our_weights, case, workers=workers)}
    assert ours == stock
    assert len(stock) == 1


@pytest.mark.parametrize("examples", [40, 43, 46])
@pytest.mark.parametrize("workers", [1, 2])
def test_with_several_replicas_a_worker_it_computes_what_exact_does_but_for_rounding(workers, examples):
    """Short batches too: 43 examples on 4 replicas of 4 leave 3, 3, 3 and 2."""
    case = Case(net="smooth", replicas=4, batch_per_replica=4, examples=examples)
    exact = run_workers(our_weights, case, workers=workers)[0]["weights"]
    for found in run_workers(our_weights, Case(**{**vars(case), "sync": "ddp"}), workers=workers):
        for name, weight in found["weights"].items():
            np.testing.assert_allclose(weight, exact[name], rtol=1e-4, atol=1e-6)


def test_all_workers_agree_and_their_evaluation_does():
    one_result([Case(sync="ddp", examples=60), Case(net="transformer", sync="ddp", examples=60)], workers=[2])


def test_a_worker_that_would_be_without_examples_is_refused_before_anything_waits():
    case = Case(net="mlp", sync="ddp", replicas=4, batch_per_replica=4, examples=17)
    with pytest.raises(Misuse, match=r"the last step has examples for 1 of 4 replicas.*use sync 'exact'") as raised:
        run_workers(our_weights, case, workers=2)
    assert "\n" not in str(raised.value)
    run_workers(our_weights, case, workers=1)
