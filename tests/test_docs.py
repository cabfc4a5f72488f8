"""What README and docs say: paths exist, commands parse, Python runs, the functions named are there."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from worldsize.cli import build_parser

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "docs/design.md",
    "docs/loop.md",
    "docs/accuracy.md",
    "docs/landscape.md",
    "docs/experiments/README.md",
    "docs/decisions/README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(repository: Path, page: str):
    links = re.findall(r"\]\(([^)#]+)\)", (repository / page).read_text())
    assert links or page in ("CONTRIBUTING.md", "docs/landscape.md")
    missing = [link for link in links if not (repository / page).parent.joinpath(link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_the_command_line_knows(repository: Path, page: str):
    text = (repository / page).read_text()
    for command in re.findall(r"`worldsize ([a-z][^`]*)`", text):
        words = command.replace("RUN", "runs/x").replace("SCRIPT", "x.py").split()
        build_parser().parse_args(words if words[0] not in ("run",) or "x.py" in words else [*words, "x.py"])
    for command in re.findall(r"^worldsize (.*)$", text, re.MULTILINE):
        build_parser().parse_args(command.split())
    for target in re.findall(r"^make (\w+)", text, re.MULTILINE) + re.findall(r"`make (\w+)`", text):
        assert re.search(rf"^{target}:", (repository / "Makefile").read_text(), re.MULTILINE), target


def test_the_five_functions_of_the_tour_are_there(repository: Path):
    (line,) = re.findall(r"## Five functions to read\n\n(.*)", (repository / "README.md").read_text())
    names = re.findall(r"`([\w.]+)`", line)
    assert len(names) == 5
    for name in names:
        parts = name.split(".")
        found = importlib.import_module("worldsize." + ".".join(parts[:2]))
        for part in parts[2:]:
            found = getattr(found, part)


def test_the_diff_in_the_readme_is_that_of_the_example(repository: Path):
    (shown,) = re.findall(r"```diff\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    folder = repository / "examples" / "conv_net"
    for sign, name in (("-", "one_device.py"), ("+", "many_workers.py")):
        script = (folder / name).read_text().splitlines()
        lines = [line[1:] for line in shown.splitlines() if line.startswith(sign)]
        assert lines
        assert all(line in script for line in lines)


def test_the_python_of_the_loop_page_runs_as_it_stands_on_one_and_two_workers(repository: Path, tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```", (repository / "docs" / "loop.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    said = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        (folder / "page.py").write_text("\n".join(blocks))
        command = [sys.executable, "-m", "worldsize", "run", "-n", str(workers), "page.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert len(said[0].splitlines()) == 3
    assert said[0] == said[1]


def test_the_python_of_the_page_on_accuracy_runs_as_it_stands(repository: Path, capsys: pytest.CaptureFixture):
    blocks = re.findall(r"```python\n(.*?)```", (repository / "docs" / "accuracy.md").read_text(), re.DOTALL)
    assert len(blocks) >= 8
    exec(compile("\n".join(blocks), "accuracy.md", "exec"), {"__name__": "accuracy"})
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_the_python_of_the_landscape_page_runs_as_it_stands(repository: Path, tmp_path: Path):
    shape, net, use = re.findall(r"```python\n(.*?)```", (repository / "docs" / "landscape.md").read_text(), re.DOTALL)
    (tmp_path / "my_net.py").write_text(net)
    (tmp_path / "page.py").write_text(shape + use)
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.partition("(")[0] for line in done.stdout.splitlines()] == ["[Eigenvalue", "Trace", "Sharpness"]
