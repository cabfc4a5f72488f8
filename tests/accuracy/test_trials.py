"""Trials: as `worldsize train` does it, a target is found at the step at which it is reached, divergence is an "
"outcome."""

import torch

from worldsize.accuracy import trials
from worldsize.train.loop import train_worker
from worldsize.train.settings import Run

SMALL = {"model": "mlp", "data": "generated:64:1x8x8:4", "epochs": 2, "replicas": 2, "batch_per_replica": 8}


def test_a_training_is_what_worldsize_train_does():
    outcome = trials.training(**SMALL, seed=3)
    result = train_worker(Run(**SMALL, seed=3, workers=1, device="cpu"), None, None, lambda message: None)
    assert outcome["weights_sha256"] == result["weights_sha256"]
    assert [point["epoch"] for point in outcome["curve"]] == [1, 2]
    assert outcome["curve"][-1]["accuracy"] == outcome["accuracy"] == trials.accuracy_of(outcome)


def test_a_training_that_diverges_is_as_good_as_guessing():
    outcome = trials.training(**SMALL, seed=0, lr=1e30, lr_rule="none", warmup=0)
    assert outcome["diverged"]
    assert trials.accuracy_of(outcome) == 0.1
    assert trials.error_of(outcome) == 0.9


def test_steps_to_targets_do_not_depend_on_what_else_is_asked():
    asked = {"batch": 64, "rate": 0.2, "most_steps": 60, "seed": 0}
    both = trials.to_targets(targets=[0.4, 0.6], **asked)
    one = trials.to_targets(targets=[0.6], **asked)
    assert 1 < both["steps"]["0.4"] < both["steps"]["0.6"] == one["steps"]["0.6"]
    watched = trials.to_targets(targets=[0.4, 0.6], **asked, replicas=4)
    assert watched["noise_scale"]["0.6"] > 0
    assert trials.to_targets(targets=[0.999], **asked)["steps"] == {"0.999": None}


def test_a_walk_comes_up_at_the_steps_asked_for_across_epochs():
    from worldsize.train import data, models
    from worldsize.train.job import join

    sets = data.load(SMALL["data"])
    net = models.build("mlp", sets)
    with join(net, torch.optim.SGD(net.parameters(), 0.1), replicas=1, batch_per_replica=16) as job:
        steps = list(trials.walk(job, sets.train, models.loss_of(sets, net), [1, 4, 5, 9]))
        assert (steps, job.position.epoch, job.position.step) == ([1, 4, 5, 9], 2, 1)


def test_a_subset_has_the_examples_at_its_places():
    part = trials.load("fashion-14").train
    few = trials.subset(part, torch.tensor([5, 2]))
    assert len(few) == 2
    assert torch.equal(few.take(torch.tensor([0]))[0], part.take(torch.tensor([5]))[0])
