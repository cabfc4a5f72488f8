"""Which example goes to which replica: every example once, in the order that torch's sampler has."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from worldsize.plan.shards import Epoch, around, order, spans

COUNTS = st.integers(1, 400)
SMALL = st.integers(1, 13)


def plan(examples: int, replicas: int, batch: int, keep_short: bool = True) -> Epoch:
    return Epoch(examples=examples, replicas=replicas, batch_per_replica=batch, keep_short=keep_short)


def read(epoch: Epoch, places: torch.Tensor) -> list[list[list[int]]]:
    """Per step and replica, the examples read."""
    replicas = range(epoch.replicas)
    return [[epoch.shard(places, step, replica).tolist() for replica in replicas] for step in range(epoch.steps)]


@given(COUNTS, SMALL, SMALL, st.integers(0, 50), st.integers(0, 2**40))
def test_every_example_is_read_exactly_once_an_epoch(examples, replicas, batch, epoch, seed):
    steps = read(plan(examples, replicas, batch), order(examples, epoch, seed))
    assert sorted(place for step in steps for shard in step for place in shard) == list(range(examples))


@given(COUNTS, SMALL, SMALL, st.integers(0, 5))
def test_without_the_short_batch_every_step_is_whole_and_less_than_a_batch_is_lost(examples, replicas, batch, epoch):
    short = plan(examples, replicas, batch, keep_short=False)
    steps = read(short, order(examples, epoch, 0))
    found = [place for step in steps for shard in step for place in shard]
    assert len(found) == len(set(found)) == examples // (replicas * batch) * replicas * batch
    assert all(len(shard) == batch for step in steps for shard in step)


@given(COUNTS, SMALL, SMALL)
def test_sizes_say_what_is_read_and_add_up(examples, replicas, batch):
    epoch = plan(examples, replicas, batch)
    steps = read(epoch, torch.arange(examples))
    for step, shards in enumerate(steps):
        assert epoch.sizes(step) == [len(shard) for shard in shards]
        assert sum(epoch.sizes(step)) == epoch.size(step)
        assert epoch.active(step) == sum(1 for shard in shards if shard)
        assert all(shards[: epoch.active(step)]), "replicas with examples are the first ones"
    assert sum(epoch.size(step) for step in range(epoch.steps)) == examples
    assert epoch.smallest_shard() == min(len(shard) for shards in steps for shard in shards if shard)


@given(SMALL, SMALL, st.integers(1, 30), st.integers(0, 20), st.integers(0, 1000))
def test_the_order_is_that_of_the_distributed_sampler_where_it_does_not_pad(replicas, batch, each, epoch, seed):
    examples = replicas * each
    steps = read(plan(examples, replicas, batch), order(examples, epoch, seed))
    for replica in range(replicas):
        sampler = DistributedSampler(range(examples), num_replicas=replicas, rank=replica, seed=seed)
        sampler.set_epoch(epoch)
        assert [place for shards in steps for place in shards[replica]] == list(sampler)


@given(SMALL, SMALL, st.integers(1, 5))
def test_what_a_step_reads_depends_only_on_the_global_batch(replicas, batch, factor):
    """More replicas of fewer examples read the same examples together."""
    one = read(plan(300, replicas * factor, batch), order(300, 3, 7))
    other = read(plan(300, replicas, batch * factor), order(300, 3, 7))
    assert [sorted(itertools.chain(*step)) for step in one] == [sorted(itertools.chain(*step)) for step in other]


@given(st.integers(2, 50), st.integers(0, 6), st.integers(0, 6))
def test_orders_differ_between_epochs_seeds_and_streams(examples, epoch, seed):
    first = order(200, epoch, seed)
    assert not torch.equal(first, order(200, epoch + 1, seed))
    assert not torch.equal(first, order(200, epoch, seed + 1))
    assert not torch.equal(first, order(200, epoch, seed, stream=1))
    assert not torch.equal(order(200, epoch, seed, stream=1), order(200, epoch, seed, stream=2))
    assert torch.equal(first, order(200, epoch, seed))


@given(st.integers(1, 40), st.integers(0, 9), st.integers(0, 200), st.integers(1, 120))
def test_an_endless_set_is_the_same_from_wherever_one_starts(examples, seed, start, count):
    whole = around(examples, seed, 1, 0, start + count)
    assert around(examples, seed, 1, start, count).tolist() == whole[start:].tolist()


@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 4))
def test_an_endless_set_gives_every_example_once_a_round(examples, seed, rounds):
    places = around(examples, seed, 1, 0, rounds * examples).view(rounds, examples)
    assert places.sort(dim=1).values.tolist() == [list(range(examples))] * rounds


@given(COUNTS, SMALL)
def test_an_evaluation_reads_every_example_once_in_fixed_blocks(examples, block):
    blocks = list(spans(examples, block))
    assert [place for span in blocks for place in span] == list(range(examples))
    assert {len(span) for span in blocks[:-1]} <= {block}


def test_no_whole_batch_means_no_step():
    assert plan(7, 4, 2, keep_short=False).steps == 0
    assert plan(7, 4, 2, keep_short=False).smallest_shard() == 0


@pytest.mark.parametrize(("examples", "sizes"), [(9, [3, 2, 2, 2]), (3, [1, 1, 1, 0]), (12, [3, 3, 3, 3])])
def test_a_short_batch_is_dealt_out_evenly(examples, sizes):
    assert plan(examples, 4, 3).sizes(0) == sizes
