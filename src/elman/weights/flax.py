"""Flax's trees: gates one by one (linen), or joined (most cells of nnx)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elman.weights.gates import Array, Gates, Kind
from elman.weights.reading import Layer, Shapes, none_left, taken, trees

Tree = dict[str, dict[str, Array]]
SIDES = {"W": "i", "R": "h"}
BIASED = {"rnn": "W", "gru": "W", "lstm": "R"}  # whose product the bias is added to


class Trees:
    """flax.linen: per layer ``ii``, ``if``, ``hi``, ``hf`` … (an LSTM; nnx calls one ``if_``),
    ``ir``, ``hr`` … (a GRU), ``i`` and ``h`` (a simple cell), each with a ``kernel [I, H]`` and
    some with a ``bias [H]``."""

    def write(
        self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind
    ) -> list[dict[str, Tree]]:
        """See :class:`elman.weights.containers.Container`."""
        return [{"params": self._tree(part, kind)} for part in parts]

    def _tree(self, part: Gates, kind: Kind) -> Tree:
        count = len(kind.gates)
        found: Tree = {}
        for role, matrix in (("W", part.W), ("R", part.R)):
            bias = part.b if BIASED[kind.name] == role else None
            biases: list[Array | None] = [None] * count
            if bias is not None:
                biases = [*np.split(bias, count)]
            if role == "R" and part.d is not None:
                biases[-1] = part.d
            columns = np.split(matrix, count, axis=1)
            for gate, kernel, own in zip(kind.gates, columns, biases, strict=True):
                found[_name(role, gate, kind)] = _dense(kernel, own)
        return found

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        """See :class:`elman.weights.containers.Container`."""
        found: list[Gates] = []
        for tree, layer, own in zip(trees(arrays, layers), layers, shapes, strict=True):
            tree = dict(tree.get("params", tree))
            if "if_" in tree:
                tree["if"] = tree.pop("if_")
            left, units = _flat(tree), layer.units
            where = f" of {layer.suffix}"
            matrices: dict[str, Array] = {}
            biases: dict[str, list[Array | None]] = {}
            for role in SIDES:
                names = [_name(role, gate, kind) for gate in kind.gates]
                shape = (own[role][0], units)
                kernels = [taken(left, f"{name}.kernel", shape, where) for name in names]
                matrices[role] = np.concatenate([k for k in kernels if k is not None], axis=1)
                biases[role] = [taken(left, f"{n}.bias", (units,), where, False) for n in names]
            none_left(left, where)
            side = BIASED[kind.name]
            candidate = biases["R"][-1] if "d" in own else None
            found.append(Gates(**matrices, b=_joined(biases[side], units), d=candidate))
        return found


class Joined:
    """flax.nnx: per layer ``dense_i`` and ``dense_h`` of all gates, each with a ``kernel
    [I, G·H]`` and one of them with a ``bias [G·H]``."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> list[Tree]:
        """See :class:`elman.weights.containers.Container`."""
        side = BIASED[kind.name]
        return [
            {
                f"dense_{SIDES[role]}": _dense(matrix, part.b if role == side else None)
                for role, matrix in (("W", part.W), ("R", part.R))
            }
            for part in parts
        ]

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        """See :class:`elman.weights.containers.Container`."""
        found: list[Gates] = []
        for tree, layer, own in zip(trees(arrays, layers), layers, shapes, strict=True):
            left, where = _flat(tree), f" of {layer.suffix}"
            W, R = (taken(left, f"dense_{SIDES[r]}.kernel", own[r], where) for r in "WR")
            assert W is not None, "needed"
            assert R is not None, "needed"
            name = f"dense_{SIDES[BIASED[kind.name]]}.bias"
            found.append(Gates(W, R, taken(left, name, own["b"], where, False)))
            none_left(left, where)
        return found


def _name(role: str, gate: str, kind: Kind) -> str:
    """What linen calls a gate's product: ``if``; of the only gate ``i`` or ``h``."""
    return SIDES[role] + (gate if len(kind.gates) > 1 else "")


def _dense(kernel: Array, bias: Array | None) -> dict[str, Array]:
    return {"kernel": kernel} if bias is None else {"kernel": kernel, "bias": bias}


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by the names on the way to them, joined by dots."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": leaf for inner, leaf in _flat(value).items()}
        else:
            found[str(name)] = value
    return found


def _joined(biases: Sequence[Array | None], units: int) -> Array | None:
    """The biases of all gates in one, zeros where one has none; None if none has."""
    if all(bias is None for bias in biases):
        return None
    return np.concatenate([np.zeros(units, np.float32) if b is None else b for b in biases])
