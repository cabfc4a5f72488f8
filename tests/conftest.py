"""What holds for every test: repeatable property tests, and nothing left behind."""

import multiprocessing.forkserver
import os
import pathlib
import signal
import sys
from collections.abc import Iterator

import hypothesis
import psutil
import pytest

hypothesis.settings.register_profile("repeat", derandomize=True, deadline=None, database=None, max_examples=60)
hypothesis.settings.load_profile("repeat")

# Processes of Python's own that live as long as the test run; they are started by multiprocessing, once.
KEPT = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")
SET_BY_TORCH = {"TORCHINDUCTOR_CACHE_DIR"}


def pytest_configure(config: pytest.Config) -> None:
    """Facts of the CPU are looked at on the CPU, also on a machine with GPUs; `-m gpu` looks at those of the GPU."""
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Started in the background, as by nohup, we ignore these, and so would all that tests start and then interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """A test must leave the environment, the process group, the world and the child processes as they were."""
    environment = dict(os.environ)
    before = _children()
    yield
    environment["PYTEST_CURRENT_TEST"] = os.environ.get("PYTEST_CURRENT_TEST", "")
    changed = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
    assert changed <= SET_BY_TORCH, f"the test leaks environment variables: {changed}"
    left = [process for process in psutil.wait_procs(_children() - before, timeout=5)[1] if _is_ours(process)]
    assert not left, f"the test leaves processes behind: {left}"
    # Looked up, not imported: a test of arithmetic should not pay for torch.
    distributed = sys.modules.get("torch.distributed")
    assert distributed is None or not distributed.is_initialized(), "the test leaves a process group"
    world = sys.modules.get("worldsize.parallel.world")
    assert world is None or world.current() is None, "the test leaves a joined world; close the job"


def _children() -> set[psutil.Process]:
    return {process for process in psutil.Process().children() if _is_ours(process)}


def _is_ours(process: psutil.Process) -> bool:
    if process.pid == multiprocessing.forkserver._forkserver._forkserver_pid:
        return False
    try:
        return not any(kept in word for word in process.cmdline() for kept in KEPT)
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The root of the source tree."""
    return pathlib.Path(__file__).parent.parent
