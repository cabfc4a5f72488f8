"""The bench: finished trials are kept and not run again, times are measured anew, a rate is chosen on other seeds."""

from pathlib import Path

from accuracy import tries

from worldsize.accuracy.bench import TUNING, Bench


def runs(folder: Path) -> list[str]:
    return (folder / "runs").read_text().splitlines()


def test_a_finished_trial_is_not_run_again_even_by_another_bench(tmp_path):
    tasks = [{"folder": str(tmp_path), "seed": seed} for seed in range(3)]
    first = Bench(workers=2, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)
    again = Bench(workers=1, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)
    assert first == again == [{"seed": seed, "miss": 0.8 + seed * 1e-9} for seed in range(3)]
    assert len(runs(tmp_path)) == 3


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    tasks = [{"folder": str(tmp_path), "seed": seed} for seed in range(2)]
    Bench(workers=1, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)
    (tmp_path / "kept").write_text((tmp_path / "kept").read_text()[:-9])
    assert len(Bench(workers=1, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)) == 2
    assert len(runs(tmp_path)) == 3
    assert len(Bench(workers=1, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)) == 2
    assert len(runs(tmp_path)) == 3, "what was added after a cut line is found again"


def test_what_is_no_text_among_the_kept_trials_is_passed_over(tmp_path):
    (tmp_path / "kept").write_bytes(b"\xff\xfe\n")
    tasks = [{"folder": str(tmp_path), "seed": 0}]
    for _ in range(2):
        assert len(Bench(workers=1, seeds=2, kept=tmp_path / "kept").run(tries.count, tasks)) == 1
    assert len(runs(tmp_path)) == 1


def test_trials_that_measure_time_are_run_one_by_one_and_each_time_anew(tmp_path):
    bench = Bench(workers=2, seeds=2, kept=tmp_path / "kept")
    for _ in range(2):
        bench.run(tries.count, [{"folder": str(tmp_path), "seed": seed} for seed in range(2)], alone=True)
    workers = [line.split()[2] for line in runs(tmp_path)]
    assert len(workers) == 4
    assert len(set(workers)) == 2


def test_variants_run_with_every_seed_and_rates_are_chosen_on_others(tmp_path):
    bench = Bench(workers=1, seeds=2)
    variants = {"a": {"folder": str(tmp_path)}, "b": {"folder": str(tmp_path)}}
    best = bench.tune(tries.count, variants, "rate", {"a": (0.1, 0.2), "b": (0.5, 1.0)}, lambda one: one["miss"])
    assert best == {"a": 0.2, "b": 0.5}
    assert bench.best(tries.count, {"a": {**variants["a"], "rate": 0.3}, "b": variants["b"]}, miss, seeds=2) == "a"
    assert {int(line.split()[0]) for line in runs(tmp_path)} == {TUNING, TUNING + 1}
    found = bench.each(tries.count, variants)
    assert {name: [one["seed"] for one in outcomes] for name, outcomes in found.items()} == {"a": [0, 1], "b": [0, 1]}


def miss(outcome: dict) -> float:
    return float(outcome["miss"])
