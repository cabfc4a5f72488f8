"""`worldsize compare`: verdicts on runs of known accuracy, and what it refuses to compare."""

import json
from pathlib import Path

import pytest

from worldsize.accuracy.compare import Question, compare, read_set
from worldsize.cli import main
from worldsize.errors import Misuse
from worldsize.train.records import Records
from worldsize.train.settings import Run

GOOD = [0.880, 0.884, 0.879, 0.886, 0.882, 0.881]
HALF_A_POINT = Question(margin=0.005)


def write(
    folder: Path, accuracies: list[float], *, first_seed: int = 0, finish: bool = True, **settings: object
) -> Path:
    """Runs as `worldsize train` leaves them, of these accuracies."""
    for seed, accuracy in enumerate(accuracies, first_seed):
        records = Records(folder / f"seed-{seed}")
        run = Run(**({"seed": seed} | settings))  # type: ignore[arg-type]
        records.begin({"settings": run.as_json(), "data": {"name": run.data, "test_examples": 10_000}})
        for step, share in ((100, 0.9), (200, 1.0)):
            records.event("evaluated", step=step, time_s=step / 100, accuracy=accuracy * share, loss=1 - accuracy)
        if finish:
            records.event("finished", time_s=3.0)
            records.finish({"accuracy": accuracy, "loss": 1 - accuracy})
    return folder


def verdict(tmp_path: Path, second: list[float], question: Question = HALF_A_POINT, **settings: object):
    first = read_set(write(tmp_path / "small", GOOD))
    (found,) = compare(first, [read_set(write(tmp_path / "large", second, **settings))], question)
    return found


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_sets_that_differ_by_little_are_equivalent(tmp_path):
    found = verdict(tmp_path, [value + 0.001 - 0.0005 * (i % 2) for i, value in enumerate(GOOD)])
    assert (found.answer, found.difference.paired, found.seeds_needed) == ("equivalent", True, None)
    assert found.sentence == (
        "large is as good as small within 0.5 points of accuracy: difference +0.075 points (90 % interval +0.0525 to "
        "+0.0975; two one-sided t-tests at 0.05; 6 pairs of seeds)."
    )


@pytest.mark.parametrize(("shift", "answer"), [(-0.02, "worse"), (0.02, "better")])
def test_sets_that_differ_by_more_than_the_margin_are_called_so(tmp_path, shift, answer):
    found = verdict(tmp_path, [value + shift + 0.001 * (i % 2) for i, value in enumerate(GOOD)])
    assert found.answer == answer
    loss = Question(margin=0.005, measure="loss")
    assert (
        verdict(tmp_path / "loss", [value + shift + 0.001 * (i % 2) for i, value in enumerate(GOOD)], loss).answer
        == answer
    )


def test_an_undecided_comparison_says_how_many_seeds_would_decide(tmp_path):
    noisy = [value + 0.006 * (-1) ** i for i, value in enumerate(GOOD)]
    found = verdict(tmp_path, noisy)
    assert found.answer == "undecided"
    assert found.seeds_needed is not None
    assert found.seeds_needed > 6
    assert f"About {found.seeds_needed} seeds a side would decide" in found.sentence


def test_other_seeds_are_compared_without_pairs(tmp_path):
    found = verdict(tmp_path, GOOD, first_seed=3)
    assert not found.difference.paired
    assert "at least 6 seeds a side" in found.sentence


def test_several_comparisons_are_judged_more_strictly(tmp_path):
    first = read_set(write(tmp_path / "small", GOOD))
    second = [value + 0.00435 + 0.0006 * (-1) ** i for i, value in enumerate(GOOD)]
    others = [read_set(write(tmp_path / name, second)) for name in ("b", "c", "d")]
    (alone,) = compare(first, others[:1], HALF_A_POINT)
    together = compare(first, others, HALF_A_POINT)
    assert alone.answer == "equivalent"
    assert [one.answer for one in together] == ["undecided"] * 3
    assert together[0].p_equivalent == pytest.approx(3 * alone.p_equivalent)
    assert "Holm over 3" in together[0].sentence


def test_a_run_that_never_reaches_the_target_takes_longer_than_any_other(tmp_path):
    question = Question(margin=0.005, target=0.87)
    found = verdict(tmp_path, [0.98, 0.98, 0.98, 0.98, 0.86, 0.86], question).to_target
    assert found["steps"]["medians"] == [200, 100]
    assert found["steps"]["reached"] == [6, 4]
    assert found["steps"]["ratio"]["median"] == 0.5
    assert found["steps"]["ratio"]["high"] is None, "in some draws most runs never get there"
    none = verdict(tmp_path / "none", [0.5] * 6, question).to_target
    assert none["seconds"] == {"medians": [2.0, None], "reached": [6, 0], "runs": [6, 6], "ratio": None}


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_exit_code_is_the_verdict(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small", GOOD)
    write(tmp_path / "large", [value - 0.03 for value in GOOD], batch_per_replica=512)
    assert main(["compare", "small", "small", "--margin", "0.005"]) == 0
    assert "small is as good as small" in capsys.readouterr().out
    assert main(["compare", "small", "small", "large", "--margin", "0.005", "--target", "0.87"]) == 1
    shown = capsys.readouterr().out
    assert "large is worse than small by more than 0.5 points" in shown
    assert "small 200 (6 of 6 reached it), large never (0 of 6 reached it)" in shown
    assert main(["compare", "small", "large", "--margin", "0.005", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["seeds"], found["margin"]) == ("worse", 6, 0.005)


# ---- what cannot be compared -----------------------------------------------------------------------------------------

BAD_SETS = {
    "missing": (lambda folder: folder, "there is no folder"),
    "empty": (lambda folder: folder.mkdir() or folder, "holds no run; train into it with --out"),
    "one run": (lambda folder: write(folder, [0.9]), "holds one run; a comparison needs at least 2 seeds"),
    "unfinished": (lambda folder: write(folder, GOOD, finish=False), "has not finished; go on with: worldsize train"),
    "mixed": (
        lambda folder: write(write(folder, [0.9]), [0.8], first_seed=1, dropout=0.1),
        r"differs from .*seed-0 in dropout \(0.0 and 0.1\)",
    ),
}


@pytest.mark.parametrize("case", BAD_SETS)
def test_a_set_that_says_nothing_is_refused(case, tmp_path):
    make, words = BAD_SETS[case]
    with pytest.raises(Misuse, match=words):
        read_set(make(tmp_path / "set"))


def test_a_run_of_an_older_version_has_the_settings_of_a_new_one_where_it_says_none(tmp_path):
    folder = write(tmp_path / "mixed", [0.8, 0.81])
    old = folder / "seed-0" / "run.json"
    facts = json.loads(old.read_text())
    del facts["settings"]["same_steps"], facts["settings"]["ema"]
    old.write_text(json.dumps(facts))
    assert len(read_set(folder).runs) == 2


def test_a_seed_counts_once(tmp_path):
    write(tmp_path / "set", GOOD)
    (tmp_path / "set" / "seed-1").rename(tmp_path / "set" / "again")
    write(tmp_path / "set", GOOD[:2])
    with pytest.raises(Misuse, match="two runs with seed 1"):
        read_set(tmp_path / "set")


def test_a_run_without_a_seed_is_named(tmp_path):
    write(tmp_path / "set", GOOD)
    record = tmp_path / "set" / "seed-2" / "run.json"
    record.write_text(record.read_text().replace('"seed": 2', '"seed": null'))
    with pytest.raises(Misuse, match="seed-2 does not say its seed"):
        read_set(tmp_path / "set")


def test_a_set_with_a_run_that_failed_is_refused(tmp_path):
    write(tmp_path / "set", GOOD)
    Records(tmp_path / "set" / "seed-2").event("failed", error="the loss is nan at step 3")
    with pytest.raises(Misuse, match=r"seed-2 failed \(the loss is nan at step 3\)"):
        read_set(tmp_path / "set")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "mlp"}, "small trained model cnn and large mlp; compare runs of one model"),
        ({"data": "fashion"}, "small trained data fashion-10k and large fashion; compare runs of one data"),
    ],
)
def test_sets_of_other_models_or_data_are_not_compared(settings, words, tmp_path):
    with pytest.raises(Misuse, match=words):
        verdict(tmp_path, GOOD, **settings)


def test_a_run_without_the_measure_is_named(tmp_path):
    with pytest.raises(Misuse, match="a run of large has no finite accuracy"):
        verdict(tmp_path, [*GOOD[1:], float("nan")])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"margin": 0}, "a margin of 0 cannot be"),
        ({"margin": float("nan")}, "a margin of nan cannot be"),
        ({"margin": 5}, "a margin of 5 in accuracy would let anything pass"),
        ({"margin": 0.01, "level": 0.7}, "a level of 0.7 cannot be"),
        ({"margin": 0.01, "target": float("nan")}, "a target of nan is never reached"),
    ],
)
def test_questions_that_make_no_sense_are_refused(words, says):
    with pytest.raises(Misuse, match=says):
        Question(**words)
