"""Joining: what torchrun and Slurm say is read, half of it is refused, and nobody waits longer than the limit."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from run import crews

from worldsize.errors import Failure, LaunchError, Misuse
from worldsize.parallel.place import Place, place_from
from worldsize.parallel.world import join_world
from worldsize.run.pool import run_workers

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
}
# What a batch script sees itself: it was given tasks, but is not one of them.
SBATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_NODEID": "0"}
ALONE = Place()

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: cuda is not refused")


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({}, ALONE),
        ({"LOCAL_RANK": "1"}, ALONE),
        (TORCHRUN, Place(worker=1, size=4, local=1, meet="tcp://h:29500")),
        (TORCHRUN | {"MASTER_ADDR": "::1"}, Place(worker=1, size=4, local=1, meet="tcp://[::1]:29500")),
        (
            TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"},
            Place(worker=1, size=4, local=1, meet="tcp://h:29500", served=True),
        ),
        (without(TORCHRUN, "LOCAL_RANK"), Place(worker=1, size=4, meet="tcp://h:29500")),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, ALONE),
        (SRUN, Place(worker=3, size=4, local=1, meet="tcp://localhost:20114")),
        (SRUN | {"SLURM_GPUS_PER_TASK": "1"}, Place(worker=3, size=4, local=0, meet="tcp://localhost:20114")),
        (SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ALONE),
        (SRUN | {"MASTER_ADDR": "h"}, Place(worker=3, size=4, local=1, meet="tcp://h:20114")),
        (SRUN | {"MASTER_PORT": "5"}, Place(worker=3, size=4, local=1, meet="tcp://localhost:5")),
        (SRUN | {"WORLD_SIZE": "4"}, Place(worker=3, size=4, local=1, meet="tcp://localhost:20114")),
        (SRUN | TORCHRUN, Place(worker=1, size=4, local=1, meet="tcp://h:29500")),
        (SBATCH, ALONE),
    ],
)
def test_the_place_is_what_the_launcher_says(env, place):
    assert place_from(env) == place


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK, MASTER_ADDR, MASTER_PORT are not"),
        (without(TORCHRUN, "RANK"), "WORLD_SIZE, MASTER_ADDR, MASTER_PORT are set but RANK is not"),
        (without(TORCHRUN, "MASTER_PORT"), "but MASTER_PORT is not"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "but MASTER_ADDR is not"),
        (TORCHRUN | {"RANK": "one"}, "RANK is 'one', which is no number"),
        (TORCHRUN | {"LOCAL_RANK": ""}, "LOCAL_RANK is '', which is no number"),
        (TORCHRUN | {"MASTER_PORT": "-1"}, "MASTER_PORT is '-1'"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "port 70000"),
        (TORCHRUN | {"RANK": "4"}, "worker 4 in a world of 4: its workers are numbered 0 to 3"),
        (TORCHRUN | {"RANK": "0", "WORLD_SIZE": "0"}, "a world of 0 workers"),
        (without(SRUN, "SLURM_LOCALID"), "without SLURM_LOCALID"),
        (SRUN | {"WORLD_SIZE": "8"}, "WORLD_SIZE is 8, but srun has started 4 tasks"),
        (SRUN | {"SLURM_STEP_NODELIST": "no-such-host.invalid"}, "first host is 'no-such-host.invalid'"),
    ],
)
def test_half_a_launch_is_refused_in_one_line(env, words):
    with pytest.raises(LaunchError, match=words) as caught:
        place_from(env)
    assert "\n" not in str(caught.value)


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_alone_there_is_no_group():
    world = join_world(Place(), device="cpu")
    assert (world.worker, world.size, world.ours, dist.is_initialized()) == (0, 1, False, False)
    assert join_world() is world, "a second call gives the same world"
    world.leave()


@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_three_workers_meet_at_a_file_or_an_address(tmp_path, scheme):
    meet = f"file://{tmp_path}/meet" if scheme == "file" else f"tcp://127.0.0.1:{free_port()}"
    found = run_workers(crews.meet_at, meet, [2, 0, 1], workers=3, limit_s=crews.WAIT_S)
    assert found == [(2, 3, 3.0), (0, 3, 3.0), (1, 3, 3.0)]


def test_a_world_forms_where_an_earlier_one_has_left_its_traces(tmp_path):
    found = run_workers(crews.meet_again, f"file://{tmp_path}/meet", 12, workers=2, limit_s=crews.WAIT_S)
    assert found == [[2.0] * 12] * 2


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


# ---- nobody waits for ever -------------------------------------------------------------------------------------------


def test_the_first_worker_names_those_that_are_missing(tmp_path):
    meet = f"file://{tmp_path}/meet"
    store = dist.FileStore(f"{tmp_path}/meet", 3)
    store.set("here/2", "left by an earlier world")
    with pytest.raises(
        Failure, match=r"^1 of 3 workers met at file://.* within 0.3 s: worker 1, 2 are missing"
    ) as caught:
        join_world(Place(worker=0, size=3, meet=meet), limit_s=0.3, device="cpu")
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_the_others_name_the_first_worker(tmp_path):
    with pytest.raises(Failure, match=r"^worker 1 of 2 waited 0.3 s at file://.*: worker 0 is missing"):
        join_world(Place(worker=1, size=2, meet=f"file://{tmp_path}/meet"), limit_s=0.3, device="cpu")


@pytest.mark.parametrize(("served", "who"), [(False, "worker 0"), (True, "the launcher")])
def test_a_place_where_nobody_is_gets_one_line(served, who, capfd):
    place = Place(worker=1, size=2, meet=f"tcp://127.0.0.1:{free_port()}", served=served)
    with pytest.raises(
        Failure, match=rf"^worker 1 of 2 found nobody at tcp://.* \(Connection refused\): {who} is miss"
    ):
        join_world(place, limit_s=0.3, device="cpu")
    assert capfd.readouterr().err == "", "torch would write pages of C++ frames"


def test_a_name_that_does_not_resolve_is_waited_for_no_longer():
    place = Place(worker=1, size=2, meet="tcp://no-such-host.invalid:29500")
    with pytest.raises(Failure, match=r"^worker 1 of 2 found nobody at tcp://no-such-host.invalid:29500 within 0.3 s"):
        join_world(place, limit_s=0.3, device="cpu")


def test_a_port_that_another_program_holds_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        place = Place(worker=0, size=2, meet=f"tcp://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(LaunchError, match="another run may hold the port: set another MASTER_PORT"):
            join_world(place, limit_s=5, device="cpu")


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
