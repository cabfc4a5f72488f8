"""The meeting: workers find each other at a file or an address, and nobody waits longer than the limit."""

import socket

import pytest
import torch.distributed as dist
from run import crews

from worldsize.errors import Failure, LaunchError
from worldsize.parallel.place import Place
from worldsize.parallel.world import join_world
from worldsize.run.pool import run_workers


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("scheme", ["file", "tcp"])
def test_three_workers_meet_at_a_file_or_an_address(tmp_path, scheme):
    meet = f"file://{tmp_path}/meet" if scheme == "file" else f"tcp://127.0.0.1:{free_port()}"
    found = run_workers(crews.meet_at, meet, [2, 0, 1], workers=3, limit_s=crews.WAIT_S)
    assert found == [(2, 3, 3.0), (0, 3, 3.0), (1, 3, 3.0)]


def test_a_world_forms_where_an_earlier_one_has_left_its_traces(tmp_path):
    found = run_workers(crews.meet_again, f"file://{tmp_path}/meet", 12, workers=2, limit_s=crews.WAIT_S)
    assert found == [[2.0] * 12] * 2


# ---- nobody waits for ever -------------------------------------------------------------------------------------------


def test_the_first_worker_names_those_that_are_missing(tmp_path):
    meet = f"file://{tmp_path}/meet"
    store = dist.FileStore(f"{tmp_path}/meet", 3)
    store.set("here/2", "left by an earlier world")
    with pytest.raises(
        Failure, match=r"^1 of 3 workers met at file://.* within 0.3 s: worker 1, 2 are missing"
    ) as caught:
        join_world(Place(worker=0, size=3, meet=meet), limit_s=0.3, device="cpu")
    assert caught.value.exit_code == 1
    assert "\n" not in str(caught.value)


def test_the_others_name_the_first_worker(tmp_path):
    with pytest.raises(Failure, match=r"^worker 1 of 2 waited 0.3 s at file://.*: worker 0 is missing"):
        join_world(Place(worker=1, size=2, meet=f"file://{tmp_path}/meet"), limit_s=0.3, device="cpu")


@pytest.mark.parametrize(("served", "who"), [(False, "worker 0"), (True, "the launcher")])
def test_a_place_where_nobody_is_gets_one_line(served, who, capfd):
    place = Place(worker=1, size=2, meet=f"tcp://127.0.0.1:{free_port()}", served=served)
    with pytest.raises(
        Failure, match=rf"^worker 1 of 2 found nobody at tcp://.* \(Connection refused\): {who} is miss"
    ):
        join_world(place, limit_s=0.3, device="cpu")
    assert capfd.readouterr().err == "", "torch would write pages of C++ frames"


def test_a_name_that_does_not_resolve_is_waited_for_no_longer():
    place = Place(worker=1, size=2, meet="tcp://no-such-host.invalid:29500")
    with pytest.raises(Failure, match=r"^worker 1 of 2 found nobody at tcp://no-such-host.invalid:29500 within 0.3 s"):
        join_world(place, limit_s=0.3, device="cpu")


def test_a_port_that_another_program_holds_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        place = Place(worker=0, size=2, meet=f"tcp://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(LaunchError, match="another run may hold the port: set another MASTER_PORT"):
            join_world(place, limit_s=5, device="cpu")
