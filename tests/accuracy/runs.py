"""Small finished runs, written as `worldsize train` writes them, without any training."""

from pathlib import Path

import torch

from worldsize.parallel import norm
from worldsize.train import checkpoint, data, models
from worldsize.train.records import Records
from worldsize.train.settings import Run

DATA = "generated:40:1x8x8:4"


def write_run(folder: Path, *, weights: int = 0, state: str = "finished", poison: bool = False, **settings) -> Path:
    """A run whose weights were drawn from the seed `weights`, and whose batch norms have seen something."""
    run = Run(**({"model": "mlp", "data": DATA} | settings))
    sets = data.load(run.data, seed=run.seed)
    torch.manual_seed(weights)
    model = norm.convert(models.build(run.model, sets), run.norm, ghost_batch=run.ghost_batch)
    model.train()
    with torch.no_grad():
        model(sets.train.take(torch.arange(20))[0])
        if poison:
            next(model.parameters()).view(-1)[3] = float("nan")
    records = Records(folder)
    records.begin({"settings": run.as_json(), "versions": {}, "machine": {}})
    if state == "failed":
        records.event("failed", error="the loss is nan at step 3")
    if state in ("finished", "without checkpoint"):
        records.finish({"steps": 4})
    if state != "without checkpoint":
        position = checkpoint.Position(epoch=1, step=0, steps_done=4, data=data.identity(sets.train))
        kept = checkpoint.State(
            model=model.state_dict(), optimizer={}, buffers={}, position=position, experiment={}, extra={}
        )
        checkpoint.write(records.checkpoints / "step-00000004", kept)
    return folder
