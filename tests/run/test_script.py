"""`worldsize run`: output with the worker's number, the first failure first, and no process left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run import crews

from worldsize.errors import Misuse
from worldsize.run.script import run_script

RUN = """
import json, pathlib, sys
from worldsize.run.script import run_script

script, arguments, options = json.loads(sys.argv[1])
if "log_dir" in options:
    options["log_dir"] = pathlib.Path(options["log_dir"])
sys.exit(run_script(script, arguments, **options))
"""
HELLO = """
import os, sys
print("hello from", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:])
print("and to stderr", file=sys.stderr)
print({name: os.environ[name] for name in ("OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_")})
"""
TRAIN = """
import sys, os, signal, torch
from worldsize.parallel.world import join_world
from run.crews import summed

world = join_world(device="cpu")
if world.worker == 1:
    exec(sys.argv[1])
print("sum", summed())
"""
# Worker 0 says that its peer has gone, and is on its way out only when worker 1 has said why it failed.
LOST_FIRST = """
import atexit, os
last = os.environ["RANK"] == "0"
def wait():
    with open("pipe", "r" if last else "w") as pipe:
        last and pipe.read()
atexit.register(wait)
with open("first", "w" if last else "r") as pipe:
    if not last:
        pipe.read()
        raise ValueError("the label is 12")
    raise RuntimeError("Connection closed by peer [127.0.0.1]:5")
"""
# Worker 1 is killed while it holds a pipe; what worker 0 says of the end of the pipe does not look like a lost peer.
ONE_KILLED = """
import os, signal
if os.environ["RANK"] == "1":
    with open("pipe", "w"):
        os.kill(os.getpid(), signal.SIGKILL)
with open("pipe") as pipe:
    raise ValueError("no more data" + pipe.read())
"""
ONE_FAILS = """
import os, threading
if os.environ["RANK"] == "1":
    raise ValueError("the label is 12")
threading.Event().wait()
"""
FOR_EVER = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print(os.getpid(), child.pid)
threading.Event().wait()
"""


@pytest.fixture
def command(tmp_path, repository):
    """The command line and environment that start a script of this text in a folder of its own."""

    def make(source: str, *arguments: str, **options: object) -> dict:
        script = tmp_path / "script.py"
        script.write_text(source)
        (tmp_path / "temp").mkdir()
        path = os.pathsep.join([str(repository / "src"), str(repository / "tests")])
        told = json.dumps([script.name, arguments, {"workers": 2} | options])
        env = os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path / "temp")}
        return {"args": [sys.executable, "-c", RUN, told], "cwd": tmp_path, "env": env, "text": True}

    return make


@pytest.fixture
def start(command):
    def run(source: str, *arguments: str, **options: object) -> subprocess.CompletedProcess:
        return subprocess.run(**command(source, *arguments, **options), capture_output=True)

    return run


def logs_of(end: subprocess.CompletedProcess) -> str:
    """What is in the log that the failure names."""
    (line,) = (line for line in end.stderr.splitlines() if line.startswith("  log   "))
    return Path(line.split()[-1]).read_text()


# ---- what is on the screen -------------------------------------------------------------------------------------------


def test_each_line_bears_the_number_of_its_worker_and_nothing_else_is_printed(start, tmp_path):
    end = start(HELLO, "a b", "$$c ${local_rank}")
    assert end.returncode == 0
    threads = "{'OMP_NUM_THREADS': '1', 'MALLOC_TRIM_THRESHOLD_': '2147483647'}"
    expected = [
        line
        for worker in (0, 1)
        for line in (
            f"[worker {worker}] hello from {worker} of 2 ['a b', '$$c ${{local_rank}}']",
            f"[worker {worker}] {threads}",
        )
    ]
    assert sorted(end.stdout.splitlines()) == sorted(expected)
    assert sorted(end.stderr.splitlines()) == ["[worker 0] and to stderr", "[worker 1] and to stderr"]
    assert not list((tmp_path / "temp").glob("worldsize-*")), "logs that nobody asked for are gone"


def test_what_the_user_has_set_stays_as_it_is(start, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "'OMP_NUM_THREADS': '2'" in start(HELLO, workers=1).stdout


def test_logs_are_kept_where_they_were_asked_for(start, tmp_path):
    end = start(HELLO, quiet=True, log_dir=str(tmp_path / "logs"))
    assert (end.returncode, end.stdout, end.stderr) == (0, "", "")
    for worker in (0, 1):
        (log,) = (tmp_path / "logs").glob(f"*/attempt_0/{worker}/stdout.log")
        assert log.read_text().startswith(f"hello from {worker} of 2")


def test_a_module_runs_too(start, tmp_path):
    (tmp_path / "greeting.py").write_text(HELLO)
    told = json.dumps(["greeting", ["x"], {"workers": 1, "module": True}])
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    end = subprocess.run([sys.executable, "-c", RUN, told], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "[worker 0] hello from 0 of 1 ['x']" in end.stdout


def test_a_job_joins_the_world_that_was_started(start):
    end = start(TRAIN, "pass")
    assert (end.returncode, end.stderr) == (0, "")
    assert sorted(end.stdout.splitlines()) == ["[worker 0] sum 2.0", "[worker 1] sum 2.0"]


# ---- the first failure ----------------------------------------------------------------------------------------------


def test_the_first_failure_is_shown_and_the_others_are_its_consequence(start, tmp_path):
    end = start(TRAIN, "def step(): raise ValueError('the label is 12')\nstep()", workers=3)
    assert end.returncode == 1
    shown = end.stderr.splitlines()
    assert shown[0] == "[worker 1] Traceback (most recent call last):"
    assert shown[-6:-4] == ["[worker 1] ValueError: the label is 12", "worker 1 failed first: exit code 1"]
    assert shown[-4] == "  error ValueError: the label is 12"
    assert shown[-3] == f"  at    {tmp_path}/script.py:8 in <module>"
    assert shown[-2].startswith("  log   ")
    assert shown[-1] in {
        f"worker 0, 2 failed as a consequence: {how}"
        for how in (
            "lost the connection to a worker that had gone",
            "ended by the launcher, since a world cannot go on",
        )
    }
    assert logs_of(end).endswith("ValueError: the label is 12\n"), "the log has the traceback as well"


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os._exit(5)", "exit code 5"),
    ],
)
def test_a_worker_that_leaves_or_is_killed_is_the_cause(start, what, how):
    end = start(TRAIN, what)
    assert end.returncode == 1
    assert f"worker 1 failed first: {how}" in end.stderr.splitlines()
    assert "worker 0 failed as a consequence: " in end.stderr
    assert "Traceback" not in end.stderr, "a consequence is told in its log"


def test_a_lost_peer_is_not_the_cause_though_it_was_the_first_to_speak(start, tmp_path):
    os.mkfifo(tmp_path / "first")
    os.mkfifo(tmp_path / "pipe")
    end = start(LOST_FIRST)
    shown = end.stderr.splitlines()
    assert "worker 1 failed first: exit code 1" in shown
    assert "  error ValueError: the label is 12" in shown
    assert shown[-1] == "worker 0 failed as a consequence: lost the connection to a worker that had gone"


def test_a_killed_worker_goes_before_an_error_that_came_of_it(start, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    end = start(ONE_KILLED)
    assert "worker 1 failed first: killed by SIGKILL" in end.stderr.splitlines()


def test_workers_that_fail_alike_are_told_in_one_line(start):
    shown = start("raise SystemExit(3)", workers=3).stderr.splitlines()
    assert "failed first: exit code 3" in shown[0]
    assert shown[-1].endswith(" failed alike")
    assert not any("failed later" in line for line in shown)


def test_a_worker_that_ends_early_without_an_error_is_hinted_at(start):
    end = start(TRAIN, "raise SystemExit(0)")
    assert end.returncode == 1
    assert "see whether one ends, with exit code 0, before the others do" in end.stderr


def test_json_tells_the_same(start):
    end = start(ONE_FAILS, as_json=True)
    told = json.loads(end.stdout)
    assert (end.returncode, told["exit_code"], told["workers"], end.stderr) == (1, 1, 2, "")
    first, second = told["failures"]
    assert (first["worker"], first["error"], first["role"]) == (1, "ValueError: the label is 12", "cause")
    assert (second["worker"], second["role"], second["how"]) == (0, "ended", "killed by SIGTERM")
    assert Path(first["log"]).is_file()


# ---- ending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -9)])
def test_however_it_ends_no_process_is_left(command, sent, code):
    with subprocess.Popen(**command(FOR_EVER), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as launcher:
        pids = [int(pid) for _ in range(2) for pid in launcher.stdout.readline().split()[2:]]
        assert len(pids) == 4, "two workers, each with a child"
        launcher.send_signal(getattr(signal, sent))
        assert launcher.wait(crews.WAIT_S) == code
        assert all(crews.gone(pid) for pid in pids)
        assert launcher.stderr.read() == ""


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("no-such.py", {}, "there is no script no-such.py; name a Python file"),
        (".", {}, ". is a folder, not a script"),
        (__file__, {"workers": 0}, "0 workers: a script needs at least one; use -n 1 or more"),
        (__file__, {"workers": -2}, "-2 workers"),
        (__file__, {"log_dir": Path(__file__)}, "is a file, but logs need a folder"),
        (__file__, {"log_dir": Path(__file__) / "logs"}, "cannot be made"),
        ("no_such_module.part", {"module": True}, "there is no module 'no_such_module'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(script, options, words):
    with pytest.raises(Misuse) as caught:
        run_script(script, [], **({"workers": 2} | options))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
