"""A landscape's middle is the trained model, its numbers do not depend on the workers, and it goes on where it was."""

import json
import math
import os
import signal
import subprocess
import sys

import psutil
import pytest
from accuracy.runs import write_run
from rich.console import Console

from worldsize.accuracy.landscape import View, as_json, make_surface, start_landscape
from worldsize.accuracy.solution import build, sets_of, solution
from worldsize.errors import Misuse
from worldsize.parallel.world import join_world
from worldsize.run.training import start_training
from worldsize.train import models
from worldsize.train.evaluation import evaluate
from worldsize.train.settings import Run

QUIET = Console(quiet=True)


def landscape(view, workers=1, **options):
    return start_landscape(view, workers=workers, **({"out": None, "command": "", "console": QUIET} | options))


def view(folder, **options):
    return View(run=str(folder), **({"points": 3, "examples": 20} | options))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "one", model="cnn")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "other", model="cnn", weights=1)


def evaluated(folder):
    """The measures that `worldsize train` would print of this run."""
    found = solution(folder)
    sets = sets_of(found)
    model = build(found, sets)
    world = join_world(device="cpu")
    try:
        return evaluate(model, world, 0, models.measures_of(sets, model), sets.test)
    finally:
        world.leave()


# ---- what is measured ------------------------------------------------------------------------------------------------


def test_the_middle_is_the_trained_model_as_it_was_evaluated(run):
    assert make_surface(view(run, on="test", examples=8)).at((0.0, 0.0)) == evaluated(run)


def test_the_line_ends_at_the_other_run(run, other):
    made = make_surface(View(run=str(run), other=str(other), dims=1, on="test", examples=8))
    assert made.at((0.0,)) == evaluated(run)
    assert made.at((1.0,)) == pytest.approx(evaluated(other), rel=1e-5)
    assert made.at((0.5,))["loss"] != pytest.approx(made.at((0.0,))["loss"])


def test_the_plane_through_two_runs_has_the_line_as_its_first_axis(run, other):
    line, plane = (make_surface(View(run=str(run), other=str(other), dims=dims, examples=8)) for dims in (1, 2))
    assert line.at((0.3,)) == plane.at((0.3, 0.0))
    assert plane.at((0.3, 0.4)) != plane.at((0.3, 0.0))


def test_a_seed_decides_the_directions_and_each_has_its_own(run):
    one, same, new = (make_surface(view(run, seed=seed)).directions for seed in (5, 5, 6))
    assert all(one[i][name].equal(same[i][name]) for i in range(2) for name in one[i])
    assert not any(one[0][name].equal(way[name]) for way in (one[1], new[0]) for name in one[0])


def test_grids_reach_as_far_as_asked():
    assert View(run="a", dims=1, points=5).grid.axes == ((-1, -0.5, 0, 0.5, 1),)
    assert View(run="a", span=0.5, points=3).grid.axes == ((-0.5, 0, 0.5),) * 2
    both = View(run="a", other="b", points=7).grid
    assert [axis[::6] for axis in both.axes] == [(-0.25, 1.25), (-0.75, 0.75)], "as far to both sides"
    assert both.marks == ((0.0, 0.0), (1.0, 0.0))
    assert [len(View(run="a", dims=dims).grid.rows) for dims in (1, 2)] == [51, 441]


# ---- the run of it ---------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_one_worker_and_are_kept(tmp_path):
    runs = [write_run(tmp_path / name, model="cnn") for name in ("one", "two")]
    first, second = (landscape(view(run, curvature=True), workers) for run, workers in zip(runs, (1, 2), strict=True))
    for part in ("values", "marks", "axes", "curvature"):
        assert first[part] == second[part], part
    assert (first["curvature"]["eigenvalue"]["value"], first["curvature"]["trace"]["error"]) > (0, 0)
    assert (runs[0] / "landscape.html").read_text().startswith("<!doctype html>")
    (file,) = (runs[1] / "landscape").iterdir()
    before, page = file.read_bytes(), (runs[1] / "landscape.html").read_bytes()
    assert landscape(view(runs[1], curvature=True))["values"] == second["values"]
    assert (file.read_bytes(), (runs[1] / "landscape.html").read_bytes()) == (before, page), "nothing was done again"


def test_it_names_the_hashes_that_the_run_ended_with_and_says_so_when_it_evaluated_an_average(tmp_path):
    asked = {"data": "generated:40:1x8x8:4", "epochs": 1, "replicas": 2, "batch_per_replica": 4, "workers": 1}
    how = {"resume": False, "stop_after": None, "command": "", "console": QUIET}
    start_training(Run(model="cnn", ema=0.9, **asked), out=tmp_path / "run", **how)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    record = landscape(view(tmp_path / "run", dims=1, on="test", examples=8))
    assert record["key"]["weights_sha256"] == [result["weights_sha256"]]
    assert record["key"]["buffers_sha256"] == [result["buffers_sha256"]]
    assert record["marks"][0]["accuracy"] == result["plain_accuracy"]
    page = (tmp_path / "run" / "landscape.html").read_text()
    assert "the plain ones, not the moving average that the run was evaluated with" in page


def test_other_settings_are_kept_in_another_file(run):
    for options in ({"span": 0.5}, {"seed": 1}, {"examples": 4}, {"reestimate": True}):
        landscape(view(run, dims=1, **options))
    assert len(list((run / "landscape").iterdir())) == 4


def test_ctrl_c_leaves_nothing_running(run):
    command = [sys.executable, "-m", "worldsize", "landscape", str(run), "--points", "101", "--workers", "2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline().startswith("10,201 things to measure, 0 of them kept in ")
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "worldsize: interrupted; all workers have been ended\n"
    assert not psutil.wait_procs(started, timeout=30)[1]


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dims": 3}, "--dims 3 cannot be drawn"),
        ({"points": 2}, "--points 2 cannot be; with --dims 2 use 3 to 101"),
        ({"points": 102}, "--points 102 cannot be"),
        ({"points": 1002, "dims": 1}, "--points 1002 cannot be; with --dims 1 use 3 to 1,001"),
        ({"span": 0.0}, "--span 0.0 cannot be"),
        ({"span": -1.0}, "--span -1.0 cannot be"),
        ({"span": math.nan}, "--span nan cannot be"),
        ({"span": math.inf}, "--span inf cannot be"),
        ({"examples": 0}, "--examples 0 cannot be; measure on at least 1"),
        ({"examples": 1, "reestimate": True}, "--examples 1 cannot be; measure on at least 2"),
        ({"seed": -1}, "--seed -1 cannot be"),
    ],
)
def test_views_that_make_no_sense_are_refused(options, words):
    with pytest.raises(Misuse, match=words):
        View(run="a", **options)


def test_what_the_run_cannot_show_is_refused_before_anything_is_written(tmp_path, other):
    run = write_run(tmp_path / "run")
    neuron = write_run(tmp_path / "neuron", model="neuron", data="line")
    refusals = [
        (view(run, examples=41), {}, "--examples 41 are more than the 40 there are to train on"),
        (view(run, examples=9, on="test"), {}, "--examples 9 are more than the 8 there are to test on"),
        (view(run, other=str(run)), {}, "both solutions have the same weights"),
        (view(run, other=str(other)), {}, "a line needs two runs of one model"),
        (view(neuron), {}, "too few weights for two directions to differ; use --dims 1"),
        (view(run), {"workers": 0}, "--workers 0 cannot be"),
        (view(run), {"out": tmp_path / "nowhere" / "page.html"}, "there is no folder .*nowhere"),
    ]
    for asked, options, words in refusals:
        with pytest.raises(Misuse, match=words):
            landscape(asked, **options)
    assert not (run / "landscape").exists()


def test_numbers_that_are_not_finite_are_json():
    record = {"values": [{"place": [0.0], "loss": math.inf}], "marks": [{"loss": math.nan}], "curvature": {}}
    assert json.loads(json.dumps(as_json(record), allow_nan=False))["values"][0]["loss"] == "inf"
