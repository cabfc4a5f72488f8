"""Failures: the cause goes before what came of it, and each is told by how it ended and what part it had."""

import json
from pathlib import Path

import pytest

from worldsize.run.failures import LOST_PEER, WorkerFailure, in_order, lost_peer


def failure(worker: int, **facts: object) -> WorkerFailure:
    return WorkerFailure(**({"worker": worker, "exit_code": 1, "at": float(worker)} | facts))


@pytest.mark.parametrize(
    ("failures", "order"),
    [
        ([failure(0, error="KeyError: 1"), failure(1, error="ValueError: 2")], [0, 1]),
        ([failure(0, error="KeyError: 1", at=3.0), failure(1, error="ValueError: 2")], [1, 0]),
        ([failure(0, error="RuntimeError: Connection closed by peer"), failure(1, error="ValueError: 2")], [1, 0]),
        ([failure(0, kind="DistNetworkError", error="lost"), failure(1, exit_code=-9)], [1, 0]),
        ([failure(0, exit_code=-15), failure(1, error="recv failed"), failure(2, exit_code=-11)], [2, 1, 0]),
        ([failure(0, exit_code=-6), failure(1, error="ValueError: 2")], [1, 0]),
        ([failure(0, exit_code=-15), failure(1, exit_code=-15)], [0, 1]),
        ([failure(0, error="Broken pipe"), failure(1, error="Broken pipe")], [0, 1]),
    ],
)
def test_a_cause_goes_before_what_came_of_it(failures, order):
    assert [one.worker for one in in_order(failures)] == order


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-6, "killed by SIGABRT"),
        (-99, "killed by signal 99"),
    ],
)
def test_an_end_is_told_as_an_exit_code_or_a_signal(exit_code, how):
    assert failure(0, exit_code=exit_code).how == how


@pytest.mark.parametrize(
    ("facts", "role"),
    [
        ({}, "cause"),
        ({"exit_code": -9}, "cause"),
        ({"exit_code": -15}, "ended"),
        ({"exit_code": -15, "error": "ValueError: 2"}, "cause"),
        ({"exit_code": -6}, "lost peer"),
        ({"kind": "DistNetworkError", "error": "whatever it says"}, "lost peer"),
        ({"error": "RuntimeError: [gloo] Connection reset by peer [::1]:5"}, "lost peer"),
    ],
)
def test_a_worker_that_was_ended_or_lost_a_peer_is_no_cause(facts, role):
    assert failure(0, **facts).role == role


@pytest.mark.parametrize("sign", LOST_PEER)
def test_every_sign_of_a_lost_peer_is_seen_wherever_it_stands(sign):
    assert lost_peer("RuntimeError", f"RuntimeError: {sign} (of worker 3)")
    assert not lost_peer("ValueError", f"ValueError: {sign[:-1]}")


def test_the_facts_of_a_failure_are_json_and_hold_what_it_can_be_told_by():
    facts = failure(1, exit_code=-9, log=Path("logs") / "1", shown=True).facts()
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["how"], facts["role"], facts["log"]) == ("killed by SIGKILL", "cause", "logs/1")
    assert "shown" not in facts, "of the screen, not of the failure"
    assert failure(1).facts()["log"] is None
