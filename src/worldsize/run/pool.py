"""Warm workers: a fork server that has torch loaded starts a process for each worker in about 0.1 s.

They meet through a file, so no port is taken. They live and die with the process that started them.
"""

import contextlib
import importlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from worldsize import errors
from worldsize.errors import Failure, Misuse, WorkerDied, WorldsizeError
from worldsize.run.environment import for_workers
from worldsize.run.failures import lost_peer

PRELOAD = ["torch", "torch._dynamo", "torch.distributed", "worldsize.train.loop", "worldsize.run.pool"]
LONGEST_TEMP = 70  # letters: a socket's path may have 107, and its name in that folder takes up to 35
GRACE_S = 2.0  # how long the other workers have to say what they saw, once one has failed
_parent: Connection | None = None


def tell(message: Any) -> None:
    """Send a message from a worker to whoever started it; goes nowhere outside a pool."""
    if _parent is not None:
        _send(_parent, "message", message)


def warm_up() -> None:
    """Start the fork server and let it load torch, without waiting for it."""
    if len(tempfile.gettempdir()) > LONGEST_TEMP:
        raise Misuse(f"the temporary folder {tempfile.gettempdir()} is too long a path for a socket; set TMPDIR=/tmp")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    multiprocessing.resource_tracker.ensure_running()  # it would unblock the signal, were it started with the server
    with for_workers(), _signals_later():  # the server inherits the mask: Ctrl-C while it loads torch is not for it
        multiprocessing.forkserver.ensure_running()


def run_workers(
    function: Callable[..., Any],
    *arguments: Any,
    workers: int,
    on_message: Callable[[int, Any], None] = lambda worker, message: None,
    limit_s: float | None = None,
) -> list[Any]:
    """Call a module's function in each of `workers` new processes that can join one world; their results in order.

    The failure that came first is raised, after all workers have ended. With `limit_s`, so is a run that takes longer.
    """
    warm_up()
    with tempfile.TemporaryDirectory(prefix="worldsize-") as folder:
        crew = _Crew()
        try:
            crew.start(function, arguments, workers, f"file://{folder}/meet")
            return crew.watch(on_message, limit_s)
        finally:
            crew.end()


@dataclass
class _Outcome:
    """How one worker ended."""

    at: float
    error: WorldsizeError | None = None
    trace: str = ""
    lost_peer: bool = False  # it failed because another was gone: never the first cause
    result: Any = None


class _Crew:
    """The processes of one run, and what has come from them."""

    def __init__(self) -> None:
        self.outcomes: dict[int, _Outcome] = {}
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []

    def start(self, function: Callable, arguments: tuple, workers: int, meet: str) -> None:
        context = multiprocessing.get_context("forkserver")
        target = f"{function.__module__}:{function.__qualname__}"
        for worker in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            place = {"worker": worker, "size": workers, "local": worker, "meet": meet if workers > 1 else ""}
            process = context.Process(target=_work, args=(target, arguments, place, theirs), name=f"worker-{worker}")
            self.processes.append(process)
            self.pipes.append(ours)
            try:
                with _without_main(), _signals_later():
                    process.start()
            finally:
                theirs.close()

    def watch(self, on_message: Callable[[int, Any], None], limit_s: float | None) -> list[Any]:
        end = time.monotonic() + limit_s if limit_s is not None else None
        while len(self.outcomes) < len(self.processes):
            if any(outcome.error for outcome in self.outcomes.values()):
                end = min(end or float("inf"), self._first_failure_at() + GRACE_S)
            left = None if end is None else max(0.0, end - time.monotonic())
            open_pipes = {self.pipes[w]: w for w in range(len(self.processes)) if w not in self.outcomes}
            ready = wait(list(open_pipes), left)
            if not ready:
                break
            for pipe in ready:
                worker = open_pipes[pipe]  # type: ignore[index]  # only pipes were given
                self._receive(worker, on_message)
        self._raise_first(limit_s)
        return [self.outcomes[worker].result for worker in range(len(self.processes))]

    def _receive(self, worker: int, on_message: Callable[[int, Any], None]) -> None:
        try:
            kind, content = pickle.loads(self.pipes[worker].recv_bytes())
        except (EOFError, OSError):  # it is gone, and has not said goodbye
            self.processes[worker].join(GRACE_S)
            code = self.processes[worker].exitcode
            how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with exit code {code}"
            error = WorkerDied(f"worker {worker} {how} without a word; look for its own output above, and at memory")
            self.outcomes[worker] = _Outcome(at=time.monotonic(), error=error)
            return
        if kind == "message":
            on_message(worker, content)
        elif kind == "result":
            self.outcomes[worker] = _Outcome(at=time.monotonic(), result=content)
        else:
            known = errors.by_name(content["kind"], content["message"])
            text = f"worker {worker} failed: {content['kind']}: {content['message']}"
            self.outcomes[worker] = _Outcome(
                at=content["at"],
                error=known or Failure(text),
                trace=content["trace"],
                lost_peer=content["lost_peer"],
            )

    def _first_failure_at(self) -> float:
        return min(outcome.at for outcome in self.outcomes.values() if outcome.error)

    def _raise_first(self, limit_s: float | None) -> None:
        """Raise what went wrong first: a loss of connection is never the cause while there is another."""
        failed = [outcome for outcome in self.outcomes.values() if outcome.error is not None]
        if failed:
            first = min(failed, key=lambda outcome: (outcome.lost_peer, outcome.at))
            assert first.error is not None
            if first.trace:
                first.error.add_note(first.trace)
            raise first.error
        late = [worker for worker in range(len(self.processes)) if worker not in self.outcomes]
        if late:
            names = ", ".join(map(str, late))
            raise WorkerDied(f"worker {names} had not ended after {limit_s:g} s and was stopped; allow more time")

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        for process in self.processes:
            if process.pid is not None:
                process.join(GRACE_S)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
        for pipe in self.pipes:
            pipe.close()


def _work(target: str, arguments: tuple, place: dict[str, Any], parent: Connection) -> None:
    """What a worker process does: stand at its place, call the function, say how it went."""
    global _parent
    _parent = parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if sys.platform == "linux":  # what the worker starts itself, such as loader workers, must not load torch again
        multiprocessing.set_start_method("fork", force=True)
    from worldsize.parallel import world

    try:
        world.stand_at(world.Place(**place))
        _send(parent, "result", resolve(target)(*arguments))
    except BaseException as error:
        _send(parent, "error", _describe(error))
    finally:
        if world.current() is not None:
            world.current().leave()  # type: ignore[union-attr]  # it was there a line ago
        sys.stdout.flush()
        sys.stderr.flush()


def _send(parent: Connection, kind: str, content: Any) -> None:
    # Pickled as a whole: the pipe's own way leaves tensors in shared memory that ends with the worker.
    parent.send_bytes(pickle.dumps((kind, content)))


def resolve(target: str) -> Callable:
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _describe(error: BaseException) -> dict[str, Any]:
    text = str(error).strip() or type(error).__name__
    return {
        "kind": type(error).__name__,
        "message": text.splitlines()[0] if not isinstance(error, WorldsizeError) else text,
        "trace": traceback.format_exc(),
        "at": time.monotonic(),
        "lost_peer": lost_peer(type(error).__name__, text),
    }


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Have Ctrl-C and the like wait until what is inside is done.

    A worker whose start was interrupted would be unknown to the one who has to end it. A mask alone does not help: the
    system then gives the signal to another thread, and Python raises in this one all the same.
    """
    if threading.current_thread() is not threading.main_thread():  # Python raises in the main thread only
        yield
        return
    seen: list[int] = []
    handled = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(each))]
    before = {each: signal.signal(each, lambda number, frame: seen.append(number)) for each in handled}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each, handler in before.items():
            signal.signal(each, handler)
        for number in seen[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Start a worker without running the parent's script in it: what workers call stands in a module.

    A script without a guard would otherwise start its own workers again, and a notebook has no file to run.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
