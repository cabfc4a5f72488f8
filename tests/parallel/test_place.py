"""Where a worker stands: what torchrun and Slurm say is read, and half of it is refused."""

import pytest

from worldsize.errors import LaunchError
from worldsize.parallel.place import Place, place_from

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


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


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
