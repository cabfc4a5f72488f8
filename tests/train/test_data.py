"""Data sets: the files are the published ones, a broken one is noticed, and a batch is what was asked for."""

import collections
import gzip
import importlib.resources
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset
from train.jobs import Noisy

from worldsize.errors import DataError
from worldsize.train import data
from worldsize.train.data import SYMBOLS, UNCOUNTED, InMemory, identity, load, move, serve, size_of

CPU = torch.device("cpu")


def served(part: object, places: list[list[int]], **options: object) -> list:
    return list(serve(part, [torch.tensor(row) for row in places], device=CPU, seed=0, epoch=0, **options))


# ---- what is in them -------------------------------------------------------------------------------------------------


def test_fashion_comes_with_the_package():
    sets = load("fashion-10k")
    assert (len(sets.train), len(sets.test), sets.train.classes) == (10_000, 10_000, 10)
    x, y = sets.train.take(torch.arange(10_000))
    assert x.shape == (10_000, 1, 28, 28)
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert sorted(y.bincount().tolist())[0] > 900


def test_fashion_at_half_the_side_is_the_mean_of_four_pixels():
    small, whole = load("fashion-14"), load("fashion-10k")
    assert small.train.tensors[0].shape == (10_000, 14, 14)
    assert torch.equal(small.test.tensors[1], whole.test.tensors[1])
    corner = whole.train.tensors[0][:, 12:14, 8:10].float().mean((1, 2))
    assert (small.train.tensors[0][:, 6, 4] - corner).abs().max() <= 0.5


def test_the_full_set_is_read_from_the_system_and_begins_with_the_embedded_one(monkeypatch, tmp_path):
    if not (data.SYSTEM / "train-images-idx3-ubyte.gz").exists():
        pytest.skip(f"{data.SYSTEM} is not there; install Debian's dataset-fashion-mnist")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sets = load("fashion")
    assert len(sets.train) == 60_000
    part = load("fashion-10k").train
    assert all(torch.equal(a[:10_000], b) for a, b in zip(sets.train.tensors, part.tensors, strict=True))


def test_without_the_full_set_the_part_is_used_and_said(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(data, "SYSTEM", tmp_path)
    sets = load("fashion")
    assert len(sets.train) == 10_000
    assert sets.source == "inside the package: only the first 10,000 training images, the full set was not found"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the embedded files, which are for once those to be found."""
    with importlib.resources.as_file(importlib.resources.files("worldsize") / "assets") as assets:
        shutil.copytree(assets, tmp_path / "files")
    monkeypatch.setattr(data, "FASHION", data.EMBEDDED)
    return tmp_path / "files"


def test_files_are_read_packed_and_unpacked(folder):
    packed = folder / "train-labels-idx1-ubyte.gz"
    (folder / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert len(load("fashion", data_dir=folder).train) == 10_000


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def other(file: Path) -> None:
    file.write_bytes(gzip.compress(b"\0\0\x08\x01" + bytes(8)))


@pytest.mark.parametrize(
    ("break_it", "says"),
    [(cut, "cannot be unpacked"), (other, "is not the published file"), (Path.unlink, "is missing; put all of")],
)
def test_a_broken_file_is_noticed(folder, break_it, says):
    break_it(folder / "t10k-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match=says) as raised:
        load("fashion", data_dir=folder)
    assert "t10k-labels-idx1-ubyte.gz" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_generated_sets_have_the_size_asked_for_and_depend_on_the_seed_alone():
    sets = load("generated:100:3x4x5:7", seed=1)
    x, y = sets.train.take(torch.arange(100))
    assert (x.shape, len(sets.test), int(y.max()) < 7) == ((100, 3, 4, 5), 20, True)
    torch.manual_seed(99)
    again, differ = load("generated:100:3x4x5:7", seed=1), load("generated:100:3x4x5:7", seed=2)
    assert identity(again.train) == identity(sets.train) != identity(differ.train)
    assert not torch.equal(sets.train.tensors[0][:20], sets.test.tensors[0])


def test_sums_are_right_and_only_the_answer_is_counted():
    sets = load("sums")
    assert (len(sets.train), len(sets.test)) == (8_000, 2_000)
    for place in (0, 1, 7_999):
        tokens, targets = sets.train[place]
        text = "".join(SYMBOLS[token] for token in tokens) + " "
        question, answer = text.split("=")
        left, right = question.split("+")
        counted = "".join(SYMBOLS[target] for target in targets if target != UNCOUNTED)
        assert int(left) + int(right) == int(answer.split(".")[0])
        assert counted == f"{int(left) + int(right)}."


def test_no_sum_of_the_test_was_trained_on():
    sets = load("sums")
    trained, tested = ({str(row) for row in part.tensors[0].tolist()} for part in (sets.train, sets.test))
    assert not trained & tested


def test_the_line_is_a_line():
    x, y = load("line").train.tensors
    slope, intercept = np.polyfit(x.flatten(), y.flatten(), 1)
    assert slope == pytest.approx(10, abs=0.5)
    assert intercept == pytest.approx(2, abs=3)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mnist", "unknown data set 'mnist'; there are fashion-10k, fashion-14, fashion, generated:"),
        ("generated:10", "data set 'generated:10' does not read; write generated:4096:3x32x32:10"),
        ("generated:a:3x3:2", "does not read"),
        ("generated:0:3x3:2", "examples and sides must be at least 1, classes at least 2"),
        ("generated:5:3x3:1", "classes at least 2"),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(name, says):
    with pytest.raises(DataError, match=says) as raised:
        load(name)
    assert "\n" not in str(raised.value)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no folder; name the one that holds train-images-idx3-ubyte\.gz"):
        load("fashion", data_dir=tmp_path / "nowhere")


# ---- how they are served ---------------------------------------------------------------------------------------------


class Doubled(TensorDataset):
    """One that reads an example in a way of its own."""

    def __getitem__(self, index: int) -> tuple:
        return tuple(2 * part for part in super().__getitem__(index))


def test_a_data_set_in_memory_and_one_read_by_example_give_the_same_batches():
    x, y = torch.randn(10, 3), torch.arange(10)
    places = [[3, 1], [9, 9, 0], [5]]
    for part in (TensorDataset(x, y), InMemory(tensors=(x, y)), Subset(TensorDataset(x, y), range(10))):
        for row, batch in zip(places, served(part, places), strict=True):
            assert torch.equal(batch[0], x[row])
            assert torch.equal(batch[1], y[row])


def test_a_data_set_derived_from_a_tensor_data_set_is_read_in_its_own_way():
    (batch,) = served(Doubled(torch.arange(5.0)), [[1, 4]])
    assert batch[0].tolist() == [2.0, 8.0]


def test_an_augmented_example_depends_on_seed_epoch_and_place_alone():
    part = Noisy(torch.ones(8, 2), torch.arange(8))

    def read(places: list[list[int]], **where: int) -> dict[int, list[float]]:
        rows = [torch.tensor(row) for row in places]
        batches = serve(part, rows, device=CPU, **{"seed": 0, "epoch": 0, **where})
        return {int(y): x.tolist() for xs, ys in batches for x, y in zip(xs, ys, strict=True)}

    first = read([[0, 1, 2], [3, 4], [5, 6, 7]])
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    assert read([[7, 3], [1], [0, 2, 5, 4, 6]]) == first
    assert len({str(value) for value in first.values()}) == 8
    for where in ({"seed": 1}, {"epoch": 1}):
        assert not any(value == first[place] for place, value in read([list(range(8))], **where).items())


def test_a_collate_function_is_used_for_sets_in_memory_too():
    part = TensorDataset(torch.arange(6.0))
    assert served(part, [[1, 2], [3]], collate=len) == [2, 1]


def test_every_tensor_of_a_batch_is_moved_however_nested():
    Pair = collections.namedtuple("Pair", "a b")
    ones = torch.ones(1)
    moved = move({"x": [ones, (ones, "text")], "y": Pair(ones, 3)}, torch.device("meta"))
    assert moved["x"][0].is_meta
    assert moved["x"][1][0].is_meta
    assert moved["x"][1][1] == "text"
    assert (type(moved["y"]), moved["y"].a.is_meta, moved["y"].b) == (Pair, True, 3)


def test_a_list_of_examples_is_a_data_set():
    assert size_of([1, 2]) == 2
    assert served([1.0, 2.0, 3.0], [[2, 0]])[0].tolist() == [3.0, 1.0]


def test_identity_tells_sets_apart_by_content_and_size():
    base = torch.arange(1000.0)
    changed = base.clone()
    changed[0] = -0.0
    sets = [base, changed, base[:999], base.double(), base.view(500, 2)]
    assert len({identity(TensorDataset(tensor)) for tensor in sets}) == 5
    assert identity(TensorDataset(base.clone())) == identity(TensorDataset(base))
