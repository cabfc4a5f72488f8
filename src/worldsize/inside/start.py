"""Start a user's script in a worker as plain python would, and write down how it failed, to whom it may concern.

    python -u -m worldsize.inside.start SCRIPT ARGUMENT...      or:  -m MODULE ARGUMENT...

A failure is written to the file that torch's elastic agent names, in the agent's own format, with the time to the
microsecond and the user's line. Its traceback is not printed here: whoever started the workers shows the first one.
Only the standard library is loaded, so that the script finds a fresh process.
"""

import atexit
import builtins
import contextlib
import faulthandler
import io
import json
import os
import runpy
import select
import signal
import sys
import threading
import time
import traceback
import types
from importlib.machinery import SourceFileLoader
from types import TracebackType

LAUNCHER = "WORLDSIZE_LAUNCHER"  # the process id of the launcher, with which a worker lives and dies
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def main() -> None:
    """Run what the command line names as __main__."""
    follow_launcher()
    faulthandler.enable(all_threads=False)
    try:
        run(sys.argv[1:])
    except SystemExit as leaving:
        code = _exit_code(leaving)
        if code == 0:
            raise
        if leaving.code is not None and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
        write_failure(leaving, code)
        leave(code)
    except KeyboardInterrupt:  # Ctrl-C is no failure of the script
        leave(128 + signal.SIGINT)
    except BaseException as error:
        shown = show(error)
        write_failure(error, 1, shown=shown)
        leave(1)


def run(arguments: list[str]) -> None:
    """Run a script or a module with sys.argv and sys.path as plain python would have set them."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        if not sys.flags.safe_path:  # the first entry is the folder that we were started in
            sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        _run_file(os.path.abspath(arguments[0]))


def _run_file(path: str) -> None:
    """As runpy.run_path, but __main__ stays for threads and exit handlers, and sys.argv[0] as it was written."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __spec__=None, __builtins__=builtins)
    main.__dict__["__loader__"] = SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


# ---- how it failed ---------------------------------------------------------------------------------------------------


def show(error: BaseException) -> bool:
    """Print the traceback, and say so, where nobody else will or where the program has its own way of showing it."""
    hook = sys.excepthook
    # torch's hook only adds the worker's number.
    own = hook is not sys.__excepthook__ and not str(hook.__module__).startswith("torch.")
    if own or not os.environ.get(ERROR_FILE):
        frames = of_user(error.__traceback__)
        hook(type(error), error.with_traceback(frames), frames)
        return True
    return False


def write_failure(error: BaseException, exit_code: int, *, shown: bool = True) -> None:
    """Write the failure to the agent's file, as torch's own error handler does, and more exactly."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    now = time.time()
    frames = of_user(error.__traceback__)
    extra = {
        "py_callstack": "".join(traceback.format_exception(type(error), error, frames)),
        "timestamp": str(int(now)),
        "time": now,
        "kind": type(error).__name__,
        "last_line": "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1],
        "frame": user_frame(error, frames),
        "exit_code": exit_code,
        "shown": shown,
    }
    with open(path, "w") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)


def leave(code: int) -> None:
    """End at once: to take down a process group that has lost a peer may hang, or abort with pages of C++ frames."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or replaced by something else
            stream.flush()
    os._exit(code)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    return leaving.code & 0xFF if isinstance(leaving.code, int) else 1


def of_user(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not ours or runpy's."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while frames is not None and frames.tb_frame.f_code.co_filename in ours:
        frames = frames.tb_next
    return frames


def user_frame(error: BaseException, frames: TracebackType | None) -> str | None:
    """The innermost place of the user's: in no file that is installed, of the standard library, or ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    foreign = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep, "<")
    for frame in reversed(traceback.extract_tb(frames)):
        if not frame.filename.startswith(foreign) and "-packages" + os.sep not in frame.filename:
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


# ---- living with the launcher ----------------------------------------------------------------------------------------


def follow_launcher() -> None:
    """End this worker, and what it has started, when the launcher has gone without ending it."""
    named = os.environ.pop(LAUNCHER, "")
    if not named:
        return
    if os.getppid() != int(named):
        end_group()
    threading.Thread(target=_end_after, args=(int(named),), daemon=True, name="worldsize-launcher").start()


def _end_after(launcher: int) -> None:
    try:
        handle = os.pidfd_open(launcher)
    except (AttributeError, OSError):  # an older kernel or another system
        while os.getppid() == launcher:
            time.sleep(1)
    else:
        select.select([handle], [], [])
    end_group()


def end_group() -> None:
    """Kill the group of processes that the agent has made for this worker."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
