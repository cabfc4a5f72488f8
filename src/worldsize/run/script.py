"""Any Python script on N workers of this machine, through torch's elastic agent; the first failure is shown first."""

import contextlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from worldsize.errors import Misuse
from worldsize.run.environment import for_workers
from worldsize.run.failures import WorkerFailure, in_order

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsDest
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

CONSEQUENCES = {
    "lost peer": "lost the connection to a worker that had gone",
    "ended": "ended by the launcher, since a world cannot go on without one of its workers",
}
LAUNCHER = "WORLDSIZE_LAUNCHER"  # known to worldsize.inside.start, which must not load this package
STOPS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run_script(
    script: str | Path,
    arguments: list[str],
    *,
    workers: int,
    module: bool = False,
    log_dir: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Run a script, or with `module` a module, on so many workers; the exit code for the command line.

    0: all workers are done. 1: one failed, and the first failure was shown. 130: ended by Ctrl-C. `quiet` leaves the
    workers' output in their logs, `as_json` too, and prints one JSON object at the end instead of the failure.
    """
    _check(script, workers=workers, module=module, log_dir=log_dir)
    folder = _make(log_dir) if log_dir is not None else Path(tempfile.mkdtemp(prefix="worldsize-run-"))
    command = ["-m", str(script)] if module else [str(script)]
    end = _launch([*command, *arguments], workers, folder, tee=not (quiet or as_json))
    for failure in end.failures:
        _keep_trace(failure)
    if log_dir is None and not end.failures:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps(end.facts(str(script), workers, folder), indent=2))
    elif end.failures:
        print(_printable(_story(end.failures)), file=sys.stderr)
    return end.exit_code


@dataclass(kw_only=True)
class _End:
    """How a run ended."""

    exit_code: int = 0
    failures: list[WorkerFailure] = field(default_factory=list)  # the cause first

    def facts(self, script: str, workers: int, folder: Path) -> dict[str, Any]:
        return {
            "script": script,
            "workers": workers,
            "exit_code": self.exit_code,
            "log_dir": str(folder) if folder.exists() else None,
            "failures": [failure.facts() for failure in self.failures],
        }


# ---- what cannot be --------------------------------------------------------------------------------------------------


def _check(script: str | Path, *, workers: int, module: bool, log_dir: Path | None) -> None:
    if workers < 1:
        raise Misuse(f"{workers} workers: a script needs at least one; use -n 1 or more")
    if log_dir is not None and log_dir.exists() and not log_dir.is_dir():
        raise Misuse(f"--log-dir {log_dir} is a file, but logs need a folder; name another")
    if module:
        _check_module(str(script))
    elif Path(script).is_dir():
        raise Misuse(f"{script} is a folder, not a script; name the script in it")
    elif not Path(script).exists():
        raise Misuse(f"there is no script {script}; name a Python file, or a module with -m")


def _check_module(name: str) -> None:
    top = name.split(".")[0]
    with _path_of_worker():
        try:
            found = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            found = None
    if found is None:
        raise Misuse(f"there is no module {top!r} to be found from {os.getcwd()}; name a module as python -m would")


@contextlib.contextmanager
def _path_of_worker() -> Iterator[None]:
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.remove(os.getcwd())


def _make(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misuse(f"--log-dir {folder} cannot be made: {error.strerror}; name another") from None
    return folder.resolve()


# ---- launching -------------------------------------------------------------------------------------------------------


def _launch(command: list[str], workers: int, folder: Path, *, tee: bool) -> _End:
    """Have torch's agent start the workers and watch them until all have ended."""
    with for_workers(), _named_as_launcher(), _silence(), _signals():
        # Only now, since torch's C++ reads its log level from the environment when it is loaded.
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

        class Logs(DefaultLogsSpecs):
            """torch's own, which also remembers where the logs are."""

            dest: "LogsDest | None" = None

            def reify(self, envs: dict[int, dict[str, str]]) -> "LogsDest":
                self.dest = super().reify(envs)
                return self.dest

        logs = Logs(log_dir=str(folder), redirects=Std.ALL, tee=Std.ALL if tee else Std.NONE)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id="run",
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=logs,
            log_line_prefix_template="[worker ${rank}] ",
            signals_to_handle=",".join(stop.name for stop in STOPS),
        )
        # The agent takes an argument for a template.
        words = ["-u", "-m", "worldsize.inside.start", *(word.replace("$", "$$") for word in command)]
        try:
            elastic_launch(config, sys.executable)(*words)
        except ChildFailedError as failed:
            failures = [_failure(worker, one, logs.dest) for worker, one in failed.failures.items()]
            return _End(exit_code=1, failures=in_order(failures))
        except SignalException as stopped:
            return _End(exit_code=128 + stopped.sigval)
        except KeyboardInterrupt:
            return _End(exit_code=128 + signal.SIGINT)
    return _End()


@contextlib.contextmanager
def _named_as_launcher() -> Iterator[None]:
    """Tell the workers with whom they live and die."""
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(LAUNCHER, None)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the agent's own log lines and warnings off the screen, and pass on each line of a worker when it comes."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """The first Ctrl-C ends the workers in good order, the second at once: they follow their launcher."""
    before = {stop: signal.getsignal(stop) for stop in (*STOPS, signal.SIGINT)}

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + signal.SIGINT))
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)


# ---- what is told of a failure ---------------------------------------------------------------------------------------


def _failure(worker: int, seen: "ProcessFailure", logs: "LogsDest | None") -> WorkerFailure:
    """What the agent saw of a failure, with what the worker itself has written down."""
    written = seen.error_file_data.get("message")
    extra = written.get("extraInfo", {}) if isinstance(written, dict) else {}
    return WorkerFailure(
        worker=worker,
        # It may have been ended by the agent while it was on its way out.
        exit_code=int(extra.get("exit_code", seen.exitcode)),
        # Of a worker without a word the agent knows the second in which it noticed: it had gone before that.
        at=float(extra.get("time", seen.timestamp - 1)),
        error=extra.get("last_line", ""),
        kind=extra.get("kind", ""),
        frame=extra.get("frame"),
        trace=extra.get("py_callstack", ""),
        shown=bool(extra.get("shown", True)),
        log=Path(logs.stderrs[seen.local_rank]) if logs else None,
    )


def _keep_trace(failure: WorkerFailure) -> None:
    """Put into the worker's log what it did not print itself, so that the screen shows the first cause alone."""
    if failure.log is not None and failure.trace and not failure.shown:
        with failure.log.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(failure.trace)


def _printable(text: str) -> str:
    """As much of it as this terminal can show: a path or message may hold bytes of no encoding."""
    return text.encode(sys.stderr.encoding or "ascii", "backslashreplace").decode(sys.stderr.encoding or "ascii")


def _story(failures: list[WorkerFailure]) -> str:
    """The failure that came first, then, in a line each, those that came of it."""
    first, *others = failures
    name = f"worker {first.worker}"
    lines = [] if first.shown else [f"[{name}] {line}" for line in first.trace.splitlines()]
    lines.append(f"{name} failed{' first' if others else ''}: {first.how}")
    facts = {"error": first.error, "at": first.frame, "log": first.log}
    lines += [f"  {fact:5} {value}" for fact, value in facts.items() if value]
    if first.exit_code == -signal.SIGKILL:
        lines.append("  note  the system does so when memory runs out; the kernel's log would say")
    if first.role == "lost peer":
        lines.append("  note  no worker failed by itself; see whether one ends, with exit code 0, before the others do")
    alike = sorted(
        other.worker for other in others if (other.role, other.error, other.how) == ("cause", first.error, first.how)
    )
    if alike:
        lines.append(f"worker {', '.join(map(str, alike))} failed alike")
    for role, what in CONSEQUENCES.items():
        these = sorted(other.worker for other in others if other.role == role)
        if these:
            lines.append(f"worker {', '.join(map(str, these))} failed as a consequence: {what}")
    for other in others:
        if other.role == "cause" and other.worker not in alike:
            lines.append(
                f"worker {other.worker} failed later: {other.how} {other.error}".rstrip() + f"; log {other.log}"
            )
    return "\n".join(lines)
