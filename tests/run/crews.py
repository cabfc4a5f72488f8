"""What the workers of the pool's tests run, and how a test waits for the end of a process that is not its child."""

import os
import select
import signal
import threading

import torch
import torch.distributed as dist

from worldsize.errors import DataError
from worldsize.parallel.place import Place
from worldsize.parallel.world import current, join_world
from worldsize.run.pool import tell

WAIT_S = 60


def gone(pid: int) -> bool:
    """Wait for a process to end; False if it lives on."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(handle) as process:
        return bool(select.select([process], [], [], WAIT_S)[0])


def summed() -> float:
    mine = torch.ones(1)
    dist.all_reduce(mine)
    return mine.item()


def stand() -> tuple[int, int]:
    world = join_world()
    return world.worker, world.size


def greet(word: str) -> int:
    world = join_world()
    for turn in range(3):
        tell(f"{word} {world.worker} {turn}")
    return world.worker * 10


def fail_as_second(pipe: str) -> None:
    """Worker 0 says that its peer has gone; only then does worker 1 say why it failed."""
    if join_world().worker == 0:
        with open(pipe, "w"):  # a pipe with a name: it opens when the other end does
            raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:5. This is typically ...")
    with open(pipe) as other_end:
        other_end.read()
    raise ValueError("the label is 12")


def kill_one() -> None:
    if join_world().worker == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    summed()


def leave_without_a_word() -> None:
    if join_world().worker == 1:
        os._exit(7)
    summed()


def refuse() -> None:
    if join_world().worker == 1:
        raise DataError("no such file; look elsewhere")
    summed()


def wait_for_ever() -> None:
    tell(os.getpid())
    threading.Event().wait()


def stay_for_ever() -> None:
    """Not even the polite signal ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_ever()


def meet_at(meet: str, worker_of: list[int]) -> tuple[int, int, float]:
    """Join at a named place instead of the pool's."""
    given = join_as_told()
    place = Place(worker=worker_of[given], size=len(worker_of), meet=meet)
    world = join_world(place, limit_s=WAIT_S)
    found = (world.worker, world.size, summed())
    world.leave()
    return found


def meet_again(meet: str, times: int) -> list[float]:
    """Worlds after one another at the same place."""
    given = join_as_told()
    found = []
    for _ in range(times):
        world = join_world(Place(worker=given, size=2, meet=meet), limit_s=WAIT_S)
        found.append(summed())
        world.leave()
        assert os.path.exists(meet.removeprefix("file://")), "torch has removed the place of the next world"
    return found


def come_and_go(meet: str, workers: int, times: int) -> int:
    """Join and leave at once, without a word to the others."""
    given = join_as_told()
    for _ in range(times):
        join_world(Place(worker=given, size=workers, meet=meet), limit_s=WAIT_S).leave()
    return given


def join_as_told() -> int:
    """Join and leave the world that the pool has laid out, to learn one's number."""
    world = join_world()
    world.leave()
    assert current() is None
    return world.worker


def own_group(path: str) -> tuple[bool, str, bool]:
    """A program that has made its own group before it joins."""
    given = join_as_told()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=given, world_size=2)
    world = join_world()
    world.leave()
    found = (world.ours, world.backend, dist.is_initialized() and summed() == 2.0)
    dist.destroy_process_group()
    return found


def squared(number: int) -> dict[str, int]:
    return {"square": number * number, "size": join_world().size, "by": os.getpid(), "threads": torch.get_num_threads()}


def fail_at(number: int, bad: int) -> int:
    if number == bad:
        raise DataError(f"task {number} cannot be")
    return number
