"""Is this machine ready: what there is, whether it will do, and what to do about it."""

import importlib.util
import json
import os
import platform
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from worldsize.errors import WorldsizeError
from worldsize.parallel.place import place_from
from worldsize.parallel.world import join_world
from worldsize.run.machine import cores
from worldsize.run.pool import run_workers
from worldsize.train import data

GIB = 2**30
ELEMENTS = 2**20  # of the tensor that two workers sum
ROUNDS = 10
LIMIT_S = 60
LITTLE_MEMORY = 2 * GIB
LITTLE_SHARED, TOO_LITTLE_SHARED = GIB, 32 * 2**20
SHARED = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
# Where Linux says how much memory a container may use; cgroup version 2, then 1.
MEMORY = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at: the fact, whether it will do, and if not, what would help."""

    name: str
    fact: str
    verdict: Literal["ok", "note", "bad"] = "ok"
    fix: str = ""


def examine() -> list[Finding]:
    """Look at everything that training on several workers rests on. Starts two workers; prints nothing."""
    looks: tuple[Callable[[], Finding], ...] = (
        _python,
        _torch,
        _devices,
        _cores,
        _memory,
        _shared_memory,
        _threads,
        _host_name,
        _launch,
        _two_workers,
        _data,
        _jupyter,
        _compiler,
        _slurm,
    )
    return [look() for look in looks]


def show(findings: list[Finding], as_json: bool) -> int:
    """Print the findings, as a table or as JSON; 1 if one of them is bad, else 0."""
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _table(findings)
    return int(any(finding.verdict == "bad" for finding in findings))


def _table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "note": "yellow", "bad": "bold red"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        told = Text(finding.fact)
        if finding.fix:
            told.append(f"\n-> {finding.fix}", style="dim")
        table.add_row(Text(finding.verdict, style=styles[finding.verdict]), finding.name, told)
    Console().print(table)


# ---- the programs ----------------------------------------------------------------------------------------------------


def _python() -> Finding:
    fact = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if sys.platform != "linux":
        return Finding(name="python", fact=fact, verdict="note", fix="worldsize is proved on Linux only")
    return Finding(name="python", fact=fact)


def _torch() -> Finding:
    fact = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    if not (dist.is_available() and dist.is_gloo_available()):
        fix = "install a build of torch that has torch.distributed with gloo, such as the one on PyPI"
        return Finding(name="torch", fact=f"{fact}, without torch.distributed or gloo", verdict="bad", fix=fix)
    return Finding(name="torch", fact=f"{fact}, gloo")


def _devices() -> Finding:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        if torch.version.cuda is None:
            return Finding(name="devices", fact="no GPU: this build of torch is for the CPU")
        fix = "if there is one, look at its driver with nvidia-smi; otherwise train on the CPU"
        fact = f"no GPU found, though torch is built for CUDA {torch.version.cuda}"
        return Finding(name="devices", fact=fact, verdict="note", fix=fix)
    names = sorted({torch.cuda.get_device_name(device) for device in range(count)})
    fact = f"{count} x {', '.join(names)}"
    if not dist.is_nccl_available():
        fix = "install a build of torch with NCCL, or train with --device cpu"
        return Finding(name="devices", fact=f"{fact}, but no NCCL", verdict="bad", fix=fix)
    return Finding(name="devices", fact=f"{fact}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")


def _jupyter() -> Finding:
    if importlib.util.find_spec("jupyterlab") is not None:
        return Finding(name="jupyter", fact="JupyterLab is installed")
    fix = "pip install jupyterlab, if you want to open the labs"
    return Finding(name="jupyter", fact="no JupyterLab; only the labs need it", verdict="note", fix=fix)


def _compiler() -> Finding:
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if found:
        return Finding(name="compiler", fact=f"{found}, for torch.compile on the CPU")
    fix = "install g++, if you want torch.compile"
    return Finding(name="compiler", fact="no C++ compiler; only torch.compile needs it", verdict="note", fix=fix)


def _slurm() -> Finding:
    found = shutil.which("srun")
    return Finding(name="slurm", fact=f"{found}" if found else "no srun: this machine is no Slurm cluster's")


# ---- the machine -----------------------------------------------------------------------------------------------------


def _cores() -> Finding:
    there = os.cpu_count() or 1
    allowed = cores()
    fact = f"{allowed:g} of {there} CPU cores may be used"
    if allowed < 2:
        fix = "give this process two cores or more; two workers on one core take turns"
        return Finding(name="cores", fact=fact, verdict="note", fix=fix)
    return Finding(name="cores", fact=f"{fact}: up to {int(allowed)} workers on the CPU without sharing one")


def _memory() -> Finding:
    if not MEMINFO.exists():
        return Finding(name="memory", fact="how much there is, only Linux says", verdict="note", fix="look yourself")
    total, free = _memory_of_system()
    limit = _number_in(MEMORY)
    if limit is not None and limit < total:
        total, free = limit, min(free, limit)
    fact = f"{free / GIB:.1f} of {total / GIB:.1f} GiB of memory free"
    if free < LITTLE_MEMORY:
        return Finding(name="memory", fact=fact, verdict="note", fix="use fewer workers: each takes about 0.5 GiB")
    return Finding(name="memory", fact=fact)


def _shared_memory() -> Finding:
    if not SHARED.is_dir():
        fix = "mount a tmpfs there; loaders with workers need it"
        return Finding(name="shared memory", fact=f"there is no {SHARED}", verdict="note", fix=fix)
    size, _, free = shutil.disk_usage(SHARED)
    fact = f"{free / GIB:.2f} of {size / GIB:.2f} GiB free in {SHARED}"
    if free >= LITTLE_SHARED:
        return Finding(name="shared memory", fact=fact)
    fix = "in a container, start it with --shm-size=2g; otherwise remove old files there"
    return Finding(name="shared memory", fact=fact, verdict="bad" if free < TOO_LITTLE_SHARED else "note", fix=fix)


def _threads() -> Finding:
    said = os.environ.get("OMP_NUM_THREADS")
    fact = f"OMP_NUM_THREADS is {said or 'not set'}; torch uses {torch.get_num_threads()} here, and 1 in each worker"
    if said not in (None, "1"):
        fix = "unset OMP_NUM_THREADS: workers inherit it, and several threads each slow one another down"
        return Finding(name="threads", fact=fact, verdict="note", fix=fix)
    return Finding(name="threads", fact=fact)


def _host_name() -> Finding:
    name = socket.gethostname()
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        fix = "add the line '127.0.0.1 localhost' to /etc/hosts"
        return Finding(name="host name", fact="localhost does not resolve", verdict="bad", fix=fix)
    try:
        address = socket.gethostbyname(name)
    except OSError:
        fix = f"add {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo for scripts that you start with torchrun"
        return Finding(name="host name", fact=f"{name} does not resolve", verdict="note", fix=fix)
    return Finding(name="host name", fact=f"{name} is {address}, localhost resolves")


def _number_in(paths: tuple[Path, ...]) -> int | None:
    for path in paths:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            continue
    return None


def _memory_of_system() -> tuple[int, int]:
    """All memory, and what is available, in bytes."""
    lines = MEMINFO.read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024


# ---- several workers -------------------------------------------------------------------------------------------------


def _launch() -> Finding:
    try:
        place = place_from(os.environ)
    except WorldsizeError as error:
        return Finding(name="launch", fact=str(error), verdict="bad", fix="unset what is left of another launch")
    if place.size == 1:
        return Finding(name="launch", fact="no launcher's variables are set: this process is alone")
    fact = f"this process stands as worker {place.worker} of {place.size}, to meet at {place.meet}"
    return Finding(name="launch", fact=fact, verdict="note", fix="run worldsize doctor outside of torchrun and srun")


def _two_workers() -> Finding:
    device = "cuda" if torch.cuda.is_available() and torch.cuda.device_count() > 1 else "cpu"
    backend = "NCCL" if device == "cuda" else "gloo"
    name = "two workers"
    try:
        results = run_workers(_sum, device, workers=2, limit_s=LIMIT_S)
    except WorldsizeError as error:
        fact = f"an all-reduce over {backend} failed: {' '.join(str(error).split())}"
        return Finding(name=name, fact=fact, verdict="bad", fix="look at memory, the host name and shared memory above")
    right = all(correct for correct, _ in results)
    took_ms = 1000 * max(took_s for _, took_s in results)
    fact = f"an all-reduce of {ELEMENTS * 4 / 2**20:g} MiB over {backend} took {took_ms:.1f} ms"
    if not right:
        fix = "install torch again: what two workers summed is not their sum"
        return Finding(name=name, fact=f"{fact} and gave a wrong sum", verdict="bad", fix=fix)
    return Finding(name=name, fact=f"{fact}, and its sum is right")


def _sum(device: str) -> tuple[bool, float]:
    """In a worker: is the sum over two workers right, and how long does it take, in the median?"""
    world = join_world(device=device, limit_s=LIMIT_S)
    correct, took_s = True, []
    for _ in range(ROUNDS):
        mine = torch.full((ELEMENTS,), world.worker + 1.0, device=world.device)
        world.barrier()
        start = time.perf_counter()
        dist.all_reduce(mine)
        correct &= bool((mine == 3.0).all())
        took_s.append(time.perf_counter() - start)
    return correct, statistics.median(took_s)


def _data() -> Finding:
    folders = [folder for folder in (data.cache_dir(), data.SYSTEM) if _has_all(folder)]
    try:
        data.load("fashion-10k")
    except WorldsizeError as error:
        return Finding(name="data", fact=str(error), verdict="bad", fix="install worldsize again")
    if folders:
        return Finding(name="data", fact=f"all of Fashion-MNIST in {folders[0]}; fashion-10k inside the package")
    fact = "fashion-10k inside the package; all of Fashion-MNIST was not found"
    fix = f"apt-get install dataset-fashion-mnist, or put its four files into {data.cache_dir()}"
    return Finding(name="data", fact=fact, verdict="note", fix=fix)


def _has_all(folder: Path) -> bool:
    return all((folder / f"{name}.gz").exists() or (folder / name).exists() for name in data.FASHION)
