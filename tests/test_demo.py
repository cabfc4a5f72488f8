"""The demo: the same weights on one worker and on several, ratios within one round, and a page of it."""

import json
from pathlib import Path

import pytest

from worldsize import demo
from worldsize.errors import Misuse
from worldsize.run.pool import run_workers
from worldsize.train.settings import Run

TINY = {"model": "mlp", "data": "generated:64:1x8x8:4", "device": "cpu", "epochs": 2, "lr": 0.1, "reference_batch": 16}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo of a small model on a few generated images."""
    monkeypatch.setattr(demo, "KEPT", Run(replicas=8, batch_per_replica=2, **TINY))
    monkeypatch.setattr(demo, "ALL_READ_ALL", Run(replicas=1, batch_per_replica=16, **TINY))
    monkeypatch.setattr(demo, "BATCH_GROWN", Run(replicas=8, batch_per_replica=8, lr_rule="none", **TINY))
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(demo, "STEPS_PER_ROUND", 2)


def test_three_workers_end_with_the_weights_of_one_and_a_page_says_so(tiny, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert demo.run_demo(3, page, as_json=True) == 0
    result = json.loads(capsys.readouterr().out)
    one, many = result["runs"]
    assert result["same_bits"]
    assert one["weights_sha256"] == many["weights_sha256"]
    assert (one["workers"], many["workers"]) == (1, 3)
    assert [step["loss"] for step in one["steps"]] == [step["loss"] for step in many["steps"]]
    assert [epoch["epoch"] for epoch in many["epochs"]] == [1, 2]
    all_read_all, grown, kept = result["naive"]
    # Of the same data set: eight times, once, once; and in a batch of 64 instead of 16 once an epoch.
    assert [port["examples_read"] for port in result["naive"]] == [8 * 128, 128, 128]
    assert (len(all_read_all["steps"]), len(grown["steps"]), len(kept["steps"])) == (8, 2, 8)
    assert kept["weights_sha256"] == one["weights_sha256"] != grown["weights_sha256"]
    assert one["weights_sha256"] in page.read_text()


def test_people_are_told_what_was_seen_and_where_the_page_is(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert demo.run_demo(2, Path("page.html"), as_json=False) == 0
    shown = capsys.readouterr().out
    for words in ("one worker", "2 workers", "naive port", "yes, bit for bit", "speed-up", "efficiency", "page.html"):
        assert words in shown


@pytest.mark.parametrize(
    ("workers", "page", "says"),
    [
        (1, "page.html", "--workers 1: the demo compares one worker with 2 to 8"),
        (9, "page.html", "--workers 9: the demo compares one worker with 2 to 8"),
        (2, "nowhere/page.html", "there is no folder .*nowhere; name a file in a folder that is there"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_is_trained(tmp_path, capsys, workers, page, says):
    with pytest.raises(Misuse, match=says):
        demo.run_demo(workers, tmp_path / page, as_json=False)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_first_worker_times_every_way_and_the_others_those_they_take_part_in():
    first, second = run_workers(demo.measure_speed, Run(replicas=4, batch_per_replica=2, **TINY), 3, 2, workers=2)
    assert [[*turn] for turn in first] == [["one_s", "many_s", "ceiling_s", "joined_s"]] * 3
    assert [[*turn] for turn in second] == [["many_s", "ceiling_s"]] * 3
    assert all(seconds > 0 for turn in first + second for seconds in turn.values())


def test_ratios_are_taken_within_a_round_and_their_median_is_told_with_its_range():
    slow = {"one_s": 40.0, "many_s": 20.0, "ceiling_s": 10.0, "joined_s": 40.0}  # the machine was busy elsewhere
    rounds = [
        {"one_s": 4.0, "many_s": 2.0, "ceiling_s": 1.5, "joined_s": 4.0},
        slow,
        {"one_s": 3.0, "many_s": 2.0, "ceiling_s": 1.8, "joined_s": 2.0},
    ]
    found = demo.summarise(rounds)
    assert found["speedup"] == {"median": 2.0, "low": 1.5, "high": 2.0}
    assert found["efficiency"] == {"median": 0.75, "low": 0.5, "high": 0.9}
    assert found["replica_cost"] == {"median": 1.0, "low": 1.0, "high": 1.5}
    assert found["rounds"] == rounds
