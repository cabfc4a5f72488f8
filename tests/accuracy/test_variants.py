"""Variants: paired differences, and the same words as `worldsize compare`."""

from worldsize.accuracy.variants import accuracies, against, curve, in_points, strips, verdicts

GOOD = [0.85, 0.86, 0.855, 0.852, 0.858]
ALIKE = [value + shift for value, shift in zip(GOOD, (0.001, -0.001, 0.0005, 0.0, -0.0005), strict=True)]
WORSE = [value - 0.03 + 0.001 * i for i, value in enumerate(GOOD)]


def test_one_that_diverged_counts_as_guessing():
    assert accuracies({"a": [{"diverged": True}, {"diverged": False, "accuracy": 0.5}]}) == {"a": [0.1, 0.5]}


def test_a_difference_is_taken_seed_by_seed():
    difference = against({"a": GOOD, "b": WORSE}, "a", "b", 0.005)
    assert in_points(difference).startswith("-2.80 points (-3.0")


def test_verdicts_are_those_of_compare_with_holm_over_all():
    found = {verdict.second: verdict for verdict in verdicts({"a": GOOD, "b": ALIKE, "c": WORSE}, "a", 0.005)}
    assert (found["b"].answer, found["c"].answer) == ("equivalent", "worse")
    assert "Holm over 2" in found["b"].sentence


def test_every_variant_has_a_row_and_every_seed_a_dot():
    drawn = strips("Title", "", {"a": GOOD, "b": WORSE}, "a")
    assert drawn.count('class="dot') == 2 * 10  # wide and narrow


def test_a_curve_is_the_mean_with_its_interval_which_stays_above_zero():
    drawn = curve("a", {8: [1.0, 3.0], 16: [5.0, 5.0]}, 2)
    assert drawn.points == [(8, 2.0), (16, 5.0)]
    assert drawn.band[1] == (16, 5.0, 5.0)
    assert 0 < drawn.band[0][1] < 2.0 < drawn.band[0][2]
