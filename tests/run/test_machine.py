"""How many workers there is room for: the cores of this process, or the time that its container is given."""

import os
from pathlib import Path

import pytest
import torch

from worldsize.run import machine
from worldsize.run.machine import cores, places_for_workers

BOUND_TO = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture
def quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The files in which a container of cgroup version 2, and of version 1, says its limit; neither is there yet."""
    found = tmp_path / "cpu.max", tmp_path / "cpu.cfs_quota_us"
    monkeypatch.setattr(machine, "QUOTAS", found)
    return found


def test_without_a_container_the_cores_are_those_the_process_is_bound_to(quotas):
    assert cores() == BOUND_TO
    assert places_for_workers("cpu") == BOUND_TO


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("50000 100000\n", 0.5),
        ("max 100000\n", BOUND_TO),
        (f"{BOUND_TO + 3}00000 100000\n", BOUND_TO),
        ("", BOUND_TO),
        ("50000\n", BOUND_TO),
    ],
)
def test_a_container_of_version_2_has_less_and_never_more(quotas, said, expected):
    quotas[0].write_text(said)
    assert cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("25000\n", 0.25), ("-1\n", BOUND_TO)])
def test_a_container_of_version_1_says_it_in_two_files(quotas, quota, expected):
    quotas[1].write_text(quota)
    quotas[1].with_name("cpu.cfs_period_us").write_text("100000\n")
    assert cores() == expected


def test_half_a_core_is_a_place_for_one_worker(quotas):
    quotas[0].write_text("50000 100000\n")
    assert places_for_workers("cpu") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: its places are counted")
def test_where_there_is_no_gpu_a_place_is_a_core(quotas):
    assert places_for_workers() == places_for_workers("cuda") == BOUND_TO
