"""Where a worker stands before it has joined: read once from what torchrun or Slurm has set, refused when half-set."""

import re
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from worldsize.errors import LaunchError

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
# Of each job step its own port, below those that Linux hands out by itself.
FIRST_PORT, PORTS = 20000, 12000


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker stands: its number, how many there are, its number on this host, and where they meet."""

    worker: int = 0
    size: int = 1
    local: int = 0
    meet: str = ""  # tcp://host:port or file://path; empty for a worker alone
    served: bool = False  # the launcher keeps the meeting place; otherwise the first worker does

    def __post_init__(self) -> None:
        if self.size < 1:
            raise LaunchError(f"a world of {self.size} workers: there must be at least one")
        if not 0 <= self.worker < self.size:
            raise LaunchError(
                f"worker {self.worker} in a world of {self.size}: its workers are numbered 0 to {self.size - 1}"
            )


def place_from(env: Mapping[str, str]) -> Place:
    """Read what torchrun or srun has set; with none of it set this is a worker alone.

    >>> place_from({})
    Place(worker=0, size=1, local=0, meet='', served=False)
    >>> place_from({"RANK": "1"})
    Traceback (most recent call last):
    worldsize.errors.LaunchError: RANK is set but WORLD_SIZE, MASTER_ADDR, MASTER_PORT are not: \
launched half-way; start with torchrun or `worldsize run`, or unset RANK
    """
    if "RANK" in env:
        return _from_torchrun(env)
    # A batch script has SLURM_PROCID too, but only a step of srun has a number of tasks: without it, one is alone.
    if "SLURM_STEP_NUM_TASKS" in env:
        return _from_srun(env)
    if "WORLD_SIZE" in env:
        return _from_torchrun(env)
    return Place()


def _from_torchrun(env: Mapping[str, str]) -> Place:
    there = [name for name in TORCHRUN if env.get(name)]
    missing = [name for name in TORCHRUN if not env.get(name)]
    if missing:
        raise LaunchError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} set but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not: launched half-way; start with torchrun or "
            f"`worldsize run`, or unset {', '.join(there)}"
        )
    worker, size, port = (_number(env, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    # Kubernetes' operators start one worker a pod, and set no LOCAL_RANK.
    local = _number(env, "LOCAL_RANK") if "LOCAL_RANK" in env else 0
    served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    meet = _tcp(env["MASTER_ADDR"], port) if size > 1 else ""
    return Place(worker=worker, size=size, local=local, meet=meet, served=served)


def _from_srun(env: Mapping[str, str]) -> Place:
    missing = [name for name in SRUN if name not in env]
    if missing:
        raise LaunchError(f"srun has set a part of the world only, without {', '.join(missing)}; start with srun")
    worker, size, local = (_number(env, name) for name in SRUN)
    if "WORLD_SIZE" in env and _number(env, "WORLD_SIZE") != size:
        raise LaunchError(
            f"WORLD_SIZE is {env['WORLD_SIZE']}, but srun has started {size} tasks; "
            "unset WORLD_SIZE, or make them equal"
        )
    if "SLURM_GPUS_PER_TASK" in env:
        local = 0  # Slurm then shows each task its own GPUs only
    meet = _meeting_place_of_step(env) if size > 1 else ""
    return Place(worker=worker, size=size, local=local, meet=meet)


def _number(env: Mapping[str, str], name: str) -> int:
    if not env[name].isascii() or not env[name].isdigit():
        raise LaunchError(f"{name} is {env[name]!r}, which is no number; start with torchrun or `worldsize run`")
    return int(env[name])


def _tcp(host: str, port: int) -> str:
    if not 0 < port < 2**16:
        raise LaunchError(f"port {port} to meet at: ports are numbered 1 to {2**16 - 1}; set another MASTER_PORT")
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


# ---- Slurm -----------------------------------------------------------------------------------------------------------


def _meeting_place_of_step(env: Mapping[str, str]) -> str:
    """Where the workers of a Slurm step meet: its first host, at a port that only this step uses, unless told."""
    host = env.get("MASTER_ADDR") or _address(first_host(env.get("SLURM_STEP_NODELIST", "")))
    if env.get("MASTER_PORT"):
        return _tcp(host, _number(env, "MASTER_PORT"))
    step = sum(int(env[name]) * weight for name, weight in (("SLURM_JOB_ID", 16), ("SLURM_STEP_ID", 1)) if name in env)
    return _tcp(host, FIRST_PORT + step % PORTS)


def first_host(nodes: str) -> str:
    """The first host of Slurm's short form of a list; without scontrol, which containers often lack.

    >>> first_host("n[03-07,9],login"), first_host("rack[2,4]-cpu[01-16]"), first_host("alone")
    ('n03', 'rack2-cpu01', 'alone')
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None  # the pattern matches the empty string too
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def _address(host: str) -> str:
    """The host's name if it resolves; otherwise the address under which Slurm itself reaches it."""
    try:
        socket.getaddrinfo(host, None)
        return host
    except OSError:
        pass
    try:
        shown = subprocess.run(
            ["scontrol", "show", "node", host, "--oneliner"], capture_output=True, text=True, check=True, timeout=60
        )
        return re.findall(r"\bNodeAddr=(\S+)", shown.stdout)[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        raise LaunchError(
            f"srun's first host is {host!r}, which neither resolves nor is known to scontrol; set MASTER_ADDR"
        ) from None
