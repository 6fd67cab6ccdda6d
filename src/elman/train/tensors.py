"""Tensors by name as the bytes of a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from elman.extras import require

WHO = "a file of tensors"


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Write tensors as a safetensors file has them.

    Raises:
        MissingPackageError: safetensors is not installed.
    """
    return require("safetensors.torch", WHO).save(dict(tensors))


def decode_tensors(content: bytes) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, each at an address of its own.

    Raises:
        ValueError: it is none.
        MissingPackageError: safetensors is not installed.
    """
    library: Any = require("safetensors.torch", WHO)
    broken = require("safetensors", WHO).SafetensorError
    try:  # copies, because a tensor lies in a safetensors file at any address, not an aligned one
        return {name: value.clone() for name, value in library.load(content).items()}
    except (broken, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error
