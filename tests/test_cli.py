"""The command line: one line for a misuse, exit codes, help without torch."""

import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accuracy.runs import write_run
from proof import write_table

from worldsize.cli import build_parser, main
from worldsize.train import data

SMALL = ["--model", "mlp", "--data", "generated:64:1x8x8:4", "--replicas", "2", "--batch-per-replica", "8"]
SMALL += ["--epochs", "2", "--workers", "1"]

MISUSES = {
    "batch not positive": (["--batch-per-replica", "0"], "--batch-per-replica 0 cannot be; .* at least 1"),
    "never tested": (
        ["--evaluate-every", "0"],
        "--evaluate-every 0 cannot be; it must be a whole number of at least 1",
    ),
    "batch no number": (["--batch-per-replica", "many"], "argument --batch-per-replica: invalid int value: 'many'"),
    "more workers than replicas": (["--workers", "9"], "9 workers cannot share 8 replicas.*; use at most 8 workers"),
    "unknown data": (["--data", "mnist"], "unknown data set 'mnist'; there are fashion-10k"),
    "unreadable generated": (["--data", "generated:12"], "write generated:4096:3x32x32:10"),
    "unknown model": (["--model", "resnet50"], "unknown model 'resnet50'; there are cnn"),
    "model and data differ": (["--model", "transformer"], "reads tokens, but .* holds images; use --data sums"),
    "unknown sync": (["--sync", "horovod"], "argument --sync: invalid choice: 'horovod'"),
    "unknown flag": (["--epoch", "3"], "unrecognized arguments: --epoch 3"),
    "far too many examples": (
        ["--data", "generated:99999999999:3x32x32:10"],
        "would be more than 8 GiB; make it smaller",
    ),
    "far too wide": (["--model", "wrn-16-9999999999"], "unknown model 'wrn-16-9999999999'"),
    "far too many replicas": (["--replicas", "300000000"], "replicas is 300000000, but must be .* 1 to 1,048,576"),
    "empty run to resume": (["--resume", ""], "--resume is empty; name something, or leave it out"),
    "empty folder": (["--out", ""], "--out is empty"),
    "folder below a file": (
        ["--out", "/dev/null/x"],
        "/dev/null/x cannot be written: Not a directory; name another folder",
    ),
    "folder that cannot be made": (["--out", "/proc/x"], "/proc/x cannot be written: .*; name another folder"),
    "warm-up too long": (["--epochs", "1", "--warmup", "2"], "a warm-up of 80 steps does not fit a run of 40"),
    "batch norm on one example": (
        ["--data", "generated:33:1x8x8:4", "--replicas", "4", "--batch-per-replica", "4"],
        "would read 1 example .* batch norm needs at least 2; drop the short batch",
    ),
    "no whole batch": (
        ["--data", "generated:8:1x8x8:4", "--drop-short"],
        "8 examples make no whole global batch of 256.*; keep the short batch",
    ),
    "nccl without cuda": (["--backend", "nccl"], "'nccl' was asked for, but it needs GPUs .*; use gloo"),
    "cuda without cuda": (["--device", "cuda"], "finds no GPU; use --device cpu"),
    "no such folder": (["--data", "fashion", "--data-dir", "nowhere"], "--data-dir nowhere is no folder"),
    "stop beyond the end": (["--stop-after", "100000"], "--stop-after 100000 is no step of this run; .*|use 1 to"),
    "noise scale of stock DDP": (["--noise-scale", "--sync", "ddp"], "use at least 2 with --sync exact"),
    "noise scale of one replica": (["--noise-scale", "--replicas", "1"], "which 1 under sync exact do not give"),
    "ema that never moves": (["--ema", "1"], "--ema 1.0 cannot be; a decay is above 0 and below 1, such as 0.999"),
    "gradient noise below zero": (["--gradient-noise", "-1"], "--gradient-noise -1.0 cannot be; it must be 0 or more"),
    "nothing to grow": (["--grow-to", "512"], "--grow-to 512 has nothing to grow under --schedule cosine; use grow"),
    "grown to less": (["--schedule", "grow", "--grow-to", "8"], "--grow-to 8 is less than the global batch of 256"),
    "grown beyond the data": (
        ["--schedule", "grow", "--grow-to", "20000"],
        "--grow-to 20000 is more than the 10,000 examples; use at most those",
    ),
    "grown and the same steps": (["--schedule", "grow", "--same-steps"], "--same-steps keeps .*; use one of them"),
    "warm-up into the growth": (
        ["--schedule", "grow", "--grow-to", "1024", "--epochs", "4", "--warmup", "3"],
        "a warm-up of 120 steps would go on when the batch grows, after 80; use a shorter one",
    ),
    "norm across fewer workers than replicas under ddp": (
        ["--norm", "sync", "--sync", "ddp", "--workers", "2"],
        "needs all 8 replicas inside one forward pass, but 2 workers .* one after another; use sync 'exact', 8 workers",
    ),
    "norm across a worker without examples under ddp": (
        ["--norm", "sync", "--sync", "ddp", "--workers", "8", "--data", "generated:258:1x8x8:4"],
        "the last step has examples for 2 of 8 replicas, and batch norm across workers would wait.*; use sync 'exact'",
    ),
    "no norm to convert": (
        ["--norm", "ghost", "--model", "mlp"],
        "--norm ghost converts .* model mlp has none; leave it",
    ),
    "ghost too small": (["--norm", "ghost", "--ghost-batch", "1"], "a ghost batch of 1 has no spread"),
    "resume and out": (["--resume", "a", "--out", "b"], "--resume a goes on in its own folder; leave --out out"),
    "resume nothing": (["--resume", "nowhere"], "nowhere holds no run that can be read"),
    "dropout of all": (["--dropout", "1"], "dropout 1.0 is no share below one"),
    "ddp with an idle worker": (
        ["--sync", "ddp", "--workers", "8", "--model", "mlp", "--data", "generated:258:1x8x8:4"],
        "which leaves a worker without any.*; drop the short batch or use sync 'exact'",
    ),
}


LANDSCAPE_MISUSES = {
    "no run": (["landscape", "nowhere"], "no run in nowhere: there is no such folder"),
    "one more run": (["landscape", "run", "b", "c"], "unrecognized arguments: c"),
    "unfinished run": (["landscape", "open"], "open has not finished; go on with: worldsize train --resume open"),
    "diverged run": (["landscape", "bad"], "bad diverged: 1.weight is not finite at step-00000004"),
    "other model": (["landscape", "run", "cnn"], "run trained model mlp and cnn cnn; a line needs two runs of one"),
    "itself": (["landscape", "run", "run"], "both solutions have the same weights"),
    "no width": (["landscape", "run", "--points", "2"], "--points 2 cannot be; with --dims 2 use 3 to 101"),
    "no span": (["landscape", "run", "--span", "nan"], "--span nan cannot be; it must be above 0"),
    "three dimensions": (["landscape", "run", "--dims", "3"], "argument --dims: invalid choice: 3"),
    "more examples than there are": (["landscape", "run", "--examples", "99"], "--examples 99 are more than the 40"),
    "no worker": (["landscape", "run", "--workers", "0"], "--workers 0 cannot be"),
    "a seed too large": (["landscape", "run", "--seed", str(10**20)], "must be a whole number from 0 to 4,611,686,018"),
    "a page that is a folder": (["landscape", "run", "--out", "cnn"], "--out cnn is a folder; name a file"),
}


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_line(capsys: pytest.CaptureFixture) -> str:
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("worldsize: ")
    assert seen.err.count("\n") == 1
    return seen.err


@pytest.mark.parametrize("case", MISUSES)
def test_a_misuse_is_one_line_and_exit_2_and_writes_nothing(case, empty, capsys):
    words, expected = MISUSES[case]
    if sys.platform == "linux" and "cuda" in case:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    assert main(["train", *words]) == 2
    assert re.search(expected, one_line(capsys))
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("case", LANDSCAPE_MISUSES)
def test_a_landscape_that_cannot_be_is_one_line_and_exit_2_and_writes_nothing(case, empty, capsys):
    words, expected = LANDSCAPE_MISUSES[case]
    for name, how in {"run": {}, "open": {"state": "open"}, "bad": {"poison": True}, "cnn": {"model": "cnn"}}.items():
        write_run(empty / name, **how)
    before = sorted(empty.rglob("*"))
    assert main(words) == 2
    assert re.search(expected, one_line(capsys))
    assert sorted(empty.rglob("*")) == before


def test_a_landscape_is_shown_as_lines_or_as_json_and_leaves_its_page(empty, capsys):
    write_run(empty / "run")
    words = ["landscape", "run", "--dims", "1", "--points", "4", "--workers", "1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("5 things to measure, 0 of them kept in run/landscape/")
    assert re.fullmatch(r"run  loss \d\.\d{4}, accuracy \d\.\d{4}", lines[1])
    assert lines[-1] == "page run/landscape.html"
    assert main([*words, "--json", "--out", "page.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["values"]), found["page"]) == (4, "page.html")
    assert (empty / "page.html").exists()


@pytest.mark.parametrize("words", [[], ["trian"], ["landscape"], ["run"], ["report"], ["demo", "--workers", "1"]])
def test_other_verbs_answer_a_misuse_in_one_line_too(words, empty, capsys):
    assert main(words) == 2
    one_line(capsys)
    assert list(empty.iterdir()) == []


BROKEN_RUNS = ["[]", "null", '{"format": 1}', '{"format": 1, "settings": {"speed": 3}}', '{"format": 1, "settings": 3}']


@pytest.mark.parametrize("content", BROKEN_RUNS)
def test_a_run_whose_record_is_broken_is_not_resumed(content, empty, capsys):
    (empty / "run").mkdir()
    (empty / "run" / "run.json").write_text(content)
    assert main(["train", "--resume", "run"]) == 2
    one_line(capsys)


def test_what_cannot_be_written_is_one_line(empty):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "worldsize", "train", "--list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode() == "worldsize: No space left on device\n"


def test_a_page_in_a_missing_folder_is_a_misuse(empty, capsys):
    assert main(["report", "run", "--out", "nowhere/page.html"]) == 2
    assert "there is no folder nowhere" in one_line(capsys)


def test_a_temporary_folder_too_long_for_sockets_is_named(empty):
    folder = empty / ("long" * 30)
    folder.mkdir()
    command = [sys.executable, "-m", "worldsize", "train", *SMALL]
    done = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("is too long a path for a socket; set TMPDIR=/tmp\n")
    assert done.stderr.count("\n") == 1


def test_the_noise_scale_is_printed_recorded_and_changes_no_weight(empty, capsys):
    assert main(["train", *SMALL, "--json", "--out", "plain"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main(["train", *SMALL, "--json", "--out", "measured", "--noise-scale"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["noise_scale_low"] <= found["noise_scale"] <= found["noise_scale_high"]
    assert found["weights_sha256"] == plain["weights_sha256"]
    assert main(["train", *SMALL, "--out", "shown", "--noise-scale"]) == 0
    assert re.search(r"noise scale [\d,]+ examples: at a global batch of 16 a step does \d+%", capsys.readouterr().out)


def test_trace_shows_the_stack_of_a_misuse():
    with pytest.raises(ValueError, match="unknown model"):
        main(["train", "--model", "resnet50", "--trace"])


@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupt", "not packed"])
def test_a_damaged_data_file_is_named(damage, empty, capsys):
    folder = empty / "data"
    shutil.copytree(Path(data.__file__).parents[1] / "assets", folder)
    file = folder / "train-images-idx3-ubyte.gz"
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "corrupt":
        content = bytearray(gzip.decompress(file.read_bytes()))
        content[5000] ^= 1
        file.write_bytes(gzip.compress(bytes(content), 1))
    else:
        file.write_bytes(b"no gzip at all")
    assert main(["train", "--data", "fashion", "--data-dir", str(folder)]) == 2
    assert "train-images-idx3-ubyte.gz" in one_line(capsys)


def test_help_and_version_do_not_import_torch():
    code = (
        "import sys; from worldsize.cli import main\ntry: main(['{}'])\nexcept SystemExit as end: assert not end.code"
    )
    code += "\nassert not [name for name in ('torch', 'numpy', 'rich') if name in sys.modules], 'too much was imported'"
    for words in ("--help", "--version", "train --help", "demo --help", "run --help", "landscape --help"):
        listed = "', '".join(words.split())
        done = subprocess.run([sys.executable, "-c", code.format(listed)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "worldsize" in done.stdout


def test_every_flag_of_train_has_a_help_text():
    verb = build_parser()._subparsers._group_actions[0].choices["train"]
    assert all(action.help for action in verb._actions)


def test_lists_name_all_models_and_data_sets(capsys):
    assert main(["train", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("cnn", "wrn-16-K", "transformer", "fashion-10k", "generated:", "sums"))


def test_train_says_what_it_will_do_and_leaves_a_run(empty, capsys):
    assert main(["train", *SMALL]) == 0
    shown = capsys.readouterr().out
    for word in ("2 of 8: global batch 16", "learning rate", "generated", "cpu", "test accuracy", "weights_sha256"):
        assert word in shown
    (folder,) = (empty / "runs").iterdir()
    assert {"run.json", "steps.jsonl", "events.jsonl", "result.json", "checkpoints"} == {
        path.name for path in folder.iterdir()
    }
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").exists()


def test_a_stopped_run_goes_on_at_another_world_size_and_ends_with_the_same_bits(empty, capsys):
    def result(*words: str) -> dict:
        assert main(["train", *words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    whole = result(*SMALL, "--out", "whole")
    part = result(*SMALL, "--out", "part", "--stop-after", "3")
    assert not part["finished"]
    rest = result("--resume", "part", "--workers", "2")
    assert rest["finished"]
    assert rest["workers"] == 2
    assert rest["weights_sha256"] == whole["weights_sha256"] != part["weights_sha256"]
    assert main(["train", "--resume", "part", "--stop-after", "4"]) == 2
    assert "this run has done 8 steps already" in one_line(capsys)
    again = result("--resume", "part")
    assert again["weights_sha256"] == whole["weights_sha256"]
    assert main(["train", "--resume", "part", "--model", "cnn"]) == 2
    assert "was trained with --model mlp, now it is cnn" in one_line(capsys)
    assert main(["train", *SMALL, "--out", "part"]) == 2
    assert "part is there already" in one_line(capsys)


GRID = {
    model: ["--model", model, "--data", data_set, "--dropout", "0.2", "--batch-per-replica", batch]
    for model, data_set, batch in (
        ("cnn", "generated:1000:1x16x16:10", "8"),
        ("wrn-16-1", "generated:476:1x8x8:10", "4"),
        ("transformer", "sums", "16"),
    )
}
EPOCHS = {"cnn": 4, "wrn-16-1": 4, "transformer": 1}


REMEDIES = {
    "batch norm across workers": ["--norm", "sync"],
    "ghost batch norm": ["--norm", "ghost", "--ghost-batch", "4"],
    "LARS": ["--optimizer", "lars"],
    "LAMB": ["--optimizer", "lamb"],
    "NovoGrad": ["--optimizer", "novograd"],
    "linear rule, warm-up from a tenth": ["--lr-rule", "linear", "--warmup", "1", "--warmup-from", "0.1"],
    "square-root rule": ["--lr-rule", "sqrt"],
    "as many steps": ["--same-steps", "--reference-batch", "16"],
    "growing batch": ["--schedule", "grow", "--grow-to", "96"],
    "gradient noise": ["--gradient-noise", "1.7"],
    "averaged weights": ["--ema", "0.9"],
    "all of it": [
        *("--norm", "sync", "--optimizer", "lamb", "--schedule", "grow", "--grow-to", "96", "--gradient-noise", "1.7"),
        *("--ema", "0.9", "--weight-decay", "0.01", "--clip-norm", "1"),
    ],
}


def five_trainings(words: list[str], number: int, capsys: pytest.CaptureFixture) -> tuple[dict, str]:
    """The result that 1 to 4 workers have, and a run cut short and resumed; and where that one was cut."""

    def result(*more: str) -> dict:
        assert main(["train", *more, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    found = [result(*words, "--workers", str(n), "--out", f"run-{number}-{n}") for n in (1, 2, 3, 4)]
    steps = found[0]["steps"]
    # Interrupted at another step each time, and resumed at another number of workers.
    stop, before, after = 1 + (number + 1) * 28 % (steps - 1), 1 + number % 3, 4 - number % 3
    name = f"cut-{number}"
    result(*words, "--workers", str(before), "--out", name, "--stop-after", str(stop))
    found.append(result("--resume", name, "--workers", str(after)))
    same = ("weights_sha256", "buffers_sha256", "loss", "ema_sha256", "plain_loss")
    assert len({tuple(each.get(key) for key in same) for each in found}) == 1, words
    return found[0], f"{stop}, {before} to {after}"


@pytest.mark.proof
def test_every_remedy_keeps_one_hash_for_every_number_of_workers_and_every_interruption(empty, capsys, repository):
    rows = []
    for number, (name, flags) in enumerate(REMEDIES.items()):
        words = [*GRID["cnn"], "--replicas", "4", "--epochs", "4", *flags]
        found, cut = five_trainings(words, number, capsys)
        rows.append([name, found["steps"], cut, f"`{found['weights_sha256'][:16]}`", f"`{' '.join(flags)}`"])
    assert len({row[3] for row in rows}) == len(rows), "each remedy trains other weights"
    write_table(
        repository,
        "remedies",
        "Every remedy keeps one hash for every number of workers",
        "Written by `make proof` (tests/test_cli.py).\n"
        "Each row is five trainings of the small conv net, 4 replicas, dropout, a short last batch: on 1, 2, 3 and 4\n"
        "workers, and one that was stopped after a step and resumed at another number of workers. Weights, averaged\n"
        "weights, evaluation buffers and test loss had the same bits in all five.",
        {
            "remedy": "---",
            "steps": "---:",
            "stopped after step, workers before and after": "---",
            "weights": "---",
            "flags": "---",
        },
        rows,
    )


@pytest.mark.proof
def test_train_gives_one_hash_for_every_number_of_workers_and_every_interruption(empty, capsys, repository):
    rows = []
    for number, (model, optimizer, replicas) in enumerate(itertools.product(GRID, ("sgd", "adamw"), (4, 6, 8))):
        words = [*GRID[model], "--optimizer", optimizer, "--replicas", str(replicas), "--epochs", str(EPOCHS[model])]
        found, cut = five_trainings(words, number, capsys)
        assert found["steps"] >= 50
        rows.append([model, optimizer, replicas, found["steps"], cut, f"`{found['weights_sha256'][:16]}`"])
    assert len(rows) == 18
    write_table(
        repository,
        "train",
        "`worldsize train` gives one hash for every number of workers",
        "Written by `make proof` (tests/test_cli.py).\n"
        "Each row is five trainings from the command line: on 1, 2, 3 and 4 workers, and one that was stopped after a\n"
        "step and resumed at another number of workers. Weights, evaluation buffers and test loss had the same bits\n"
        "in all five. Dropout is on, batch norm is in the first two models, short batches are kept.",
        {
            "model": "---",
            "optimizer": "---",
            "replicas": "---:",
            "steps": "---:",
            "stopped after step, workers before and after": "---",
            "weights": "---",
        },
        rows,
    )
