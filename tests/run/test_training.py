"""A training that is hurt while it runs: what is said first, what is left on disk, and that no process is left."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from worldsize.errors import NotFinite
from worldsize.run.training import show_plan, show_result, start_training
from worldsize.train.loop import make_plan
from worldsize.train.settings import Run

LONG = Run(model="mlp", data="generated:512:1x8x8:4", replicas=4, batch_per_replica=4, epochs=100_000, workers=2)
FLAGS = ["--model", LONG.model, "--data", LONG.data, "--replicas", "4", "--batch-per-replica", "4"]
FLAGS += ["--epochs", "100000", "--workers", "2", "--out", "run"]


@contextmanager
def training(folder: Path, *launcher: str) -> Iterator[tuple[subprocess.Popen, list[psutil.Process]]]:
    """A command line that trains, well under way, and all processes it has started."""
    command = [sys.executable, *launcher, "-m", "worldsize", "train", *FLAGS]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "epoch 2/" in line:
                break
        yield process, psutil.Process(process.pid).children(recursive=True)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=30)[1]


def workers_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The processes that train are children of the fork server, not of the command itself."""
    ids = {process.pid for process in processes}
    return [process for process in processes if process.ppid() in ids]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_is_named_and_nothing_is_left_running(victim, tmp_path):
    with training(tmp_path) as (process, started):
        workers = sorted(workers_of(started), key=lambda each: each.pid)
        assert len(workers) == 2
        workers[victim].kill()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert errors.splitlines()[-1].startswith(f"worldsize: worker {victim} was killed by SIGKILL")
        assert ended(started)
    assert "SIGKILL" in (tmp_path / "run" / "events.jsonl").read_text()


def test_ctrl_c_ends_everything_with_130_and_the_run_can_go_on(tmp_path):
    with training(tmp_path) as (process, started):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors.count("\n") == 1
        assert "Traceback" not in errors
        assert ended(started)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "interrupted"
    assert any((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_batch_system_that_ends_it_finds_it_in_good_order(number, tmp_path):
    with training(tmp_path) as (process, started):
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert errors == f"worldsize: ended by {number.name}; all workers have been ended\n"
        assert ended(started)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "interrupted"


def test_when_the_command_itself_is_killed_its_workers_end_too(tmp_path):
    with training(tmp_path) as (process, started):
        process.kill()
        assert ended(started)


# ---- started by somebody else ----------------------------------------------------------------------------------------

BY_RUN = ("-m", "worldsize", "run", "-n", "2")
BY_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
SHORT = ["-m", "worldsize", "train", *FLAGS[:8], "--epochs", "2"]


def call(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("launcher", [BY_RUN, BY_TORCHRUN])
def test_launched_workers_are_one_run_with_the_bits_of_one_worker(launcher, tmp_path):
    alone = json.loads(call(tmp_path, *SHORT, "--workers", "1", "--json").stdout)
    done = call(tmp_path, *launcher, *SHORT)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "weights_sha256" in line]
    assert line.split()[-1] == alone["weights_sha256"]
    (again,) = {*(tmp_path / "runs").iterdir()} - {tmp_path / alone["run"]}
    result = json.loads((again / "result.json").read_text())
    assert (result["workers"], result["weights_sha256"]) == (2, alone["weights_sha256"])


def test_another_number_of_workers_than_was_launched_is_refused(tmp_path):
    done = call(tmp_path, *BY_RUN, *SHORT, "--workers", "3")
    assert done.returncode == 1  # of the launcher
    said = "worldsize: --workers 3 was asked for, but 2 were started around this one; leave --workers out"
    assert said in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("left", [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"RANK": "0", "MASTER_ADDR": "localhost"}])
def test_half_of_a_launch_is_refused_and_nothing_is_written(left, tmp_path):
    done = call(tmp_path, *SHORT, **left)
    assert done.returncode == 2
    assert done.stderr.startswith("worldsize: ")
    assert "launched half-way; start with torchrun or `worldsize run`, or unset" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_launched_worker_that_is_killed_is_named_first(tmp_path):
    with training(tmp_path, *BY_RUN) as (process, started):
        workers = sorted((each for each in started if "train" in each.cmdline()), key=lambda each: each.pid)
        assert len(workers) == 2
        workers[1].kill()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        story = [line for line in errors.splitlines() if not line.startswith("[worker")]
        assert story[0] == "worker 1 failed first: killed by SIGKILL"
        assert "worker 0 lost the connection to another, which ended first" in errors
        assert ended(started)


# ---- what it says ----------------------------------------------------------------------------------------------------

LARGE = Run(model="mlp", data="generated:4000:1x8x8:10", replicas=8, batch_per_replica=128, epochs=4)
SAYS = {
    "same steps": (
        {"same_steps": True},
        ["16 epochs of 4 steps", "as many as 4 epochs at a global batch of 256: with fewer steps", "1705.08741"],
    ),
    "grow": (
        {"schedule": "grow", "grow_to": 4000},
        [
            "2 epochs of 4 steps of 1,024, then 1 epoch of 2 steps of 3,072 at 0.3 x the rate",
            "the batch grows: it lowers",
        ],
    ),
    "noise": (
        {"gradient_noise": 1.5},
        ["each example's loss times 1 + 1.5 z, z from N(0, 1); 1.73 gives the gradient noise of a global batch of 256"],
    ),
    "average": ({"ema": 0.99}, ["averaged weights, decay 0.99"]),
}


@pytest.mark.parametrize("name", SAYS)
def test_the_plan_tells_what_is_done_for_the_large_batch_and_why(name):
    asked, says = SAYS[name]
    shown, without = shown_plan(replace(LARGE, **asked)), shown_plan(LARGE)
    for words in says:
        assert words in shown
        assert words not in without


def shown_plan(run: Run) -> str:
    console = Console(width=200, file=io.StringIO())
    show_plan(console, make_plan(run, 1).facts(run, 1, "cpu", "gloo"), Path("runs/x"), resume=False)
    return console.file.getvalue()


def test_the_result_of_averaged_weights_tells_both_accuracies_and_hashes():
    result = {"finished": True, "accuracy": 0.9, "plain_accuracy": 0.8, "loss": 0.3, "plain_loss": 0.4}
    result |= {"examples_per_s": 10.0, "workers": 2, "weights_sha256": "aa", "ema_sha256": "bb"}
    console = Console(width=200, file=io.StringIO())
    show_result(console, result)
    shown = console.file.getvalue()
    assert "test accuracy 0.9000 (plain 0.8000), test loss 0.3000, of averaged weights" in shown
    assert "weights_sha256 aa\nema_sha256 bb\n" in shown


# ---- what it computes ------------------------------------------------------------------------------------------------


DIVERGES = {
    # after this many steps an epoch, what is said
    8: r"the loss is (nan|inf) at step \d+, replica [0-3], worker [01]; ",
    1: r"the test loss is (nan|inf) at the end; ",
}


@pytest.mark.parametrize("steps", DIVERGES)
def test_a_loss_that_is_not_finite_is_named_with_its_place(steps, tmp_path):
    run = Run(
        model="mlp",
        data=f"generated:{16 * steps}:1x8x8:4",
        replicas=4,
        batch_per_replica=4,
        workers=2,
        epochs=1,
        lr=1e30,
        warmup=0,
    )
    with pytest.raises(NotFinite, match=DIVERGES[steps]) as failure:
        start_training(
            run, out=tmp_path / "run", resume=False, stop_after=None, command="", console=Console(quiet=True)
        )
    assert failure.value.exit_code == 1
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "failed"
