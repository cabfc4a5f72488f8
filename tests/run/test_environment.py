"""The environment of workers: set while they are started, and never over what the user has set."""

import os

import pytest

from worldsize.run.environment import ENVIRONMENT, for_workers


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment in which nothing of it is set."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_workers_find_all_of_it_and_afterwards_it_is_gone(bare):
    before = dict(os.environ)
    with for_workers():
        assert dict(os.environ) == before | ENVIRONMENT
    assert dict(os.environ) == before


def test_what_the_user_has_set_stays_and_is_still_there_afterwards(bare):
    bare.setenv("OMP_NUM_THREADS", "4")
    bare.setenv("GLOO_SOCKET_IFNAME", "")
    with for_workers():
        assert (os.environ["OMP_NUM_THREADS"], os.environ["GLOO_SOCKET_IFNAME"]) == ("4", "")
        assert os.environ["TORCH_CPP_LOG_LEVEL"] == ENVIRONMENT["TORCH_CPP_LOG_LEVEL"]
    assert (os.environ["OMP_NUM_THREADS"], os.environ["GLOO_SOCKET_IFNAME"]) == ("4", "")


def test_an_error_while_they_are_started_leaves_nothing_behind(bare):
    with pytest.raises(OSError, match="no more processes"), for_workers():
        raise OSError("no more processes")
    assert not ENVIRONMENT.keys() & os.environ.keys()


def test_one_world_within_another_leaves_the_outer_as_it_was(bare):
    with for_workers():
        with for_workers():
            pass
        assert ENVIRONMENT.items() <= os.environ.items()
