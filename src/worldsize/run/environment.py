"""What workers need in their environment before they load anything; what the user has set stays as it is."""

import contextlib
import os
import sys
from collections.abc import Iterator

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # with more, neighbours on the same cores slow each other down many times over
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),  # keep freed gradients: up to 1.4x on CPU
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # a peer's death is reported by the parent, in one line
}


@contextlib.contextmanager
def for_workers() -> Iterator[None]:
    """Have it in this process's own environment while workers, which inherit it, are started."""
    before = dict(os.environ)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        for name in ENVIRONMENT:
            if name not in before:
                os.environ.pop(name, None)
