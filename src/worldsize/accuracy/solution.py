"""A finished run as a point in the space of weights: read from its folder, refused where it is no such point."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from worldsize.errors import Misuse
from worldsize.parallel import norm
from worldsize.report.records import read_records
from worldsize.train import checkpoint, data, models
from worldsize.train.data import Sets
from worldsize.train.settings import Run, from_record


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A finished run, read from its folder."""

    folder: Path
    settings: Run
    about: dict[str, Any]
    weights: dict[str, Tensor]
    data: str  # the identity of what it was trained on


def solution(folder: Path) -> Solution:
    """The newest checkpoint of a run; refuses one that has no place in a landscape."""
    records = read_records(folder)
    if records.state == "failed":
        error = next(event.get("error") for event in reversed(records.events) if event.get("event") == "failed")
        raise Misuse(f"{folder} failed ({error}), so it has no solution to look around in; name a run that finished")
    if records.state != "finished" or not records.result:
        raise Misuse(f"{folder} has not finished; go on with: worldsize train --resume {folder}")
    newest = checkpoint.newest(folder / "checkpoints")
    if newest is None:
        raise Misuse(f"{folder} has no checkpoint to take the weights from; train again, or name another run")
    state = checkpoint.read(newest)
    odd = next((name for name, tensor in state.model.items() if not tensor.isfinite().all()), None)
    if odd is not None:
        raise Misuse(f"{folder} diverged: {odd} is not finite at {newest.name}; name a run that did not")
    settings = records.run.get("settings")
    if not isinstance(settings, dict):
        raise Misuse(f"{folder}/run.json does not say what was trained; name a run that `worldsize train` wrote")
    return Solution(
        folder=folder,
        settings=from_record(settings, {}, folder),
        about=records.run,
        weights=state.model,
        data=state.position.data,
    )


def sets_of(found: Solution) -> Sets:
    """The data that it was trained on; refuses any other of that name."""
    run = found.settings
    sets = data.load(run.data, data_dir=Path(run.data_dir) if run.data_dir else None, seed=run.seed)
    if data.identity(sets.train) != found.data:
        raise Misuse(
            f"{found.folder} was trained on other examples than {run.data} has here ({sets.source}); "
            "put the data set where it was"
        )
    return sets


def check_pair(one: Solution, other: Solution) -> None:
    """Refuse two solutions between which no line says anything."""
    for name in ("model", "data"):
        left, right = (getattr(each.settings, name) for each in (one, other))
        if left != right:
            raise Misuse(
                f"{one.folder} trained {name} {left} and {other.folder} {right}; a line needs two runs of one {name}"
            )
    if one.data != other.data:
        raise Misuse(
            f"{one.folder} and {other.folder} were trained on different {one.settings.data} (seed {one.settings.seed} "
            f"and {other.settings.seed}); a line needs two runs on the same examples"
        )


def build(found: Solution, sets: Sets) -> nn.Module:
    """The trained model, as it is evaluated."""
    run = found.settings
    model = norm.convert(
        models.build(run.model, sets, run.dropout),
        run.norm,  # type: ignore[arg-type]  # Run checks it
        ghost_batch=run.ghost_batch,
    )
    try:
        model.load_state_dict(found.weights)
    except RuntimeError:
        raise Misuse(f"{found.folder} holds weights of another model than {run.model}; name another run") from None
    return model.eval()
