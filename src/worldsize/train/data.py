"""Data sets: Fashion-MNIST from wherever it is, generated sets, and how any data set is served to a replica."""

import gzip
import hashlib
import importlib.resources
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from worldsize.errors import DataError
from worldsize.plan.streams import stream_seed
from worldsize.train.randomness import seed_all

NAMES = {
    "fashion-10k": "the first 10,000 training images of Fashion-MNIST and all 10,000 test images; inside the package",
    "fashion-14": "fashion-10k at 14x14 pixels, each the mean of four: the experiments' data, a quarter of the work",
    "fashion": "all of Fashion-MNIST, 60,000 and 10,000 images; falls back to fashion-10k, and says so",
    "generated:EXAMPLES:SHAPE:CLASSES": "noisy class patterns of any size, such as generated:4096:3x32x32:10",
    "sums": "additions such as 47+85=132 as text, 8,000 to train on; the answer alone is counted in the loss",
    "line": "100 points on a noisy line, for the linear neuron",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class InMemory(Dataset):
    """A data set that lies whole in memory and is served as whole batches by index."""

    tensors: tuple[Tensor, ...]
    decode: Callable[..., tuple[Tensor, ...]] | None = None  # from stored form to what the model reads
    classes: int = 0
    source: str = "memory"

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(part[0] for part in self.take(torch.tensor([index])))

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The examples at these places, as one batch."""
        parts = tuple(tensor[indices.to(tensor.device)] for tensor in self.tensors)
        return self.decode(*parts) if self.decode else parts

    def to(self, device: torch.device) -> "InMemory":
        moved = tuple(tensor.to(device) for tensor in self.tensors)
        return InMemory(tensors=moved, decode=self.decode, classes=self.classes, source=self.source)


@dataclass(frozen=True, kw_only=True)
class Sets:
    """A named data set: what is trained on, what is tested on, and where it came from."""

    name: str
    train: InMemory
    test: InMemory
    source: str
    kind: str = "images"  # "images", "tokens" or "line"


def load(name: str, *, data_dir: Path | None = None, download: bool = False, seed: int = 0) -> Sets:
    """A data set by its name on the command line."""
    if name == "fashion-10k":
        return _fashion(_embedded(), "inside the package", name)
    if name == "fashion-14":
        return _fashion({part: _halved(numbers) for part, numbers in _embedded().items()}, "inside the package", name)
    if name == "fashion":
        return _fashion(*_find_fashion(data_dir, download), name)
    if name.startswith("generated"):
        return _generated(name, seed)
    if name == "sums":
        return _sums(seed)
    if name == "line":
        return _line(seed)
    raise DataError(f"unknown data set {name!r}; there are {', '.join(NAMES)}")


# ---- serving --------------------------------------------------------------------------------------------------------


def in_memory(data: Dataset) -> InMemory | None:
    """This data set as one that lies in memory, if it is one."""
    if isinstance(data, InMemory):
        return data
    if type(data) is TensorDataset:  # one derived from it may read an example in its own way
        return InMemory(tensors=data.tensors)
    return None


def serve(
    data: Dataset,
    batches: Sequence[Tensor],
    *,
    device: torch.device,
    seed: int,
    epoch: int,
    loader_workers: int = 0,
    collate: Callable[[list], Any] | None = None,
) -> Iterator[Any]:
    """One batch on `device` for each tensor of indices, in this order.

    A data set in memory is indexed as a whole. Any other is read by a DataLoader, with the random generators set from
    (seed, epoch, example) before each example, so that augmentation does not depend on who reads it.
    """
    memory = in_memory(data)
    if memory is not None and collate is None:
        for indices in batches:
            yield move(memory.take(indices), device)
        return
    places = [indices.tolist() for indices in batches]
    reader = DataLoader(
        _Seeded(data, seed, epoch),
        batch_sampler=places,
        num_workers=loader_workers,
        collate_fn=collate,
        pin_memory=device.type == "cuda",
    )
    for batch in reader:
        yield move(batch, device)


def move(batch: Any, device: torch.device) -> Any:
    """Every tensor of a batch, however nested, on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [move(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


def parts_of(batch: Any) -> tuple:
    """What a function of a batch is called with: (x, y) of a pair, the batch itself otherwise."""
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def size_of(data: Dataset) -> int:
    """How many examples a map-style data set has; anything else is refused."""
    if isinstance(data, DataLoader):
        raise DataError(
            "a DataLoader was given, but the job itself says who reads what; give the data set (loader.dataset): "
            "batch_size is batch_per_replica of join, num_workers is loader_workers, collate_fn is collate"
        )
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise DataError(
            f"{type(data).__name__} is no map-style data set, so nobody can say which example goes where; "
            "give one with __len__ and __getitem__"
        )
    if not len(data):
        raise DataError(f"{type(data).__name__} is empty; give a data set with at least one example")
    return len(data)


def identity(data: Dataset) -> str:
    """A short name for what a data set contains, to notice that a run is continued on another one."""
    digest = hashlib.sha256(str(size_of(data)).encode())
    memory = in_memory(data)
    if memory is not None:
        some = torch.linspace(0, len(memory) - 1, min(64, len(memory))).long()
        for tensor in memory.tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor[some.to(tensor.device)].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return f"{len(data)}-{digest.hexdigest()[:16]}"  # type: ignore[arg-type]  # size_of has looked


@dataclass(frozen=True)
class _Seeded(Dataset):
    """A data set whose every example is read from the same random state, in whichever process."""

    data: Any
    seed: int
    epoch: int

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        seed_all(stream_seed(self.seed, self.epoch, 0, index, "example"))
        return self.data[index]


# ---- Fashion-MNIST --------------------------------------------------------------------------------------------------

# SHA-256 of the content, unpacked: the same however a mirror has compressed it.
FASHION = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
EMBEDDED = {
    "train-images-idx3-ubyte": "ed2e37ed5a3a57d212141a69fe0a0de5a7126ffba14ac3f7e76f5f52cc04b1f0",
    "train-labels-idx1-ubyte": "a69f2dad024ca220a8c4d85f621fdf929042d40c444abde2868903e9220ad517",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
SYSTEM = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
HOME_PAGE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MEAN, DEVIATION = 0.2860, 0.3530  # of the training images, on the scale 0 to 1


def cache_dir() -> Path:
    """Where worldsize keeps what it has downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "worldsize" / "fashion-mnist"


def decode_images(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Stored bytes as the model reads them: one channel, mean 0, deviation 1."""
    return ((images.float() / 255 - MEAN) / DEVIATION).unsqueeze(1), labels


def _fashion(files: dict[str, Tensor], source: str, name: str) -> Sets:
    def part(images: str, labels: str) -> InMemory:
        pair = (files[f"{images}-idx3-ubyte"], files[f"{labels}-idx1-ubyte"].long())
        return InMemory(tensors=pair, decode=decode_images, classes=10, source=source)

    return Sets(
        name=name,
        train=part("train-images", "train-labels"),
        test=part("t10k-images", "t10k-labels"),
        source=source,
    )


def _halved(numbers: Tensor) -> Tensor:
    """Images of half the side, each pixel the mean of four; labels as they are."""
    if numbers.dim() != 3:
        return numbers
    return F.avg_pool2d(numbers.float(), 2).round().to(torch.uint8)


def _find_fashion(data_dir: Path | None, download: bool) -> tuple[dict[str, Tensor], str]:
    """The full set: the folder named, the user's cache, the system's folder, a download if allowed; or the part."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise DataError(f"--data-dir {data_dir} is no folder; name the one that holds {next(iter(FASHION))}.gz")
        return _read_folder(data_dir, FASHION), str(data_dir)
    for folder in (cache_dir(), SYSTEM):
        if (folder / "train-images-idx3-ubyte.gz").exists():
            return _read_folder(folder, FASHION), str(folder)
    if download:
        _download(cache_dir())
        return _read_folder(cache_dir(), FASHION), f"{HOME_PAGE}, now in {cache_dir()}"
    return _embedded(), "inside the package: only the first 10,000 training images, the full set was not found"


def _embedded() -> dict[str, Tensor]:
    with importlib.resources.as_file(importlib.resources.files("worldsize") / "assets") as folder:
        return _read_folder(folder, EMBEDDED)


def _read_folder(folder: Path, sums: dict[str, str]) -> dict[str, Tensor]:
    return {name: _read(folder, name, digest) for name, digest in sums.items()}


def _read(folder: Path, name: str, digest: str) -> Tensor:
    packed, plain = folder / f"{name}.gz", folder / name
    path = packed if packed.exists() else plain
    try:
        content = gzip.decompress(path.read_bytes()) if path is packed else path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{packed} is missing; put all of {', '.join(FASHION)} there, packed or not") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); it is cut short or corrupt, copy it again") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path} is not the published file (its checksum differs); copy it again")
    return _idx(content)


def _idx(content: bytes) -> Tensor:
    """An IDX file: two zeros, the type (8: bytes), the number of axes, their lengths, then the bytes."""
    axes = content[3]
    shape = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape).copy())


def _download(folder: Path) -> None:
    import urllib.request

    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in FASHION.items():
        partial = folder / f".{name}.{os.getpid()}"
        try:
            with urllib.request.urlopen(f"{HOME_PAGE}/{name}.gz", timeout=30) as answer:
                packed = answer.read()
            if hashlib.sha256(gzip.decompress(packed)).hexdigest() != digest:
                raise DataError(f"{HOME_PAGE}/{name}.gz is not the published file; try another source and --data-dir")
            partial.write_bytes(packed)
            partial.rename(folder / f"{name}.gz")
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{HOME_PAGE}/{name}.gz cannot be fetched ({error}); use --data fashion-10k, which is inside the "
                "package, or name a folder with --data-dir"
            ) from None
        finally:
            partial.unlink(missing_ok=True)


# ---- generated ------------------------------------------------------------------------------------------------------


MOST_NUMBERS = 2**31  # in a generated set, which lies in memory


def _generated(name: str, seed: int) -> Sets:
    """Class patterns under noise: `generated:EXAMPLES:SHAPE:CLASSES`; a fifth as many examples again to test on."""
    try:
        _, examples_text, shape_text, classes_text = name.split(":")
        examples, classes = int(examples_text), int(classes_text)
        shape = [int(side) for side in shape_text.split("x")]
    except ValueError:
        raise DataError(f"data set {name!r} does not read; write generated:4096:3x32x32:10") from None
    if examples < 1 or classes < 2 or min(shape) < 1:
        raise DataError(f"data set {name!r}: examples and sides must be at least 1, classes at least 2")
    if max(examples, classes) * math.prod(shape) > MOST_NUMBERS:
        raise DataError(f"data set {name!r} would be more than {4 * MOST_NUMBERS >> 30} GiB; make it smaller")
    generator = torch.Generator().manual_seed(stream_seed(seed, 0, 0, 0, "generated"))
    patterns = torch.randn(classes, *shape, generator=generator)

    def part(count: int) -> InMemory:
        labels = torch.randint(classes, (count,), generator=generator)
        noise = torch.randn(count, *shape, generator=generator)
        return InMemory(tensors=(patterns[labels] + 2 * noise, labels), classes=classes, source="generated")

    return Sets(name=name, train=part(examples), test=part(max(classes, examples // 5)), source="generated")


SYMBOLS = "0123456789+=. "
UNCOUNTED = -100  # the target that torch's cross entropy leaves out


def _sums(seed: int) -> Sets:
    """Additions of numbers below 100 as text, a character a token; only the answer and its full stop are counted.

    A fifth of all pairs is kept for the test, so that an answer there was never seen.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, 0, 0, 0, "sums"))
    pairs = torch.randperm(10_000, generator=generator)

    def part(chosen: Tensor) -> InMemory:
        rows, targets = [], []
        for pair in chosen.tolist():
            left, right = divmod(pair, 100)
            question, answer = f"{left}+{right}=", f"{left + right}."
            tokens = [SYMBOLS.index(symbol) for symbol in (question + answer).ljust(10)]
            counted = range(len(question), len(question) + len(answer))
            rows.append(tokens[:-1])
            targets.append([tokens[i] if i in counted else UNCOUNTED for i in range(1, len(tokens))])
        return InMemory(tensors=(torch.tensor(rows), torch.tensor(targets)), classes=len(SYMBOLS), source="generated")

    return Sets(name="sums", train=part(pairs[2_000:]), test=part(pairs[:2_000]), source="generated", kind="tokens")


def _line(seed: int) -> Sets:
    generator = torch.Generator().manual_seed(stream_seed(seed, 0, 0, 0, "line"))

    def part(count: int) -> InMemory:
        x = 10 * torch.rand(count, 1, generator=generator)
        y = 10 * x + 2 + 3 * torch.randn(count, 1, generator=generator)
        return InMemory(tensors=(x, y), source="generated")

    return Sets(name="line", train=part(100), test=part(100), source="generated", kind="line")
