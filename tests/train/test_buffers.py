"""Every replica has buffers of its own, wherever it is computed; evaluation uses their mean."""

import pytest
import torch
from torch import nn
from train.shelves import Counter, after_two_rounds

from worldsize.errors import Misuse
from worldsize.parallel.world import join_world
from worldsize.run.pool import run_workers
from worldsize.train.buffers import ReplicaBuffers


@pytest.mark.parametrize("replicas", [4, 6])
def test_buffers_do_not_depend_on_the_number_of_workers(replicas):
    expected = run_workers(after_two_rounds, replicas, workers=1)[0]
    for workers in (2, 3, 4):
        assert run_workers(after_two_rounds, replicas, workers=workers) == [expected] * workers


def test_the_mean_is_over_all_replicas_and_constants_keep_their_bits():
    found = run_workers(after_two_rounds, 6, workers=1)[0]
    untouched = {name: buffer.tolist() for name, buffer in Counter().named_buffers()}
    # Replica v has seen 0.1 v, then 0.1 v + 1: together 0.2 v + 1, in the mean over 0 to 5: 1.5.
    assert found["mean"]["mean"] == pytest.approx([0.1 + 1.5, 1 / 3 + 1.5])
    assert found["mean"]["replaced"] == pytest.approx(1.5)
    assert found["mean"]["steps"] == 2
    for name in ("mask", "low", "turn", "constant"):
        assert found["mean"][name] == untouched[name]
    assert found["first"]["mean"] == pytest.approx([1.1, 4 / 3])
    assert found["first"]["replaced"] == 1.0
    assert [row[1] for row in found["all"]] == [2] * 6


def test_a_model_without_buffers_costs_nothing():
    world = join_world()
    kept = ReplicaBuffers(nn.Linear(1, 1), world, 4)
    kept.enter(3)
    kept.settle("mean")
    assert kept.gather() == [[], [], [], []]
    world.leave()


def test_the_model_holds_the_buffers_for_evaluation_until_the_next_replica_enters():
    world = join_world()
    model = nn.BatchNorm1d(2)
    kept = ReplicaBuffers(model, world, 2)
    kept.enter(1)
    model.running_mean += 4
    for _ in range(2):  # the second time changes nothing
        kept.settle("mean")
        assert model.running_mean.tolist() == [2, 2]
    kept.enter(1)
    assert model.running_mean.tolist() == [4, 4]
    world.leave()


def test_a_buffer_that_appears_later_is_refused():
    world = join_world()
    model = nn.BatchNorm1d(2)
    kept = ReplicaBuffers(model, world, 2)
    model.register_buffer("late", torch.zeros(1))
    with pytest.raises(Misuse, match="buffer late appeared after"):
        kept.check(model)
    world.leave()


def test_batch_norm_normalises_each_replica_by_itself():
    """Two replicas with different means: each running mean is that of its own examples."""
    world = join_world()
    model = nn.BatchNorm1d(1, momentum=1.0)
    kept = ReplicaBuffers(model, world, 2)
    for replica in (0, 1):
        kept.enter(replica)
        model(torch.tensor([[10.0 * replica], [10.0 * replica + 2]]))
    assert [row[0].item() for row in kept.gather()] == [1.0, 11.0]
    world.leave()


def test_apart_each_replica_has_tensors_of_its_own_which_a_graph_may_keep():
    world = join_world()
    model = Counter()
    model.also = nn.Module()
    model.also.register_buffer("mean", model.mean)  # one buffer in two places
    kept = ReplicaBuffers(model, world, 3)
    at_home = list(model.buffers())
    with kept.apart() as put:
        seen = []
        for replica in (0, 1):
            put(replica)
            seen.append(model.also.mean)
        for turn in (1, 2):
            for replica in (0, 1):
                put(replica)
                model.see(turn + 10 * replica)
        assert seen[0].tolist() == pytest.approx([3.1, 3 + 1 / 3])
        assert seen[1].tolist() == pytest.approx([23.1, 23 + 1 / 3])
    assert all(now is before for now, before in zip(model.buffers(), at_home, strict=True))
    assert [(row[0][0].item(), row[-1].item()) for row in kept.gather()] == [
        (pytest.approx(0.1 + seen), seen) for seen in (3, 23, 0)
    ]
    kept.enter(1)
    assert model.steps == 2
    world.leave()
