"""Every place is measured once, with the same bits for any number of workers, and what was measured is kept."""

import math

import pytest
import torch
from accuracy import bowls

from worldsize.accuracy import surface
from worldsize.accuracy.surface import Kept
from worldsize.errors import Misuse


def at(*place):
    made = bowls.bowl()
    found = made.at(place)
    assert torch.equal(made.model.weight, torch.ones(1, 2, dtype=torch.float64)), "the model is left as it was"
    return found


# ---- places ----------------------------------------------------------------------------------------------------------


def test_a_line_and_a_plane_have_their_ends_and_whole_numbers():
    line = surface.line((-0.25, 1.25), 7, marks=[(0.0,), (1.0,)])
    assert line.axes == (pytest.approx((-0.25, 0, 0.25, 0.5, 0.75, 1, 1.25)),)
    assert {(0.0,), (1.0,)} < set(line.rows)
    assert len(line.places) == 7, "a mark that lies in a row is one place"
    plane = surface.plane((-1, 1), (-0.3, 0.3), points=3)
    assert plane.rows[:4] == [(-1, -0.3), (-1, 0), (-1, 0.3), (0, -0.3)]
    assert {0.0, 1.0} < set(surface.line((-0.1, 1.1), 13).axes[0]), "not 1e-17 and 1.0000000000000002"


def test_marks_that_no_row_meets_are_places_too():
    line = surface.line((-1, 1), 4)
    assert (0.0,) not in line.rows
    assert line.places[0] == (0.0,)
    assert len(line.places) == 5


@pytest.mark.parametrize("ends", [(1, 1), (1, -1), (0, math.nan), (0, math.inf), (-1e308, 1e308)])
def test_ends_without_a_way_between_them_are_refused(ends):
    with pytest.raises(Misuse, match="there is no way"):
        surface.line(ends, 5)


def test_two_points_are_refused():
    with pytest.raises(Misuse, match="2 points show no shape"):
        surface.line((0, 1), 2)


# ---- one place -------------------------------------------------------------------------------------------------------


def test_a_place_has_the_mean_over_all_examples():
    assert at(0, 0) == {"loss": 0.0, "accuracy": 0.6}
    assert at(1, 0)["loss"] == 3.0
    assert at(-0.5, 1)["loss"] == 3.75


def test_statistics_of_batch_norm_can_be_measured_anew():
    made = bowls.net()
    stored = {key: value.clone() for key, value in made.model.state_dict().items()}
    anew = surface.Surface(**(vars(made) | {"reestimate": True}))
    found = anew.at((0.5, 0.0))
    assert found != made.at((0.5, 0.0))
    assert all(torch.equal(value, stored[key]) for key, value in made.model.state_dict().items())
    surface.move(made.model, made.directions, (0.5, 0.0))
    with torch.no_grad():
        means = torch.stack([made.model[0](x).mean((0, 2, 3)) for x, _ in made.batches]).mean(0)
        surface.reestimate_norms(made.model, made.batches)
    assert torch.allclose(made.model[1].running_mean, means, atol=1e-6)
    assert made.model[1].momentum == 0.1
    assert not made.model[1].training


# ---- by workers ------------------------------------------------------------------------------------------------------

GRID = surface.plane((-1, 1), (-1, 1), points=3)


def test_any_number_of_workers_gives_the_bits_of_one(tmp_path):
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = bowls.net()
    alone = {place: made.at(place) for place in GRID.places}
    torch.set_num_threads(torch_threads)
    seen = []
    for workers in (1, 3):
        found = surface.measure(
            bowls.net, (), GRID.places, workers=workers, on_values=lambda task, _: seen.append(task)
        )
        assert found == alone
    assert sorted(seen) == sorted(2 * GRID.places), "each worker had its share"


def test_an_interruption_keeps_what_was_done_and_the_rest_is_done_later(tmp_path):
    file, seen = tmp_path / "kept.jsonl", []

    def interrupt(task, values):
        seen.append(task)
        if len(seen) == 3:
            raise KeyboardInterrupt

    tasks = ["broken", *GRID.places]
    with pytest.raises(KeyboardInterrupt):
        surface.measure(bowls.bowl, (0.5,), tasks, workers=2, keep=file, on_values=interrupt)
    assert set(Kept(file).found) == set(seen)
    with file.open("a") as lines:
        lines.write('{"task": [0.0, 1.0], "val')  # as a crash in the middle of a line leaves it
    later = []
    found = surface.measure(
        bowls.bowl, (0.5,), tasks, workers=1, keep=file, on_values=lambda task, _: later.append(task)
    )
    assert sorted(map(str, [*seen, *later])) == sorted(map(str, tasks)), "nothing is computed twice"
    assert found["broken"] == {"at": math.inf}
    assert {place: values["loss"] for place, values in found.items() if place != "broken"} == {
        place: math.inf if max(place) > 0.5 else bowls.bowl().at(place)["loss"] for place in GRID.places
    }
    assert Kept(file).found == found, "what is read again has the same bits"


def test_what_is_kept_needs_no_worker(tmp_path):
    file = tmp_path / "kept.jsonl"
    Kept(file).add((0.1, 1 / 3), {"loss": 0.1 + 0.2, "accuracy": math.nan})
    found = surface.measure(bowls.bowl, (), [(0.1, 1 / 3)], keep=file)
    assert found[0.1, 1 / 3]["loss"] == 0.1 + 0.2
    assert math.isnan(found[0.1, 1 / 3]["accuracy"])


@pytest.mark.parametrize("line", ["", "[]", "null", '{"task": 3, "values": {}}', '{"settings": {}}', '{"task": [0]}'])
def test_a_line_that_is_no_result_is_left_out(line, tmp_path):
    (tmp_path / "kept.jsonl").write_text(line + "\n")
    assert Kept(tmp_path / "kept.jsonl").found == {}


def test_a_function_of_the_script_itself_is_refused():
    def made():
        raise AssertionError

    made.__module__ = "__main__"
    with pytest.raises(Misuse, match="made stands in the script itself, which workers never run; put it into a module"):
        surface.measure(made, (), GRID.places)
