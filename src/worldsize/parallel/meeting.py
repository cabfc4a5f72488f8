"""The meeting: workers find each other within a limit, and whoever is missing is named.

torch's own rendezvous would wait too, but says only that a time ran out, over pages of C++ frames.
"""

import hashlib
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlparse

import torch.distributed as dist

from worldsize.errors import Failure, LaunchError
from worldsize.parallel.place import Place

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.25
_opened: dict[str, dist.Store] = {}


def meet(place: Place, limit_s: float) -> dist.Store:
    """A store that this world's workers share, and nobody else, once all of them are there."""
    deadline = _Deadline(limit_s)
    # Kept: when the last one lets go of a file, torch removes it, though the next world may be meeting there already.
    store = _opened[place.meet] = _opened.get(place.meet) or _open(place, deadline)
    try:
        call = _call_roll(store, place, deadline) if place.worker == 0 else _answer_roll(store, place, deadline)
    except dist.DistError as error:  # the first worker keeps the store, and has gone
        raise Failure(
            f"worker {place.worker} lost the meeting place {place.meet}: {_first_line(error)}; "
            "see what worker 0 wrote last"
        ) from None
    store.set_timeout(timedelta(seconds=limit_s))
    return dist.PrefixStore(f"worldsize/{call}", store)


class _Deadline:
    """A limit, and pauses that get longer until it has passed."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.end = time.monotonic() + limit_s

    def left_s(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def pauses(self) -> Iterator[None]:
        """Give the caller a try, then pause, until the limit has passed; there is always one try."""
        pause_s = FIRST_PAUSE_S
        yield
        while self.left_s():
            time.sleep(min(pause_s, self.left_s()))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            yield


# ---- the store that they meet in -------------------------------------------------------------------------------------


def _open(place: Place, deadline: _Deadline) -> dist.Store:
    where = urlparse(place.meet)
    if where.scheme == "file":
        return dist.FileStore(where.path, place.size)
    assert where.scheme == "tcp", place.meet
    host, port = str(where.hostname), int(where.port or 0)
    serves = place.worker == 0 and not place.served
    if not serves:
        _await_server(place, host, port, deadline)
    try:
        return dist.TCPStore(
            host,
            port,
            place.size,
            is_master=serves,
            timeout=timedelta(seconds=deadline.limit_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistError as error:
        if serves:
            raise LaunchError(
                f"worker 0 cannot open {place.meet} for the others: {_first_line(error)}; "
                "another run may hold the port: set another MASTER_PORT"
            ) from None
        raise Failure(f"worker {place.worker} cannot use {place.meet}: {_first_line(error)}") from None


def _await_server(place: Place, host: str, port: int, deadline: _Deadline) -> None:
    """Knock until somebody opens: a host may come up, or get its name, later than this one."""
    why = ""
    for _ in deadline.pauses():
        try:
            socket.create_connection((host, port), timeout=max(1.0, deadline.left_s())).close()
            return
        except OSError as error:
            why = str(error.strerror or error)
    whose = "the launcher" if place.served else "worker 0"
    raise Failure(
        f"worker {place.worker} of {place.size} found nobody at {place.meet} within {deadline.limit_s:g} s ({why}): "
        f"{whose} is missing; see whether it was started and what it wrote last, or allow more time"
    )


# ---- the roll --------------------------------------------------------------------------------------------------------
#
# A store may hold what an earlier world left in it: a launcher that restarts its workers gives them the old one. So
# each worker brings a fresh token, the first worker calls them all, and only who is called by the fresh token answers.


def _call_roll(store: dist.Store, place: Place, deadline: _Deadline) -> str:
    token = uuid.uuid4().hex
    absent = list(range(1, place.size))
    tokens = dict.fromkeys(absent, "")
    for _ in deadline.pauses():
        for worker in absent:
            if store.check([f"here/{worker}"]):
                tokens[worker] = store.get(f"here/{worker}").decode()
        roll = ",".join([token, *tokens.values()])
        store.set("roll", roll)
        call = _name(roll)
        absent = [worker for worker in absent if not store.check([f"answer/{token}/{worker}/{tokens[worker]}"])]
        if not absent:
            store.set(f"begin/{call}", "yes")
            return call
    raise Failure(
        f"{place.size - len(absent)} of {place.size} workers met at {place.meet} within {deadline.limit_s:g} s: "
        f"worker {', '.join(map(str, absent))} {'is' if len(absent) == 1 else 'are'} missing; "
        "see whether it was started and what it wrote last, or allow more time"
    )


def _answer_roll(store: dist.Store, place: Place, deadline: _Deadline) -> str:
    token = uuid.uuid4().hex
    store.set(f"here/{place.worker}", token)
    called = False
    for _ in deadline.pauses():
        if not store.check(["roll"]):
            continue
        roll = store.get("roll").decode()
        tokens = roll.split(",")
        if len(tokens) == place.size and tokens[place.worker] == token:
            called = True
            store.set(f"answer/{tokens[0]}/{place.worker}/{token}", "yes")
            if store.check([f"begin/{_name(roll)}"]):
                return _name(roll)
    others = "another worker is missing, and worker 0 says which" if called else "worker 0 is missing"
    raise Failure(
        f"worker {place.worker} of {place.size} waited {deadline.limit_s:g} s at {place.meet}: {others}; "
        "see whether it was started and what it wrote last, or allow more time"
    )


def _name(roll: str) -> str:
    return hashlib.sha256(roll.encode()).hexdigest()[:16]


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
