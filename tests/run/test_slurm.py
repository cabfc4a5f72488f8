"""On a real Slurm of two nodes on this machine: srun's tasks form a world, a batch script's own process is alone."""

import os
import shutil
import subprocess
import sys

import pytest

COMMANDS = ("srun", "sbatch", "slurmctld", "slurmd", "munged", "scontrol")
MISSING = [command for command in COMMANDS if shutil.which(command) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"needs slurm-wlm and munge: there is no {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: slurmd starts steps as their user"),
]

JOIN = """
import os, torch
import worldsize

model = torch.nn.Linear(2, 1)
job = worldsize.join(model, torch.optim.SGD(model.parameters(), 0.1), replicas=4, device="cpu", limit_s=60)
nodes = job.world.gather(os.environ.get("SLURMD_NODENAME"))
print("world", job.world.worker, job.world.size, sorted(nodes), flush=True)
job.close()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, repository):
    """Run a shell line in a private Slurm; what it printed."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "join.py").write_text(JOIN)
    python = f"{sys.executable} {folder}/join.py"

    def run(line: str) -> list[str]:
        env = os.environ | {"PYTHONPATH": str(repository / "src"), "TORCH_CPP_LOG_LEVEL": "ERROR", "JOIN": python}
        command = [str(repository / "tests" / "slurm.sh"), "bash", "-c", line]
        ended = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return sorted(line for line in ended.stdout.splitlines() if line.startswith("world"))

    return run


def test_tasks_on_two_nodes_form_a_world(slurm):
    assert slurm("srun -N 2 -n 2 $JOIN") == [f"world {worker} 2 ['n1', 'n2']" for worker in (0, 1)]


def test_tasks_on_one_node_and_one_alone(slurm):
    two = [f"world {worker} 2 ['n1', 'n1']" for worker in (0, 1)]
    assert slurm("srun -w n1 -n 2 $JOIN; srun -w n1 -n 1 $JOIN") == ["world 0 1 ['n1']", *two]


def test_a_batch_script_is_alone_and_its_step_is_a_world(slurm):
    # The pipe tells the end of the job; `sbatch --wait` asks for it only now and then.
    job = "sbatch -N 2 -n 2 -o out --wrap '$JOIN; srun $JOIN; echo > ended'"
    printed = slurm(f"mkfifo ended; {job} >&2; cat ended out")
    assert printed == ["world 0 1 ['n1']", "world 0 2 ['n1', 'n2']", "world 1 2 ['n1', 'n2']"]


def test_train_is_one_run_of_all_tasks(slurm):
    flags = "--model mlp --data generated:64:1x8x8:4 --epochs 1 --device cpu"
    train = f"{sys.executable} -m worldsize train {flags} --json"
    tell = f'{sys.executable} -c \'import json, sys; f = json.load(sys.stdin); print("world", f["weights_sha256"])\''
    one, two = slurm(f"{train} --workers 1 --out a | {tell}; srun -N 2 -n 2 {train} --out b | {tell}")
    assert one == two
