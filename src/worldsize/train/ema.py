"""A moving average of a job's weights: it follows them step by step, and can stand in for them in evaluation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from worldsize.errors import Misuse, ResumeError
from worldsize.plan import digest


# Not torch's AveragedModel: it averages float16 in float16, and copies the module with everything that hangs on it.
class EMA:
    """The average of the weights, `job.ema`, of a job that was joined with `ema=DECAY`.

        with job.ema.applied():
            accuracy = job.evaluate(right, test_set, norms_from=train_set)

    After step t, from 0, it keeps min(decay, (1 + t) / (10 + t)) of itself. The second term, TensorFlow's, lets go of
    the random first weights soon. float16 and bfloat16 weights are averaged in float32, as they would round small moves
    away. Batch norm's statistics are not averaged, but taken anew with `norms_from`.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._followed = {
            name.replace("_orig_mod.", ""): parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self.weights = {name: _wide(parameter).clone() for name, parameter in self._followed.items()}
        self._applied = False

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the weights as they are now; the job calls this after every step."""
        self._refuse_applied()
        keep = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(list(self.weights.values()), [*map(_wide, self._followed.values())], 1 - keep)
        self.steps += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights; afterwards its own again, bit for bit."""
        self._refuse_applied()
        own = {name: parameter.detach().clone() for name, parameter in self._followed.items()}
        self._show(self.weights)
        self._applied = True
        try:
            yield
        finally:
            self._show(own)
            self._applied = False

    def sha256(self) -> str:
        """The hash of the averaged weights."""
        return digest.tensors_sha256(self.weights.items())

    def state_dict(self) -> dict[str, Any]:
        self._refuse_applied()
        return {"steps": self.steps, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        theirs = state["weights"]
        odd = sorted(theirs.keys() ^ self.weights.keys())
        if odd:
            where = "there" if odd[0] in theirs else "here"
            raise ResumeError(
                f"the checkpoint averages other weights: {odd[0]} is averaged only {where}; before worldsize.join, "
                "freeze what was frozen then"
            )
        for name, average in self.weights.items():
            average.copy_(theirs[name])
        self.steps = state["steps"]

    def _show(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._followed.items():
                parameter.copy_(weights[name])

    def _refuse_applied(self) -> None:
        if self._applied:
            raise Misuse(
                "the model holds its averaged weights; leave `with job.ema.applied()` before training, saving or "
                "entering it again"
            )


def _wide(parameter: Tensor) -> Tensor:
    held = parameter.detach()
    return held.float() if held.dtype in (torch.float16, torch.bfloat16) else held
