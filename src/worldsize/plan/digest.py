"""One SHA-256 for a set of named tensors: names, types, shapes and every bit."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def tensors_sha256(named: Iterable[tuple[str, Tensor]]) -> str:
    """The hash of tensors in the order of their names; equal exactly when every bit is.

    >>> tensors_sha256([("w", torch.zeros(2))]) == tensors_sha256([("w", torch.tensor([0.0, -0.0]))])
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda pair: pair[0]):
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(flat.numpy().tobytes())
    return digest.hexdigest()


def weights_sha256(model: nn.Module) -> str:
    """The hash of a model's parameters; a compiled model has the hash of the model inside."""
    return tensors_sha256((plain(name), value) for name, value in model.named_parameters())


def buffers_sha256(model: nn.Module) -> str:
    """The hash of a model's buffers as they are now."""
    return tensors_sha256((plain(name), value) for name, value in model.named_buffers())


def plain(name: str) -> str:
    """The name that a tensor has when its model is not compiled."""
    return name.replace("_orig_mod.", "")
