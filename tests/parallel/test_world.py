"""The world: joined once and left again without a trace, on a device and over a backend that can be."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from parallel import worlds
from run import crews

from worldsize.errors import Misuse
from worldsize.parallel.place import Place
from worldsize.parallel.world import join_world
from worldsize.run.pool import run_workers

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: cuda is not refused")


def test_alone_there_is_no_group():
    world = join_world(Place(), device="cpu")
    assert (world.worker, world.size, world.ours, dist.is_initialized()) == (0, 1, False, False)
    assert join_world() is world, "a second call gives the same world"
    world.leave()


def test_a_worker_may_leave_as_soon_as_it_has_joined(tmp_path):
    found = run_workers(crews.come_and_go, f"file://{tmp_path}/meet", 3, 30, workers=3, limit_s=crews.WAIT_S)
    assert found == [0, 1, 2]


LEAVES = """
import os, sys, torch
from worldsize.parallel.place import Place
from worldsize.parallel.world import join_world

world = join_world(Place(worker=int(sys.argv[1]), size=2, meet=sys.argv[2]), device="cpu")
torch.optim.SGD([torch.zeros(1, requires_grad=True)])
world.barrier()
world.leave()
print(*(open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux tells the names of threads")
def test_no_thread_of_a_world_that_was_left_is_there_when_python_ends(tmp_path):
    # Not in the pool, whose workers have already imported what an optimizer imports only after joining.
    calls = [[sys.executable, "-c", LEAVES, str(worker), f"file://{tmp_path}/meet"] for worker in range(2)]
    started = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for call in calls]
    threads = [process.communicate(timeout=crews.WAIT_S)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert all("python" in names and "gloo" not in names for names in threads), threads


def test_a_group_that_the_program_made_is_used_and_left_alone(tmp_path):
    found = run_workers(crews.own_group, str(tmp_path / "own"), workers=2, limit_s=crews.WAIT_S)
    assert found == [(False, "gloo", True)] * 2


@pytest.mark.parametrize(("active", "workers"), [(5, 3), (4, 3), (3, 2), (1, 1)])
def test_rows_are_gathered_in_replica_order_from_the_workers_that_have_some(active, workers):
    found = run_workers(worlds.rows, 5, active, workers=3, limit_s=crews.WAIT_S)
    assert found == [[[float(replica)] * 2 for replica in range(active)]] * workers + [None] * (3 - workers)


# ---- devices ---------------------------------------------------------------------------------------------------------


@needs_no_gpu
def test_cuda_is_refused_where_there_is_none():
    with pytest.raises(Misuse, match="'cuda' was asked for, but this torch finds no GPU"):
        join_world(Place(), device="cuda")


def test_nccl_is_refused_on_the_cpu():
    with pytest.raises(Misuse, match="'nccl' was asked for, but it needs GPUs"):
        join_world(Place(), device="cpu", backend="nccl")


@pytest.mark.parametrize(("name", "value"), [("device", "tpu"), ("backend", "mpi")])
def test_an_unknown_name_is_refused_with_those_that_exist(name, value):
    with pytest.raises(Misuse, match=f"{name} '{value}'"):
        join_world(Place(), **({"device": "cpu"} | {name: value}))
