"""`worldsize doctor`: facts about this machine, and a verdict that follows the machine."""

import json
import os
import subprocess
import sys

import pytest

from worldsize.run import doctor, machine
from worldsize.run.doctor import Finding, examine, show


@pytest.fixture(scope="module")
def findings():
    return examine()


def by_name(findings: list[Finding], name: str) -> Finding:
    (found,) = (finding for finding in findings if finding.name == name)
    return found


def test_everything_is_looked_at_once(findings):
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names) == 14
    assert all(finding.fact for finding in findings)
    assert all(finding.fix for finding in findings if finding.verdict != "ok"), "who finds fault says what would help"


def test_two_workers_really_sum(findings):
    found = by_name(findings, "two workers")
    assert found.verdict == "ok"
    assert "its sum is right" in found.fact


def test_the_embedded_data_are_found(findings):
    assert "fashion-10k inside the package" in by_name(findings, "data").fact


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("note", 0), ("bad", 1)])
def test_only_what_is_bad_is_a_failure(capsys, as_json, verdict, code):
    found = Finding(name="cores", fact="none of [4] cores", verdict=verdict, fix="buy some")
    assert show([Finding(name="torch", fact="there"), found], as_json=as_json) == code
    printed = capsys.readouterr().out
    if as_json:
        told = {"name": "cores", "fact": "none of [4] cores", "verdict": verdict, "fix": "buy some"}
        assert json.loads(printed)[1] == told
    else:
        assert [line.split() for line in printed.splitlines()] == [
            ["ok", "torch", "there"],
            [verdict, "cores", "none", "of", "[4]", "cores"],
            ["->", "buy", "some"],
        ]


def test_half_a_launch_is_bad(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    found = doctor._launch()
    assert found.verdict == "bad"
    assert found.fact.startswith("RANK is set but WORLD_SIZE")


def test_a_containers_limits_are_read(tmp_path, monkeypatch):
    quota, limit = tmp_path / "cpu.max", tmp_path / "memory.max"
    quota.write_text("50000 100000\n")
    limit.write_text(f"{2**30}\n")
    monkeypatch.setattr(machine, "QUOTAS", (quota, tmp_path / "none"))
    monkeypatch.setattr(doctor, "MEMORY", (limit,))
    assert doctor._cores().fact.startswith("0.5 of ")
    assert doctor._cores().verdict == "note"
    assert "of 1.0 GiB" in doctor._memory().fact
    quota.write_text("max 100000\n")
    limit.write_text("max\n")
    assert not doctor._cores().fact.startswith("0.5 of ")
    assert "of 1.0 GiB" not in doctor._memory().fact


@pytest.mark.parametrize(("little", "too_little", "verdict"), [(0, 0, "ok"), (2**60, 0, "note"), (2**60, 2**60, "bad")])
def test_little_shared_memory_is_told(monkeypatch, little, too_little, verdict):
    monkeypatch.setattr(doctor, "LITTLE_SHARED", little)
    monkeypatch.setattr(doctor, "TOO_LITTLE_SHARED", too_little)
    assert doctor._shared_memory().verdict == verdict


def test_several_threads_a_worker_are_told(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert doctor._threads().verdict == "note"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert doctor._threads().verdict == "ok"


def test_a_machine_without_programs_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert doctor._compiler().verdict == "note"
    assert doctor._slurm().verdict == "ok", "most machines are no cluster's"


def test_workers_that_cannot_talk_are_bad(repository):
    """In a process of its own: the fork server keeps the environment that it was started with."""
    source = (
        "from worldsize.run import doctor\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit(doctor.show([doctor._two_workers()], as_json=True))\n"
    )
    env = os.environ | {"PYTHONPATH": str(repository / "src"), "GLOO_SOCKET_IFNAME": "nowhere0"}
    ended = subprocess.run([sys.executable, "-c", source], env=env, capture_output=True, text=True)
    (found,) = json.loads(ended.stdout)
    assert (ended.returncode, found["verdict"]) == (1, "bad")
    assert "nowhere0" in found["fact"]
    assert "\n" not in found["fact"]
