"""The tables that `make proof` writes under docs/proof: each says on what machine and from which commit it was made."""

import subprocess
from pathlib import Path

import torch

from worldsize.train.records import machine


def write_table(repository: Path, name: str, title: str, text: str, columns: dict[str, str], rows: list[list]) -> None:
    """Write docs/proof/NAME.md: a title, what was done, where, and the rows; `columns` maps a heading to its rule."""
    lines = [f"# {title}", "", text, "", provenance(repository), ""]
    lines += [_row(columns), _row(columns.values()), *map(_row, rows)]
    (repository / "docs" / "proof" / f"{name}.md").write_text("\n".join(lines) + "\n")


def provenance(repository: Path) -> str:
    about = machine()
    return (
        f"Made from commit {_commit(repository)} on {about['cpu']} ({torch.backends.cpu.get_cpu_capability()}), "
        f"torch {about['torch']}.\nAnother kind of machine gives other hashes, again one for every number of workers."
    )


def _commit(repository: Path) -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=repository, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = " and what was not yet committed" if git("status", "--porcelain", "src", "tests") else ""
    return git("rev-parse", "--short=10", "HEAD") + changed


def _row(cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"  # type: ignore[call-overload]  # any iterable
