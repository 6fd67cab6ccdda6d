"""Names and nesting of the arrays of all layers in libraries; errors name the array that does not
fit.

Order of gates, biases and direction of matrices are converted before
(:mod:`elman.interchange.weights.layouts`); a container only assigns names. Flax's trees have gates
one by one (linen), or joined (most cells of nnx).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from elman.errors import InputError, ShapeError
from elman.interchange.weights.arrays import (
    Array,
    Gates,
    Kind,
    Layer,
    Shapes,
    as_array,
    check_none_remains,
    layout_error,
    present_arrays,
    read_trees,
    take_array,
    take_by_role,
)


class Container(Protocol):
    """The names and the nesting of a library's arrays."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> Any:
        """Name the arrays of all layers and directions."""
        ...

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        """The inverse of :meth:`write`. Raises InputError, ShapeError: an array is missing,
        unknown, or of another shape."""
        ...


class Named:
    """torch: ``weight_ih_l0 [G·H, I]``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0`` …"""

    NAMES: Mapping[str, str] = {"W": "weight_ih", "R": "weight_hh", "b": "bias_ih", "d": "bias_hh"}

    def write(
        self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind
    ) -> dict[str, Array]:
        return {
            f"{self.NAMES[role]}_{layer.suffix}": value
            for layer, part in zip(layers, parts, strict=True)
            for role, value in present_arrays(part)
        }

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        if not isinstance(arrays, Mapping):
            raise layout_error("a dict of arrays by name", arrays)
        remaining, parts = dict(arrays), list[Gates]()
        for layer, expected in zip(layers, shapes, strict=True):
            names = {role: f"{self.NAMES[role]}_{layer.suffix}" for role in expected}
            parts.append(take_by_role(remaining, names, expected))
        check_none_remains(remaining)
        return parts


class PerLayer(ABC):
    """A tree for each layer and direction."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> list[Any]:
        return [self.tree(part, kind) for part in parts]

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        entries = zip(read_trees(arrays, layers), layers, shapes, strict=True)
        return [self.gates(dict(tree), layer, expected, kind) for tree, layer, expected in entries]

    @abstractmethod
    def tree(self, part: Gates, kind: Kind) -> Any:
        """Name the arrays of one layer."""

    @abstractmethod
    def gates(self, tree: dict[str, Any], layer: Layer, expected: Shapes, kind: Kind) -> Gates:
        """The inverse of :meth:`tree`; entries that are no arrays may be ignored."""


class Fields(PerLayer):
    """Equinox: per layer ``weight_ih [G·H, I]``, ``weight_hh``, ``bias`` and a GRU's ``bias_n
    [H]``, as ``vars(cell)`` has them."""

    NAMES: Mapping[str, str] = {"W": "weight_ih", "R": "weight_hh", "b": "bias", "d": "bias_n"}

    def tree(self, part: Gates, kind: Kind) -> dict[str, Array]:
        return {self.NAMES[role]: value for role, value in present_arrays(part)}

    def gates(self, tree: dict[str, Any], layer: Layer, expected: Shapes, kind: Kind) -> Gates:
        remaining = {name: value for name, value in tree.items() if np.ndim(value)}
        gates = take_by_role(
            remaining,
            {role: self.NAMES[role] for role in expected},
            expected,
            f" of {layer.suffix}",
        )
        check_none_remains(remaining, f" of {layer.suffix}")
        return gates


class Nodes:
    """ONNX: per layer a node's ``W [directions, G·H, I]``, ``R``, ``B [directions, 2·G·H]`` and
    ``P [directions, 3·H]``."""

    def write(
        self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind
    ) -> list[dict[str, Array]]:
        directions = layers[0].directions
        return [self._node(parts[k : k + directions]) for k in range(0, len(parts), directions)]

    def _node(self, parts: Sequence[Gates]) -> dict[str, Array]:
        node = {"W": np.stack([part.W for part in parts]), "R": np.stack([p.R for p in parts])}
        biases = [np.concatenate([p.b, p.d]) for p in parts if p.b is not None and p.d is not None]
        peepholes = [part.p for part in parts if part.p is not None]
        node |= {"B": np.stack(biases)} if biases else {}
        return node | ({"P": np.stack(peepholes)} if peepholes else {})

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        directions, parts = layers[0].directions, list[Gates]()
        for index, tree in enumerate(read_trees(arrays, layers[::directions])):
            rows, expected = len(kind.gates) * layers[0].units, shapes[directions * index]
            stacked = {
                role: (directions, *shape) for role, shape in {**expected, "b": (2 * rows,)}.items()
            }
            remaining, context = dict(tree), f" of node {index}"
            names = {
                role: role if role in "WR" else role.upper() for role in expected if role != "d"
            }
            node = take_by_role(remaining, names, stacked, context)
            check_none_remains(remaining, context)
            for end in range(directions):
                B, P = (None if v is None else v[end] for v in (node.b, node.p))
                cut = (None, None) if B is None else (B[:rows], B[rows:])
                parts.append(Gates(node.W[end], node.R[end], *cut, P))
        return parts


class Flat:
    """cuDNN's buffer [N]: W and R of all layers and directions, then b and d of all."""

    ORDER = ("WR", "bd")

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> Array:
        ordered = [getattr(part, role) for roles in self.ORDER for part in parts for role in roles]
        return np.concatenate([value.reshape(-1) for value in ordered if value is not None])

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        buffer = as_array(arrays, "the buffer", None)
        matrices, total = (
            sum(math.prod(expected[role]) for expected in shapes for role in roles)
            for roles in ("WR", "WRbd")
        )
        if buffer.shape not in ((total,), (matrices,)):
            raise ShapeError(
                f"the buffer is {[*buffer.shape]}, not [{total}], or [{matrices}] without biases"
            )
        parts: list[dict[str, Array]] = [{} for _ in layers]
        for roles in self.ORDER if buffer.shape == (total,) else self.ORDER[:1]:
            for expected, part in zip(shapes, parts, strict=True):
                for role in roles:
                    size = math.prod(expected[role])
                    part[role], buffer = buffer[:size].reshape(expected[role]), buffer[size:]
        return [Gates(**part) for part in parts]


class Listed:
    """Keras: a list of ``kernel [I, G·H]``, ``recurrent_kernel [H, G·H]`` and ``bias [G·H]`` (of a
    GRU with reset_after [2, G·H]) for each layer and direction, as ``get_weights()`` has them."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> list[Array]:
        arrays: list[Array] = []
        for W, R, b, d, _ in parts:
            arrays += [W, R]
            if b is not None:
                arrays.append(b if d is None else np.stack([b, d]))
        return arrays

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        values = list(_flatten_lists(arrays))
        per_layer, remainder = divmod(len(values), len(layers))
        if remainder or per_layer not in (2, 3):
            raise InputError(
                f"there are {len(values)} arrays for {len(layers)} layers and directions, which "
                "have kernel, recurrent_kernel and maybe bias each"
            )
        parts: list[Gates] = []
        for index, (layer, expected) in enumerate(zip(layers, shapes, strict=True)):
            layer_arrays, context = (
                values[per_layer * index : per_layer * (index + 1)],
                f" of {layer.suffix}",
            )
            W = as_array(layer_arrays[0], f"kernel{context}", expected["W"])
            R = as_array(layer_arrays[1], f"recurrent_kernel{context}", expected["R"])
            shape = (2, *expected["b"]) if "d" in expected else expected["b"]
            b = None if per_layer == 2 else as_array(layer_arrays[2], f"bias{context}", shape)
            bias_pair = (b, None) if b is None or "d" not in expected else (b[0], b[1])
            parts.append(Gates(W, R, *bias_pair))
        return parts


def _flatten_lists(arrays: Any) -> Iterator[Any]:
    if not isinstance(arrays, (list, tuple)):
        raise layout_error("a list of arrays, as get_weights() has them", arrays)
    for value in arrays:
        if isinstance(value, (list, tuple)):
            yield from _flatten_lists(value)
        else:
            yield value


Tree = dict[str, dict[str, Array]]
SIDES = {"W": "i", "R": "h"}
BIASED = {"rnn": "W", "gru": "W", "lstm": "R"}  # whose product the bias is added to


class Trees(PerLayer):
    """flax.linen: per layer ``ii``, ``if``, ``hi``, ``hf`` … (an LSTM; nnx calls one ``if_``),
    ``ir``, ``hr`` … (a GRU), ``i`` and ``h`` (a simple cell), each with a ``kernel [I, H]`` and
    some with a ``bias [H]``."""

    def tree(self, part: Gates, kind: Kind) -> dict[str, Tree]:
        count = len(kind.gates)
        tree: Tree = {}
        for role, matrix in (("W", part.W), ("R", part.R)):
            bias = part.b if BIASED[kind.name] == role else None
            biases: list[Array | None] = [None] * count
            if bias is not None:
                biases = [*np.split(bias, count)]
            if role == "R" and part.d is not None:
                biases[-1] = part.d
            columns = np.split(matrix, count, axis=1)
            for gate, kernel, bias_of_gate in zip(kind.gates, columns, biases, strict=True):
                tree[_gate_name(role, gate, kind)] = _dense(kernel, bias_of_gate)
        return {"params": tree}

    def gates(self, tree: dict[str, Any], layer: Layer, expected: Shapes, kind: Kind) -> Gates:
        tree = dict(tree.get("params", tree))
        if "if_" in tree:
            tree["if"] = tree.pop("if_")
        remaining, units, context = _flatten_tree(tree), layer.units, f" of {layer.suffix}"
        matrices: dict[str, Array] = {}
        biases: dict[str, list[Array | None]] = {}
        for role in SIDES:
            names = [_gate_name(role, gate, kind) for gate in kind.gates]
            shape = (expected[role][0], units)
            kernels = [take_array(remaining, f"{name}.kernel", shape, context) for name in names]
            matrices[role] = np.concatenate([k for k in kernels if k is not None], axis=1)
            biases[role] = [
                take_array(remaining, f"{n}.bias", (units,), context, False) for n in names
            ]
        check_none_remains(remaining, context)
        candidate = biases["R"][-1] if "d" in expected else None
        return Gates(**matrices, b=_join_biases(biases[BIASED[kind.name]], units), d=candidate)


class Joined(PerLayer):
    """flax.nnx: per layer ``dense_i`` and ``dense_h`` of all gates, each with a ``kernel
    [I, G·H]`` and one of them with a ``bias [G·H]``."""

    def tree(self, part: Gates, kind: Kind) -> Tree:
        side = BIASED[kind.name]
        return {
            f"dense_{SIDES[role]}": _dense(matrix, part.b if role == side else None)
            for role, matrix in (("W", part.W), ("R", part.R))
        }

    def gates(self, tree: dict[str, Any], layer: Layer, expected: Shapes, kind: Kind) -> Gates:
        remaining, context = _flatten_tree(tree), f" of {layer.suffix}"
        names = {role: f"dense_{side}.kernel" for role, side in SIDES.items()}
        names["b"] = f"dense_{SIDES[BIASED[kind.name]]}.bias"
        gates = take_by_role(remaining, names, expected, context)
        check_none_remains(remaining, context)
        return gates


def _gate_name(role: str, gate: str, kind: Kind) -> str:
    """linen's name of a gate's product: ``if``; ``i`` or ``h`` of a single gate."""
    return SIDES[role] + (gate if len(kind.gates) > 1 else "")


def _dense(kernel: Array, bias: Array | None) -> dict[str, Array]:
    return {"kernel": kernel} if bias is None else {"kernel": kernel, "bias": bias}


def _flatten_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a tree by their path, joined by dots."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= {f"{name}.{inner}": leaf for inner, leaf in _flatten_tree(value).items()}
        else:
            leaves[str(name)] = value
    return leaves


def _join_biases(biases: Sequence[Array | None], units: int) -> Array | None:
    """Concatenate the biases of all gates, zeros where one is None; None if all are."""
    if all(bias is None for bias in biases):
        return None
    return np.concatenate([np.zeros(units, np.float32) if b is None else b for b in biases])
