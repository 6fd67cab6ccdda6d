"""How libraries name and nest the arrays of all layers; what does not fit is named in the error.

The weights of a layer are already the library's: order of gates, biases and direction of matrices
(:mod:`elman.interchange.weights.layouts`). Here they only get names. Flax's trees have gates one by
one (linen), or joined (most cells of nnx).
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
    array,
    by_role,
    none_left,
    present,
    taken,
    trees,
    wrong,
)


class Container(Protocol):
    """Names and nests."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> Any:
        """Name the arrays of all layers and directions."""
        ...

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        """Find them again. Raises InputError, ShapeError: an array is missing, unknown, or is not
        of its shape."""
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
            for role, value in present(part)
        }

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        if not isinstance(arrays, Mapping):
            raise wrong("a dict of arrays by name", arrays)
        left, found = dict(arrays), list[Gates]()
        for layer, own in zip(layers, shapes, strict=True):
            names = {role: f"{self.NAMES[role]}_{layer.suffix}" for role in own}
            found.append(by_role(left, names, own))
        none_left(left)
        return found


class PerLayer(ABC):
    """A tree for each layer and direction."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> list[Any]:
        return [self.tree(part, kind) for part in parts]

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        every = zip(trees(arrays, layers), layers, shapes, strict=True)
        return [self.gates(dict(tree), layer, own, kind) for tree, layer, own in every]

    @abstractmethod
    def tree(self, part: Gates, kind: Kind) -> Any:
        """Name the arrays of one layer."""

    @abstractmethod
    def gates(self, tree: dict[str, Any], layer: Layer, own: Shapes, kind: Kind) -> Gates:
        """Find them again; sizes and switches beside the arrays may be left alone."""


class Fields(PerLayer):
    """Equinox: per layer ``weight_ih [G·H, I]``, ``weight_hh``, ``bias`` and a GRU's ``bias_n
    [H]``, as ``vars(cell)`` has them."""

    NAMES: Mapping[str, str] = {"W": "weight_ih", "R": "weight_hh", "b": "bias", "d": "bias_n"}

    def tree(self, part: Gates, kind: Kind) -> dict[str, Array]:
        return {self.NAMES[role]: value for role, value in present(part)}

    def gates(self, tree: dict[str, Any], layer: Layer, own: Shapes, kind: Kind) -> Gates:
        left = {name: value for name, value in tree.items() if np.ndim(value)}
        found = by_role(left, {role: self.NAMES[role] for role in own}, own, f" of {layer.suffix}")
        none_left(left, f" of {layer.suffix}")
        return found


class Nodes:
    """ONNX: per layer a node's ``W [directions, G·H, I]``, ``R``, ``B [directions, 2·G·H]`` and
    ``P [directions, 3·H]``."""

    def write(
        self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind
    ) -> list[dict[str, Array]]:
        two = layers[0].directions
        return [self._node(parts[k : k + two]) for k in range(0, len(parts), two)]

    def _node(self, parts: Sequence[Gates]) -> dict[str, Array]:
        found = {"W": np.stack([part.W for part in parts]), "R": np.stack([p.R for p in parts])}
        both = [np.concatenate([p.b, p.d]) for p in parts if p.b is not None and p.d is not None]
        peepholes = [part.p for part in parts if part.p is not None]
        found |= {"B": np.stack(both)} if both else {}
        return found | ({"P": np.stack(peepholes)} if peepholes else {})

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        two, found = layers[0].directions, list[Gates]()
        for index, tree in enumerate(trees(arrays, layers[::two])):
            rows, own = len(kind.gates) * layers[0].units, shapes[two * index]
            whole = {role: (two, *shape) for role, shape in {**own, "b": (2 * rows,)}.items()}
            left, where = dict(tree), f" of node {index}"
            names = {role: role if role in "WR" else role.upper() for role in own if role != "d"}
            node = by_role(left, names, whole, where)
            none_left(left, where)
            for end in range(two):
                B, P = (None if v is None else v[end] for v in (node.b, node.p))
                cut = (None, None) if B is None else (B[:rows], B[rows:])
                found.append(Gates(node.W[end], node.R[end], *cut, P))
        return found


class Flat:
    """cuDNN's buffer [N]: W and R of all layers and directions, then b and d of all."""

    ORDER = ("WR", "bd")

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> Array:
        ordered = [getattr(part, role) for roles in self.ORDER for part in parts for role in roles]
        return np.concatenate([value.reshape(-1) for value in ordered if value is not None])

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        buffer = array(arrays, "the buffer", None)
        matrices, every = (
            sum(math.prod(own[role]) for own in shapes for role in roles)
            for roles in ("WR", "WRbd")
        )
        if buffer.shape not in ((every,), (matrices,)):
            raise ShapeError(
                f"the buffer is {[*buffer.shape]}, not [{every}], or [{matrices}] without biases"
            )
        found: list[dict[str, Array]] = [{} for _ in layers]
        for roles in self.ORDER if buffer.shape == (every,) else self.ORDER[:1]:
            for own, part in zip(shapes, found, strict=True):
                for role in roles:
                    size = math.prod(own[role])
                    part[role], buffer = buffer[:size].reshape(own[role]), buffer[size:]
        return [Gates(**part) for part in found]


class Listed:
    """Keras: a list of ``kernel [I, G·H]``, ``recurrent_kernel [H, G·H]`` and ``bias [G·H]`` (of a
    GRU with reset_after [2, G·H]) for each layer and direction, as ``get_weights()`` has them."""

    def write(self, parts: Sequence[Gates], layers: Sequence[Layer], kind: Kind) -> list[Array]:
        found: list[Array] = []
        for W, R, b, d, _ in parts:
            found += [W, R]
            if b is not None:
                found.append(b if d is None else np.stack([b, d]))
        return found

    def read(
        self, arrays: Any, layers: Sequence[Layer], shapes: Sequence[Shapes], kind: Kind
    ) -> list[Gates]:
        values = list(_flattened(arrays))
        each, left = divmod(len(values), len(layers))
        if left or each not in (2, 3):
            raise InputError(
                f"there are {len(values)} arrays for {len(layers)} layers and directions, which "
                "have kernel, recurrent_kernel and maybe bias each"
            )
        found: list[Gates] = []
        for index, (layer, own) in enumerate(zip(layers, shapes, strict=True)):
            mine, where = values[each * index : each * (index + 1)], f" of {layer.suffix}"
            W = array(mine[0], f"kernel{where}", own["W"])
            R = array(mine[1], f"recurrent_kernel{where}", own["R"])
            shape = (2, *own["b"]) if "d" in own else own["b"]
            b = None if each == 2 else array(mine[2], f"bias{where}", shape)
            both = (b, None) if b is None or "d" not in own else (b[0], b[1])
            found.append(Gates(W, R, *both))
        return found


def _flattened(arrays: Any) -> Iterator[Any]:
    if not isinstance(arrays, (list, tuple)):
        raise wrong("a list of arrays, as get_weights() has them", arrays)
    for value in arrays:
        if isinstance(value, (list, tuple)):
            yield from _flattened(value)
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
        return {"params": found}

    def gates(self, tree: dict[str, Any], layer: Layer, own: Shapes, kind: Kind) -> Gates:
        tree = dict(tree.get("params", tree))
        if "if_" in tree:
            tree["if"] = tree.pop("if_")
        left, units, where = _flat(tree), layer.units, f" of {layer.suffix}"
        matrices: dict[str, Array] = {}
        biases: dict[str, list[Array | None]] = {}
        for role in SIDES:
            names = [_name(role, gate, kind) for gate in kind.gates]
            shape = (own[role][0], units)
            kernels = [taken(left, f"{name}.kernel", shape, where) for name in names]
            matrices[role] = np.concatenate([k for k in kernels if k is not None], axis=1)
            biases[role] = [taken(left, f"{n}.bias", (units,), where, False) for n in names]
        none_left(left, where)
        candidate = biases["R"][-1] if "d" in own else None
        return Gates(**matrices, b=_joined(biases[BIASED[kind.name]], units), d=candidate)


class Joined(PerLayer):
    """flax.nnx: per layer ``dense_i`` and ``dense_h`` of all gates, each with a ``kernel
    [I, G·H]`` and one of them with a ``bias [G·H]``."""

    def tree(self, part: Gates, kind: Kind) -> Tree:
        side = BIASED[kind.name]
        return {
            f"dense_{SIDES[role]}": _dense(matrix, part.b if role == side else None)
            for role, matrix in (("W", part.W), ("R", part.R))
        }

    def gates(self, tree: dict[str, Any], layer: Layer, own: Shapes, kind: Kind) -> Gates:
        left, where = _flat(tree), f" of {layer.suffix}"
        names = {role: f"dense_{side}.kernel" for role, side in SIDES.items()}
        names["b"] = f"dense_{SIDES[BIASED[kind.name]]}.bias"
        found = by_role(left, names, own, where)
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
