"""Which worker failed first: several do when one goes, and the one that is noticed first is seldom the cause."""

import signal
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# What gloo, NCCL and the store say when a peer has gone.
LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "recv failed",
    "Failed to recv",
    "Timed out waiting",
    "remote process exited",
    "communicator was aborted",
)
NO_CAUSE = {  # of a worker's failure while another failure exists; the greater the less
    "lost peer": 1,
    "ended": 2,
}


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """How one worker failed: `error` is the exception's last line, `at` the second since the epoch."""

    worker: int
    exit_code: int
    at: float
    error: str = ""
    kind: str = ""
    frame: str | None = None
    trace: str = ""
    shown: bool = False  # is its traceback on the screen
    log: Path | None = None

    @property
    def how(self) -> str:
        """With which exit code or by which signal.

        >>> WorkerFailure(worker=1, exit_code=-9, at=0).how
        'killed by SIGKILL'
        """
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        try:
            return f"killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"killed by signal {-self.exit_code}"

    @property
    def role(self) -> str:
        """What part it can have in the end of a run: "cause", "lost peer" or "ended"."""
        if self.exit_code == -signal.SIGTERM and not self.error:
            return "ended"  # by the launcher, as a rule, because of another's failure
        if lost_peer(self.kind, self.error) or self.exit_code == -signal.SIGABRT:
            return "lost peer"
        return "cause"

    def facts(self) -> dict[str, Any]:
        found = asdict(self) | {"how": self.how, "role": self.role, "log": str(self.log) if self.log else None}
        del found["shown"]
        return found


def lost_peer(kind: str, text: str) -> bool:
    """Did a worker fail because another had gone?"""
    return kind == "DistNetworkError" or any(sign in text for sign in LOST_PEER)


def in_order(failures: list[WorkerFailure]) -> list[WorkerFailure]:
    """The cause first; what can be no cause only if there is no other."""
    return sorted(failures, key=lambda failure: (NO_CAUSE.get(failure.role, 0), failure.at))
