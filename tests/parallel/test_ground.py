"""What `exact` stands on is set, compared between workers, and looked at again before each loop."""

import pytest
import torch
from parallel.grounds import differ, facts_and_threads, more_threads

from worldsize.errors import Misuse
from worldsize.run.pool import run_workers


def test_every_worker_gets_one_thread_and_the_same_facts():
    found = run_workers(facts_and_threads, workers=3)
    assert found == [found[0]] * 3
    facts, threads = found[0]
    assert threads == 1
    assert facts["torch"] == torch.__version__
    assert facts.keys() == {"torch", "device", "instructions"}


def test_more_threads_after_join_are_refused():
    with pytest.raises(Misuse) as raised:
        run_workers(more_threads, "exact", workers=1)
    assert str(raised.value).startswith("this worker now has 2 intra-op threads, but `exact` needs one")
    assert str(raised.value).endswith("drop the call of torch.set_num_threads")


def test_ddp_does_not_mind_threads():
    assert run_workers(more_threads, "ddp", workers=1) == [True]


def test_workers_that_stand_on_different_ground_are_told_which_and_how():
    with pytest.raises(Misuse) as raised:
        run_workers(differ, workers=3)
    assert str(raised.value) == (
        "the workers differ in torch: worker 0 has '2.13', worker 2 has '2.14'; "
        "start all workers from the same program, build and kind of machine"
    )
