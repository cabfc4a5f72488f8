"""Many independent tasks on all cores: each worker takes the next one that nobody has taken.

The workers share no world. Each computes as one that is alone, so what comes of a task does not depend on how many
work, or on who takes what.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from worldsize.run import pool

Task = dict[str, Any]  # the named arguments of one call


def farm(
    function: Callable[..., Any],
    tasks: Sequence[Task],
    *,
    workers: int,
    on_done: Callable[[int, Any], None] = lambda place, result: None,
) -> list[Any]:
    """Call a module's function once for each task; the results in the order of the tasks.

    `on_done` hears of each as it ends, with its place. The first failure ends all.
    """
    results: dict[int, Any] = {}

    def receive(_: int, message: tuple[int, Any]) -> None:
        results[message[0]] = message[1]
        on_done(*message)

    if not tasks:
        return []
    target = f"{function.__module__}:{function.__qualname__}"
    with tempfile.TemporaryDirectory(prefix="worldsize-") as taken:
        pool.run_workers(_labour, target, list(tasks), taken, workers=min(workers, len(tasks)), on_message=receive)
    return [results[place] for place in range(len(tasks))]


def _labour(target: str, tasks: Sequence[Task], taken: str) -> None:
    """What one worker does until no task is left."""
    import torch

    from worldsize.parallel import world

    world.stand_at(world.Place(worker=0, size=1, local=0, meet=""))
    torch.set_num_threads(1)
    function = pool.resolve(target)
    for place, task in enumerate(tasks):
        if _take(Path(taken) / str(place)):
            pool.tell((place, function(**task)))
            gc.collect()  # a job and its model hold each other, and their tensors do not count as garbage that waits


def _take(claim: Path) -> bool:
    """Is this task ours? A file can be made anew by one process alone."""
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
