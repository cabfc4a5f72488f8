"""Arrows between rooms point only downwards: the imports of every module are read, also those inside functions."""

import ast
import graphlib
from pathlib import Path

import pytest

BELOW_RUN = {"errors", "plan", "parallel", "train", "inside"}
BELOW_WORKSHOP = BELOW_RUN | {"run", "report", "check", "scale", "accuracy"}
# What each room may open. train.records stands for itself: it is the format of what a run leaves on disk.
MAY_OPEN = {
    "errors": set(),
    "plan": {"errors"},
    "parallel": {"errors", "plan"},
    "train": {"errors", "plan", "parallel"},
    "inside": {"errors", "plan", "parallel"},
    "run": BELOW_RUN,
    "report": {"errors", "plan", "train.records"},
    "check": BELOW_RUN | {"run"},
    "scale": BELOW_RUN | {"run"},
    "accuracy": BELOW_RUN | {"run", "report"},  # it reads runs as pages do, and draws with the same charts
    "workshop": BELOW_WORKSHOP,
    "demo": BELOW_RUN | {"run", "report"},
    "cli": BELOW_WORKSHOP | {"workshop", "demo"},
    "__main__": {"cli"},
    "__init__": set(),
}
# Tests that look at something else than one module.
OF_NO_MODULE = {
    "test_layers.py": "how all modules stand to each other",
    "test_public.py": "the package's own names",
    "test_docs.py": "README and docs",
    "test_examples.py": "the scripts under examples",
    "parallel/test_cuda.py": "all of it on a GPU",
    "run/test_slurm.py": "all of it on a real Slurm",
}
OUTSIDE = {"examples", "tests", "course", "labs", "decks", "benchmarks"}


def opened(source: str) -> set[str]:
    """Every module that this source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out from worldsize on"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func) and node.args:
            name = node.args[0]
            found |= {name.value} if isinstance(name, ast.Constant) and isinstance(name.value, str) else set()
    return found


def wrong_arrows(room: str, source: str) -> list[str]:
    """What this source, standing in this room, opens though it may not."""
    wrong = []
    for name in sorted(opened(source)):
        top, *rest = name.split(".")
        if top in OUTSIDE:
            wrong.append(name)
        if top != "worldsize" or not rest or rest[0] in (room, "__version__"):
            continue
        if rest[0] not in MAY_OPEN[room] and ".".join(rest[:2]) not in MAY_OPEN[room]:
            wrong.append(name)
    return wrong


@pytest.fixture(scope="module")
def modules(repository: Path) -> dict[str, Path]:
    """Every module of the package by its name below worldsize."""
    package = repository / "src" / "worldsize"
    found = {".".join(path.relative_to(package).with_suffix("").parts): path for path in package.rglob("*.py")}
    assert len(found) > 20, "a check that looks at nothing must fail"
    assert {"errors", "plan.tree", "parallel.exact", "train.job", "run.pool"} <= found.keys()
    return found


def test_no_module_opens_a_room_above_or_beside_its_own(modules):
    looked_at = 0
    for name, path in modules.items():
        room = name.split(".")[0]
        assert room in MAY_OPEN, f"{path} stands in a room that the design does not know"
        assert wrong_arrows(room, path.read_text()) == [], f"{path} opens what it may not"
        looked_at += len(opened(path.read_text()))
    assert looked_at > 100


def test_no_room_opens_itself_by_a_detour(modules):
    rooms: dict[str, set[str]] = {room: set() for room in MAY_OPEN}
    for name, path in modules.items():
        room = name.split(".")[0]
        for other in opened(path.read_text()):
            top, *rest = other.split(".")
            if top == "worldsize" and rest and rest[0] in MAY_OPEN and rest[0] != room:
                rooms[room].add(rest[0])
    assert any(rooms.values())
    graphlib.TopologicalSorter(rooms).prepare()  # raises CycleError


def test_no_module_opens_itself_by_a_detour(modules):
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = {other.removeprefix("worldsize.") for other in opened(path.read_text())}
        graph[name] = {
            module
            for module in modules
            for target in targets
            if target in (module, f"{module}.{target.rpartition('.')[2]}")
        }
        graph[name] -= {name}
    assert graph["train.job"] >= {"parallel.exact", "train.checkpoint", "plan.tree"}
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("plan", "import worldsize.parallel.world"),
        ("plan", "from worldsize.train import data"),
        ("parallel", "def f():\n    from worldsize.train.job import Job"),
        ("train", "from worldsize.inside import start"),
        ("train", "from worldsize import run"),
        ("inside", "from worldsize.train.job import join"),
        ("report", "from worldsize.train.job import Job"),
        ("report", "from worldsize.train import job"),
        ("scale", "from worldsize.check import lint"),
        ("run", "import importlib\nimportlib.import_module('worldsize.report.page')"),
        ("cli", "import tests.conftest"),
        ("errors", "from worldsize.plan import tree"),
    ],
)
def test_an_upward_arrow_would_be_seen(room, source):
    assert len(wrong_arrows(room, source)) == 1


def test_a_downward_arrow_is_allowed():
    assert wrong_arrows("report", "from worldsize.train.records import Records\nimport torch") == []
    assert wrong_arrows("train", "from worldsize.parallel.world import World\nfrom worldsize.train import data") == []


def test_every_module_says_what_it_is_for(modules):
    for path in modules.values():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        assert docstring, f"{path} has no docstring"
        assert docstring.splitlines()[0].endswith((".", ":", "?")), f"{path}: its first line is one sentence"


def test_every_module_has_its_tests_at_the_same_place_and_every_test_its_module(modules, repository):
    expected = {
        path.with_name(f"test_{path.name}")
        for path in (Path(*name.split(".")).with_suffix(".py") for name in modules)
        if path.stem not in ("__init__", "__main__")
    }
    found = {path.relative_to(repository / "tests") for path in (repository / "tests").rglob("test_*.py")}
    others = {Path(name) for name in OF_NO_MODULE}
    assert found >= expected, f"no tests of these: {sorted(map(str, expected - found))}"
    assert found - expected == others, f"tests of no module: {sorted(map(str, (found - expected) ^ others))}"
