"""A script started in a worker sees what plain python would show it, and its failure is written down."""

import json
import os
import signal
import subprocess
import sys

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

LOOK = """
import json, sys
print(json.dumps([__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].__dict__ is globals()]))
"""
FAIL = """
import json

def step(text):
    return json.loads(text)

step("{")
"""


@pytest.fixture
def start(tmp_path, repository):
    """Run a command in the folder of the script, as plain python or as a worker would."""

    def run(*words: str, plain: bool = False, **environment: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-u", *(() if plain else ("-m", "worldsize.inside.start")), *words]
        env = os.environ | {"PYTHONPATH": str(repository / "src")} | environment
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)

    return run


def failure_of(path) -> dict:
    return json.loads(path.read_text())["message"]["extraInfo"]


@pytest.mark.parametrize("words", [("folder/look.py", "-m", "a b"), ("-m", "folder.look", "x"), ("-m", "folder", "x")])
def test_a_script_sees_what_plain_python_shows_it(tmp_path, start, words):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "look.py").write_text(LOOK)
    (folder / "__main__.py").write_text(LOOK)
    ours, plain = start(*words), start(*words, plain=True)
    assert plain.returncode == 0, plain.stderr
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, 0)


def test_a_failure_is_written_with_its_time_and_the_line_of_the_user(tmp_path, start):
    (tmp_path / "fail.py").write_text(FAIL)
    error = tmp_path / "error.json"
    ended = start("fail.py", TORCHELASTIC_ERROR_FILE=str(error))
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", ""), "the launcher shows it, if it was the first"
    found = failure_of(error)
    assert found["kind"] == "JSONDecodeError"
    assert found["last_line"].startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert found["frame"] == f"{tmp_path}/fail.py:5 in step", "not json's own line"
    assert found["exit_code"] == 1
    assert 0 <= found["time"] - int(found["timestamp"]) < 1
    plain = start("fail.py", plain=True)
    assert found["py_callstack"] == plain.stderr, "without the frames of the start"


def test_torch_reads_what_was_written(tmp_path, start):
    (tmp_path / "fail.py").write_text(FAIL)
    error = tmp_path / "error.json"
    start("fail.py", TORCHELASTIC_ERROR_FILE=str(error))
    seen = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(error))
    assert seen.timestamp == int(failure_of(error)["timestamp"])
    assert seen.message["message"].startswith("JSONDecodeError: Expecting property name")


def test_without_an_agent_the_traceback_is_that_of_plain_python(tmp_path, start):
    (tmp_path / "fail.py").write_text(FAIL)
    assert start("fail.py").stderr == start("fail.py", plain=True).stderr


def test_a_syntax_error_is_placed_in_the_script(tmp_path, start):
    (tmp_path / "broken.py").write_text("x = 1\ny = (\n")
    error = tmp_path / "error.json"
    assert start("broken.py", TORCHELASTIC_ERROR_FILE=str(error)).returncode == 1
    assert failure_of(error)["frame"].endswith("broken.py:2")


@pytest.mark.parametrize(
    ("call", "code", "said", "written"),
    [
        ("sys.exit()", 0, "", None),
        ("sys.exit(0)", 0, "", None),
        ("sys.exit(False)", 0, "", None),
        ("sys.exit(3)", 3, "", "SystemExit: 3"),
        ("sys.exit(-1)", 255, "", "SystemExit: -1"),
        ("sys.exit('no data')", 1, "no data\n", "SystemExit: no data"),
        ("raise KeyboardInterrupt", 130, "", None),
    ],
)
def test_a_script_may_leave_as_it_likes(tmp_path, start, call, code, said, written):
    (tmp_path / "leave.py").write_text(f"import atexit, sys\natexit.register(print, 'tidied')\n{call}\n")
    error = tmp_path / "error.json"
    ended = start("leave.py", TORCHELASTIC_ERROR_FILE=str(error))
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "tidied\n", said)
    assert (failure_of(error)["last_line"] if error.exists() else None) == written


def test_classes_of_the_script_travel_to_processes_that_it_spawns(tmp_path, start):
    (tmp_path / "spawn.py").write_text(
        "import multiprocessing\n"
        "class Word:\n    pass\n"
        "def echo(word):\n    return word\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(type(pool.apply(echo, (Word(),))) is Word)\n"
    )
    ended = start("spawn.py")
    assert (ended.stdout, ended.stderr) == ("True\n", "")


def test_a_programs_own_way_of_showing_errors_is_kept(tmp_path, start):
    (tmp_path / "own.py").write_text(
        "import sys\nsys.excepthook = lambda *e: print('own', e[1])\nraise ValueError(7)\n"
    )
    error = tmp_path / "error.json"
    assert start("own.py", TORCHELASTIC_ERROR_FILE=str(error)).stdout == "own 7\n"
    assert failure_of(error)["shown"]


def test_a_worker_without_its_launcher_does_not_start(tmp_path, start):
    (tmp_path / "look.py").write_text(LOOK)
    with subprocess.Popen([sys.executable, "-c", ""]) as other:
        ended = start("look.py", WORLDSIZE_LAUNCHER=str(other.pid))
    assert (ended.returncode, ended.stdout) == (1, "")


def test_the_script_does_not_see_how_it_was_watched(tmp_path, start):
    (tmp_path / "look.py").write_text("import os\nprint([name for name in os.environ if 'WORLDSIZE' in name])")
    assert start("look.py", WORLDSIZE_LAUNCHER=str(os.getpid())).stdout == "[]\n"


def test_a_segmentation_fault_leaves_the_line(tmp_path, start):
    (tmp_path / "fault.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    ended = start("fault.py")
    assert ended.returncode == -signal.SIGSEGV
    assert f'File "{tmp_path}/fault.py", line 2 in <module>' in ended.stderr
