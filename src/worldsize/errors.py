"""Every error a user can meet: what was asked, why it cannot be, and what would work.

    WorldsizeError
    ├── Misuse            asked for something that cannot be; nothing was started or written (exit 2)
    │   ├── LaunchError   the environment says two things about where this worker stands
    │   ├── DataError     a data set is unknown, missing, cut short or corrupt
    │   ├── LossError     job.backward got something that is not a loss
    │   └── ResumeError   a checkpoint does not fit what it is to continue
    └── Failure           it ran and failed (exit 1)
        ├── NotFinite     the loss of a replica is NaN or infinite
        └── WorkerDied    a worker ended without a word

Messages are one line, in lower case, in three parts: what you asked with your numbers; why it cannot be; the nearest
thing that works.
"""


class WorldsizeError(Exception):
    """Anything worldsize has to say to a user; `exit_code` is what the command line returns for it."""

    exit_code = 1


class Misuse(WorldsizeError, ValueError):
    """What was asked cannot be done; nothing was started or written."""

    exit_code = 2


class LaunchError(Misuse):
    """The environment describes the world only in part, or in two ways."""


class DataError(Misuse):
    """A data set is unknown, missing, cut short or corrupt."""


class LossError(Misuse, TypeError):
    """What the user's loss returned is not a loss."""


class ResumeError(Misuse):
    """A checkpoint does not fit the model, data or experiment that it is to continue."""


class Failure(WorldsizeError, RuntimeError):
    """The run started and failed."""


class NotFinite(Failure):
    """The loss of one replica became NaN or infinite."""


class WorkerDied(Failure):
    """A worker ended without saying why."""


def by_name(name: str, message: str) -> WorldsizeError | None:
    """The error of this class name, to carry one from a worker to its parent; None if the name is not ours.

    >>> by_name("DataError", "no such file").exit_code
    2
    """
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, WorldsizeError):
        return kind(message)
    return None
