"""What `exact` stands on: the settings without which equal inputs do not give equal bits. Set here, checked here.

`exact` promises the same bits for every world size, given the same device type, the same build of torch, the same
instruction set, one intra-op thread per worker on the CPU, the same batch per replica, and deterministic kernels.
"""

import ctypes
import os
import sys
from typing import Any

import torch

from worldsize.errors import Misuse
from worldsize.parallel.world import World

WORKSPACES = (":4096:8", ":16:8")
# mallopt(3): return no memory to the system below these sizes, so that gradients are not faulted in at every step.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def before_joining(*, exact: bool) -> None:
    """What must be in the environment before the GPU is first used, so before the world is joined."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    if not exact or not torch.cuda.is_available() or os.environ.get(name) in WORKSPACES:
        return
    if torch.cuda.is_initialized():  # cuBLAS reads it with its first handle, which may have been made already
        raise Misuse(
            f"`exact` needs {name}={WORKSPACES[0]} before the GPU is first used; set it in the environment, "
            "or call worldsize.join before anything on the GPU"
        )
    os.environ[name] = WORKSPACES[0]


def prepare(device: torch.device, *, exact: bool) -> None:
    """Set what the sync mode needs in this process; refuse in one line what can no longer hold."""
    if device.type == "cpu":
        torch.set_num_threads(1)
        _keep_memory()
    elif exact:
        _prepare_cuda()


def check(device: torch.device) -> None:
    """Has the program since undone what `exact` stands on?"""
    if device.type == "cpu" and torch.get_num_threads() != 1:
        raise Misuse(
            f"this worker now has {torch.get_num_threads()} intra-op threads, but `exact` needs one, since the number "
            "of threads changes the last bits of gradients; drop the call of torch.set_num_threads"
        )
    if device.type == "cuda":
        wrong = _wrong_on_cuda()
        if wrong:
            raise Misuse(f"`exact` cannot hold on this GPU: {'; '.join(wrong)}")


def facts(device: torch.device) -> dict[str, Any]:
    """What must be the same on all workers for `exact` to hold between them."""
    found = {"torch": torch.__version__, "device": device.type}
    if device.type == "cpu":
        return found | {"instructions": torch.backends.cpu.get_cpu_capability()}
    major, minor = torch.cuda.get_device_capability(device)
    return found | {"gpu": torch.cuda.get_device_name(device), "capability": f"{major}.{minor}"}


def compare(world: World, mine: dict[str, Any]) -> None:
    """Refuse to start when the workers differ in what they stand on. Every worker must call this."""
    everyone = world.gather(mine)
    for name in mine:
        values = [theirs[name] for theirs in everyone]
        if any(value != values[0] for value in values):
            odd = next(worker for worker, value in enumerate(values) if value != values[0])
            raise Misuse(
                f"the workers differ in {name}: worker 0 has {values[0]!r}, worker {odd} has {values[odd]!r}; "
                "start all workers from the same program, build and kind of machine"
            )


def _prepare_cuda() -> None:
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _wrong_on_cuda() -> list[str]:
    wrong = []
    if os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in WORKSPACES:
        wrong.append(f"CUBLAS_WORKSPACE_CONFIG must be one of {', '.join(WORKSPACES)} before the program starts")
    if not torch.are_deterministic_algorithms_enabled():
        wrong.append("torch.use_deterministic_algorithms(True) was undone")
    if torch.backends.cudnn.benchmark:
        wrong.append("torch.backends.cudnn.benchmark picks kernels by the clock; leave it False")
    if torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32:
        wrong.append("TF32 was switched on; leave it off")
    return wrong


def _keep_memory() -> None:
    """Keep freed gradients in the process: worth up to 1.4x on CPU, changes no bit. glibc only."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
