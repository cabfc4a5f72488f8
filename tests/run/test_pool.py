"""The pool: results and messages come back, the first failure is raised, and no process outlives the run."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from run import crews

from worldsize.errors import DataError, Failure, WorkerDied
from worldsize.run.pool import _signals_later, run_workers

PARENT = """
import sys
from run import crews
from worldsize.run.pool import run_workers

if __name__ == "__main__":
    try:
        run_workers(crews.wait_for_ever, workers=2, on_message=lambda worker, pid: print(pid, flush=True))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.fixture
def parent(tmp_path, repository):
    """A program with two workers that wait for ever, and their process ids."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(repository / "src"), str(repository / "tests")])
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        start_new_session=True,
    ) as process:
        workers = [int(process.stdout.readline()) for _ in range(2)]
        yield process, workers
        process.kill()


def test_results_come_in_the_order_of_workers():
    assert run_workers(crews.stand, workers=3) == [(0, 3), (1, 3), (2, 3)]


def test_a_worker_alone_needs_no_group():
    assert run_workers(crews.stand, workers=1) == [(0, 1)]


def test_messages_arrive_in_order_with_the_number_of_their_worker():
    heard: dict[int, list[str]] = {0: [], 1: []}
    results = run_workers(crews.greet, "hi", workers=2, on_message=lambda worker, text: heard[worker].append(text))
    assert results == [0, 10]
    assert heard == {worker: [f"hi {worker} {turn}" for turn in range(3)] for worker in (0, 1)}


def test_the_cause_is_raised_though_a_lost_peer_was_noticed_before(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failure) as caught:
        run_workers(crews.fail_as_second, str(tmp_path / "pipe"), workers=2, limit_s=crews.WAIT_S)
    assert str(caught.value) == "worker 1 failed: ValueError: the label is 12"
    assert "fail_as_second" in "".join(caught.value.__notes__), "the worker's own stack goes with it"


def test_a_worker_that_was_killed_is_named():
    with pytest.raises(WorkerDied, match=r"^worker 1 was killed by SIGKILL"):
        run_workers(crews.kill_one, workers=2, limit_s=crews.WAIT_S)


def test_a_worker_that_left_without_a_word_is_named_with_its_exit_code():
    with pytest.raises(WorkerDied, match=r"^worker 1 ended with exit code 7"):
        run_workers(crews.leave_without_a_word, workers=2, limit_s=crews.WAIT_S)


def test_an_error_of_ours_keeps_its_class_and_its_words():
    with pytest.raises(DataError) as caught:
        run_workers(crews.refuse, workers=2, limit_s=crews.WAIT_S)
    assert str(caught.value) == "no such file; look elsewhere"
    assert caught.value.exit_code == 2


def test_a_run_longer_than_its_limit_is_stopped():
    pids = []
    with pytest.raises(WorkerDied, match=r"^worker 0 had not ended after 1 s"):
        run_workers(crews.stay_for_ever, workers=1, limit_s=1, on_message=lambda worker, pid: pids.append(pid))
    assert all(crews.gone(pid) for pid in pids)


def test_workers_end_with_a_parent_that_was_killed(parent):
    process, workers = parent
    process.send_signal(signal.SIGKILL)
    assert all(crews.gone(worker) for worker in workers)


def test_ctrl_c_ends_the_parent_and_the_workers(parent):
    process, workers = parent
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    assert process.wait(crews.WAIT_S) == 130
    assert all(crews.gone(worker) for worker in workers)
    assert process.stderr.read() == ""


def test_ctrl_c_waits_until_a_process_is_started_also_where_another_thread_gets_it():
    handler, done, begin = signal.getsignal(signal.SIGINT), [], threading.Event()

    def interrupt():
        begin.wait()
        signal.raise_signal(signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()  # outside, where it inherits no mask
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # what comes after the signal is the test
        with _signals_later():
            begin.set()
            other.join()
            signal.raise_signal(signal.SIGINT)
            done.append("started")
        done.append("too late")
    assert done == ["started"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
