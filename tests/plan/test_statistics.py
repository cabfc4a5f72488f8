"""Student's t against printed tables, equivalence against simulated truth, Holm, the seeds that are needed."""

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldsize.plan import statistics

# Upper quantiles of Student's t as tables print them (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
TABLE = [
    (0.95, 1, 6.314),
    (0.975, 1, 12.706),
    (0.95, 2, 2.920),
    (0.975, 4, 2.776),
    (0.9, 9, 1.383),
    (0.95, 9, 1.833),
    (0.99, 9, 2.821),
    (0.999, 9, 4.297),
    (0.95, 30, 1.697),
    (0.975, 100, 1.984),
]


@pytest.mark.parametrize(("chance", "freedom", "t"), TABLE)
def test_quantiles_are_those_of_the_table(chance, freedom, t):
    assert round(statistics.student_quantile(chance, freedom), 3) == t
    assert statistics.student_below(t, freedom) == pytest.approx(chance, abs=1e-4)


@given(st.floats(0.001, 0.999), st.floats(1, 300))
@example(0.5, 32.10562996566748)
def test_quantile_and_chance_undo_each_other_and_are_symmetric(chance, freedom):
    t = statistics.student_quantile(chance, freedom)
    assert statistics.student_below(t, freedom) == pytest.approx(chance, abs=1e-9)
    assert statistics.student_below(-t, freedom) == pytest.approx(1 - chance, abs=1e-9)


def test_two_one_sided_tests_give_the_worked_example():
    # Differences 1, 2, 3 with margin 5: mean 2, standard error 1/sqrt(3), two degrees of freedom.
    found = statistics.paired([0, 0, 0], [1, 2, 3], 5)
    assert (found.mean, found.freedom) == (2, 2)
    assert found.error == pytest.approx(3**-0.5)
    assert found.p_equivalent == pytest.approx(1 - statistics.student_below(3 * math.sqrt(3), 2))
    low, high = found.interval(0.9)
    assert (low, high) == pytest.approx((2 - 2.91999 / math.sqrt(3), 2 + 2.91999 / math.sqrt(3)), abs=1e-4)


def test_the_interval_lies_inside_the_margin_just_when_the_tests_say_so():
    dice = random.Random(1)
    for _ in range(200):
        first = [dice.gauss(0, 1) for _ in range(6)]
        second = [dice.gauss(0.3, 1.5) for _ in range(dice.choice([4, 6]))]
        test = statistics.paired if len(first) == len(second) else statistics.unpaired
        found = test(first, second, 1.5)
        low, high = found.interval(0.9)
        assert (found.p_equivalent < 0.05) == (low > -1.5 and high < 1.5)


@pytest.mark.parametrize("pairs", [True, False])
def test_a_difference_as_large_as_the_margin_is_called_equivalent_as_seldom_as_promised(pairs):
    dice, called, trials = random.Random(2), 0, 2000
    for _ in range(trials):
        first = [dice.gauss(0, 1) for _ in range(8)]
        second = [dice.gauss(2.0, 1) for _ in range(8)]
        called += (statistics.paired if pairs else statistics.unpaired)(first, second, 2.0).p_equivalent < 0.05
    assert 0.035 < called / trials < 0.065


@pytest.mark.parametrize(("pairs", "truth"), [(True, 0.0), (True, 0.4), (False, 0.0), (False, 0.4)])
def test_with_the_seeds_that_are_needed_four_in_five_show_equivalence(pairs, truth):
    dice = random.Random(3)
    spread = 1.0 if pairs else math.sqrt(2)
    guess = statistics.Difference(mean=truth, error=1.0, spread=spread, freedom=5, margin=1.0, paired=pairs, seeds=5)
    seeds = guess.seeds_needed(0.05, truth=truth)
    assert seeds is not None
    shown, trials = 0, 1000
    for _ in range(trials):
        if pairs:
            gaps = [dice.gauss(truth, 1) for _ in range(seeds)]
            found = statistics.paired([0] * seeds, gaps, 1.0)
        else:
            sides = [[dice.gauss(mean, 1) for _ in range(seeds)] for mean in (0, truth)]
            found = statistics.unpaired(*sides, 1.0)
        shown += found.p_equivalent < 0.05
    assert 0.75 < shown / trials < 0.9


def test_no_number_of_seeds_shows_equivalence_where_there_is_none():
    assert statistics.paired([0, 0, 0], [1, 2, 3], 2).seeds_needed(0.05) is None


def test_sets_without_any_spread_are_decided_by_their_means():
    same, other = [0.5, 0.5], [0.6, 0.6]
    assert statistics.paired(same, same, 0.01).p_equivalent == 0
    assert statistics.unpaired(same, other, 0.01).p_equivalent == 1
    assert statistics.unpaired(same, other, 0.01).p_beyond == 0
    assert statistics.paired(same, same, 0.01).effect == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_makes_stricter_and_keeps_the_order(chances):
    adjusted = statistics.holm(chances)
    assert all(chance <= strict <= 1 for chance, strict in zip(chances, adjusted, strict=True))
    assert adjusted[chances.index(min(chances))] == min(1.0, len(chances) * min(chances))
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_a_bootstrap_holds_the_mean_of_what_it_drew_from_and_is_the_same_twice():
    values = [1.0, 2.0, 3.0, 4.0, 10.0]

    def mean(picked: list[int]) -> float:
        return sum(values[i] for i in picked) / len(picked)

    low, high = statistics.bootstrap(5, mean, 0.95)
    assert 1 < low < 4 < high < 10
    assert statistics.bootstrap(5, mean, 0.95) == (low, high)


def test_a_jackknife_of_the_mean_is_the_interval_of_the_mean():
    values = [0.3, 0.5, 0.1, 0.45, 0.38]
    found = statistics.jackknife(5, lambda picked: sum(values[i] for i in picked) / len(picked))
    assert found == pytest.approx(statistics.mean_interval(values)[1:])
    assert statistics.jackknife(1, lambda picked: 7.0) == (7.0, 7.0)


def test_a_difference_of_exactly_the_margin_without_spread_shows_nothing():
    for second in ([0.25, 0.5], [0.75, 1.0]):
        found = statistics.paired([0.5, 0.75], second, 0.25)
        assert found.p_equivalent >= 0.5
        assert found.p_beyond >= 0.5
