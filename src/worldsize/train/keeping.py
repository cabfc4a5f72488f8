"""Keeping: everything of a job that a checkpoint holds, put together and taken apart again."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from worldsize.errors import ResumeError
from worldsize.parallel.world import World
from worldsize.plan.digest import plain
from worldsize.train import checkpoint
from worldsize.train.buffers import ReplicaBuffers
from worldsize.train.checkpoint import Position
from worldsize.train.experiment import Settings


class Keeping:
    """Writes a job's state at a step border, and takes it over again at whatever world size."""

    def __init__(
        self,
        world: World,
        settings: Settings,
        model: nn.Module,
        optimizer: Optimizer,
        buffers: ReplicaBuffers,
        others: dict[str, Any],
    ) -> None:
        self.world, self.settings, self.model, self.optimizer, self.buffers = world, settings, model, optimizer, buffers
        self.others = {name: part for name, part in others.items() if part is not None}
        named = {"optimizer": optimizer} | {name: others[name] for name in ("scheduler", "scaler")}
        kinds = {name: None if part is None else type(part).__name__ for name, part in named.items()}
        self.experiment = settings.facts() | kinds  # what must not change between two parts of one run

    def write(self, folder: Path, position: Position, choice: Literal["mean", "first"]) -> Path:
        """Every worker must call this, the first one writes; the model is kept with its buffers for evaluation."""
        rows = self.buffers.gather()
        path = folder / f"step-{position.steps_done:08d}"
        if self.world.worker == 0:
            names, model = self._names(), plain_state(self.model)
            evaluated = dict(zip(names, self.buffers.chosen(rows, choice), strict=True))
            state = checkpoint.State(
                model=model | {name: evaluated[name] for name in model if name in evaluated},
                optimizer=self.optimizer.state_dict(),
                buffers={f"{v}.{n}": t for v, row in enumerate(rows) for n, t in zip(names, row, strict=True)},
                position=position,
                experiment=self.experiment,
                extra={name: part.state_dict() for name, part in self.others.items()},
            )
            checkpoint.write(path, state)
        self.world.barrier()
        return path

    def read(self, folder: Path) -> Position | None:
        """Take over the newest whole checkpoint in this folder; where it stands, or None if there is none."""
        path = self._newest(folder)
        if path is None:
            return None
        state = checkpoint.read(path)
        checkpoint.fits(state, plain_state(self.model), self.experiment, path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state.model[plain(name)])
        try:
            self.optimizer.load_state_dict(state.optimizer)
        except ValueError as error:
            raise ResumeError(f"{path} holds another optimizer: {error}; make it with the groups it had") from None
        names = self._names()
        self.buffers.load([[state.buffers[f"{v}.{n}"] for n in names] for v in range(self.settings.replicas)])
        for name, part in self.others.items():
            if name in state.extra:
                part.load_state_dict(state.extra[name])
        return state.position

    def _newest(self, folder: Path) -> Path | None:
        path = checkpoint.newest(folder)
        everyone = self.world.gather(path.name if path else None)
        if any(name != everyone[0] for name in everyone):
            odd = next(worker for worker, name in enumerate(everyone) if name != everyone[0])
            raise ResumeError(
                f"worker 0 finds {everyone[0]} in {folder}, worker {odd} finds {everyone[odd]}; "
                "keep checkpoints on a file system that all hosts share"
            )
        return path

    def _names(self) -> list[str]:
        return [plain(name) for name in self.buffers.names]


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The model's own state, under the names that it has when it is not compiled."""
    return {plain(name): tensor for name, tensor in model.state_dict().items()}
