"""The examples run as they stand, alone and on two workers, and the diff of each pair is short: it is the lesson."""

import difflib
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

PAIRS = ["conv_net", "transformer"]
LAUNCHERS = {
    "alone": [],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "worldsize run": ["-m", "worldsize", "run", "-n", "2"],
}


@functools.cache
def output_of(script: Path, launcher: str, epochs: int = 1) -> tuple[str, ...]:
    """What the script prints, a line each."""
    command = [sys.executable, *LAUNCHERS[launcher], str(script), "--epochs", str(epochs)]
    # One thread: what a worker has anyway, and what keeps tests from standing in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return tuple(line.removeprefix("[worker 0] ") for line in done.stdout.splitlines())


@pytest.mark.parametrize("pair", PAIRS)
def test_two_workers_print_the_very_lines_of_one(repository: Path, pair: str):
    script = repository / "examples" / pair / "many_workers.py"
    alone = output_of(script, "alone")
    assert [line.split()[0] for line in alone] == ["epoch", "weights_sha256"]
    assert output_of(script, "torchrun") == alone


@pytest.mark.proof
@pytest.mark.parametrize("pair", PAIRS)
def test_all_ways_of_starting_print_the_same_lines(repository: Path, pair: str):
    script = repository / "examples" / pair / "many_workers.py"
    alone, *others = (output_of(script, launcher, epochs=2) for launcher in LAUNCHERS)
    assert len(alone) == 3
    for lines in others:
        assert lines == alone


@pytest.mark.parametrize("pair", ["conv_net", pytest.param("transformer", marks=pytest.mark.proof)])
def test_the_script_for_one_device_learns_as_well(repository: Path, pair: str):
    folder = repository / "examples" / pair
    one, many = (output_of(folder / name, "alone", epochs=1) for name in ("one_device.py", "many_workers.py"))
    accuracies = [float(lines[0].rpartition(" ")[2]) for lines in (one, many)]
    assert accuracies == pytest.approx([accuracies[0]] * 2, abs=0.1)
    assert [len(line) for line in one] == [len(line) for line in many]


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair_differs_in_a_few_lines(repository: Path, pair: str):
    one, many = (
        # From the first line after the docstring.
        (repository / "examples" / pair / name).read_text().splitlines()[1:]
        for name in ("one_device.py", "many_workers.py")
    )
    changes = [line for line in difflib.ndiff(one, many) if line[0] in "+-" and line[2:].strip()]
    added = [line for line in changes if line[0] == "+"]
    assert 4 <= len(added) <= 8, "\n".join(changes)
    assert len(changes) - len(added) <= 12, "\n".join(changes)
