"""A job alone in this process."""

from collections.abc import Iterator

import pytest
from train import trials

from worldsize.train.job import Job


@pytest.fixture
def job() -> Iterator[Job]:
    """A job alone in this process, left at the end."""
    made, _ = trials.small_job()
    with made:
        yield made
