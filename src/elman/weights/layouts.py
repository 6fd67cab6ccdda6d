"""The table of layouts: order of gates, biases, which way matrices lie, what arrays are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from elman.errors import InputError, diagnostic
from elman.weights.containers import Container, Fields, Flat, Listed, Named, Nodes
from elman.weights.flax import Joined, Trees
from elman.weights.gates import GATES, PEEPHOLES, Array, Gates, Kind, reordered
from elman.weights.reading import Layer

# How the biases b of W x and d of R h are kept: both; their sum; or their sum for all gates but the
# last of a GRU, whose d is multiplied by the reset gate and kept apart.
Biases = Literal["two", "one", "candidate"]


@dataclass(frozen=True)
class Layout:
    """How one library keeps weights.

    Attributes:
        name: of the library or format.
        container: how arrays are named and nested.
        biases: per kind that the library has.
        orders: gates per kind, where they are not in torch's order.
        transposed: whether matrices are [columns, rows].
        peepholes: their order.
    """

    name: str
    container: Container
    biases: Mapping[str, Biases]
    orders: Mapping[str, str] = field(default_factory=dict[str, str])
    transposed: bool = False
    peepholes: str = PEEPHOLES

    def check(self, kind: Kind) -> None:
        """Raise InputError if the library has no such cell."""
        if kind.name in self.biases:
            return
        others = [name for name, layout in LAYOUTS.items() if kind.name in layout.biases]
        raise InputError(
            diagnostic(
                f"layout {self.name!r} has no {kind.name}: it is for {', '.join(self.biases)}",
                [],
                f"layout={others[0]!r}" if others else "",
            )
        )

    def written(self, gates: Gates, kind: Kind) -> Gates:
        """The weights of one layer as the library keeps them."""
        W, R, b, d, p = gates
        if kind.name == "gru" and self.biases["gru"] == "one" and d is not None:
            if d[2 * len(d) // 3 :].any():
                raise InputError(
                    diagnostic(
                        f"layout {self.name!r} has no bias for a GRU's candidate inside the reset "
                        "gate, and the module's is not zero",
                        [],
                        "layout='flax', or 'equinox'",
                    )
                )
        b, d = _kept(b, d, self.biases[kind.name])
        target = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_turned(value, kind.gates, target) for value in (W, R, b, d))
        p = None if p is None else reordered(p, PEEPHOLES, self.peepholes)
        assert W is not None, "every layer has matrices"
        assert R is not None, "every layer has matrices"
        return Gates(W.T, R.T, b, d, p) if self.transposed else Gates(W, R, b, d, p)

    def read(self, kept: Gates, kind: Kind) -> Gates:
        """The inverse of :meth:`written`; biases may be missing."""
        W, R, b, d, p = kept
        W, R = (W.T, R.T) if self.transposed else (W, R)
        source = self.orders.get(kind.name, kind.gates)
        W, R, b, d = (_turned(value, source, kind.gates) for value in (W, R, b, d))
        p = None if p is None else reordered(p, self.peepholes, PEEPHOLES)
        assert W is not None, "checked by the container"
        assert R is not None, "checked by the container"
        if self.biases[kind.name] == "candidate" and d is not None:
            d = np.concatenate([np.zeros(len(W) - len(d), d.dtype), d])
        return Gates(W, R, b, d, p)

    def shapes(self, layer: Layer, kind: Kind) -> dict[str, tuple[int, ...]]:
        """What each array of a layer has to be, by role."""
        rows = len(kind.gates) * layer.units
        matrices = {"W": (rows, layer.inputs), "R": (rows, layer.units)}
        if self.transposed:
            matrices = {role: (columns, rows) for role, (rows, columns) in matrices.items()}
        form = self.biases[kind.name]
        vectors: dict[str, tuple[int, ...]] = {"b": (rows,)}
        if form != "one":
            vectors["d"] = (rows,) if form == "two" else (layer.units,)
        if kind.name == "lstm_peephole":
            vectors["p"] = (len(PEEPHOLES) * layer.units,)
        return matrices | vectors


def _kept(b: Array | None, d: Array | None, form: Biases) -> tuple[Array | None, Array | None]:
    """Both biases as a library keeps them."""
    if b is None:
        return None, None
    d = np.zeros_like(b) if d is None else d
    if form == "two":
        return b, d
    if form == "one":
        return b + d, None
    cut = 2 * len(b) // 3  # of a GRU, in torch's order
    return np.concatenate([b[:cut] + d[:cut], b[cut:]]), d[cut:]


def _turned(value: Array | None, source: str, target: str) -> Array | None:
    """Rows of all gates in another order, if there are any."""
    return None if value is None else reordered(value, source, target)


_TWO: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "two")
_ONE: dict[str, Biases] = dict.fromkeys(("rnn", "gru", "lstm"), "one")
_ZRN = {"gru": "zrn", "gru_before": "zrn"}

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout("torch", Named(), _TWO),
            Layout("cudnn", Flat(), _TWO),
            Layout("keras", Listed(), {**_ONE, "gru": "two", "gru_before": "one"}, _ZRN, True),
            Layout("flax", Trees(), {**_ONE, "gru": "candidate"}, {}, True),
            Layout("nnx", Joined(), _ONE, {}, True),
            Layout("equinox", Fields(), {"gru": "candidate", "lstm": "one"}),
            Layout(
                "onnx",
                Nodes(),
                dict.fromkeys(GATES, "two"),
                _ZRN | {"lstm": "iofg", "lstm_peephole": "iofg"},
                peepholes="iof",
            ),
        )
    }
)


def layout_named(name: Any) -> Layout:
    """The layout of a library. Raises InputError if there is none of the name."""
    if isinstance(name, str) and name in LAYOUTS:
        return LAYOUTS[name]
    raise InputError(
        diagnostic(f"there is no layout {name!r}", [("known", ", ".join(LAYOUTS))], 'layout="onnx"')
    )
