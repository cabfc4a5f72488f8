"""Seeds: one for every use, none of them alike."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worldsize.plan.streams import stream_seed

WHERE = st.tuples(*[st.integers(0, 2**40)] * 4, st.sampled_from(["pass", "example", "order", "update"]))


def test_seeds_of_neighbouring_uses_differ_also_in_the_32_bits_that_generators_keep():
    uses = list(itertools.product(range(3), range(4), range(20), range(20), ["pass", "example"]))
    seeds = {stream_seed(*use) & 0xFFFF_FFFF for use in uses}
    assert len(uses) == 9600
    assert len(seeds) >= len(uses) - 1  # by chance, one pair in 90 such sets is alike


@given(WHERE, WHERE)
def test_two_uses_have_two_seeds(one, other):
    assert (stream_seed(*one) == stream_seed(*other)) == (one == other)


@given(WHERE)
def test_a_seed_fits_every_generator(where):
    assert 0 <= stream_seed(*where) < 2**63


def test_a_seed_is_the_same_on_every_machine():
    assert stream_seed(1, 2, 3, 4, "pass") == 2089750014645034661
