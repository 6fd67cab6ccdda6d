"""Nodes of an ONNX graph, and the file that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from elman.escaping import printable

OPSET, IR = 18, 8  # the pair of ONNX 1.13
FLOAT, INT32, INT64, BOOL = 1, 6, 7, 9  # of onnx.TensorProto


class Slot(NamedTuple):
    """An input or an output of a graph.

    Attributes:
        name: unique.
        shape: sizes, or names of sizes that a call decides.
        kind: of its numbers.
    """

    name: str
    shape: tuple[int | str, ...]
    kind: int = FLOAT


@dataclass
class Writer:
    """Collects the nodes of one graph; bodies inside it share names and constants.

    Attributes:
        onnx: the package.
        outer: the graph that this one is a body in.
        nodes: in order.
        inputs, outputs: of the graph.
        arrays: initializers of the outermost graph.
    """

    onnx: Any
    outer: Writer | None = None
    nodes: list[Any] = field(default_factory=list[Any])
    inputs: list[Slot] = field(default_factory=list[Slot])
    outputs: list[Slot] = field(default_factory=list[Slot])
    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict[str, Any])
    _names: dict[str, int] = field(default_factory=dict[str, int])
    _constants: dict[tuple[Any, ...], str] = field(default_factory=dict[Any, str])

    @property
    def root(self) -> Writer:
        """The outermost graph."""
        return self if self.outer is None else self.outer.root

    def name(self, base: str) -> str:
        """Make a unique name."""
        names, base = self.root._names, printable(base, "")
        count = names[base] = names.get(base, -1) + 1
        return self.name(f"{base}_{count}") if count else base

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output; its name."""
        return self.emit_node(kind, inputs, (self.name(kind),), **attributes)[0]

    def emit_node(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with named outputs; an attribute may be a body."""
        name = outputs[0]
        values = {k: v.graph(name) if isinstance(v, Writer) else v for k, v in attributes.items()}
        node = self.onnx.helper.make_node(kind, inputs, outputs, name=f"{kind}_{name}", **values)
        self.nodes.append(node)
        return tuple(outputs)

    def graph(self, name: str) -> Any:
        """Build the ``onnx`` graph."""
        onnx = self.onnx
        inputs, outputs = (
            [onnx.helper.make_tensor_value_info(s.name, s.kind, s.shape) for s in slots]
            for slots in (self.inputs, self.outputs)
        )
        arrays = [onnx.numpy_helper.from_array(value, key) for key, value in self.arrays.items()]
        return onnx.helper.make_graph(self.nodes, name, inputs, outputs, arrays)

    def array(self, name: str, value: Any) -> str:
        """Add an initializer: int64 if it holds integers, else float32."""
        name, value = self.name(name), np.asarray(value)
        integral = np.issubdtype(value.dtype, np.integer)
        self.root.arrays[name] = np.ascontiguousarray(value, np.int64 if integral else np.float32)
        return name

    def constant(self, value: float) -> str:
        """A number [1]."""
        return self._constant("number", np.array([value], np.float32))

    def integers(self, *values: int) -> str:
        """Indices [n]."""
        return self._constant("indices", np.array(values, np.int64))

    def integer(self, value: int) -> str:
        """An index [], without an axis."""
        return self._constant("index", np.array(value, np.int64))

    def _constant(self, name: str, value: np.ndarray[Any, Any]) -> str:
        key, constants = (name, value.tobytes()), self.root._constants
        if key not in constants:
            constants[key] = self.array(name, value)
        return constants[key]


def write_model(writer: Writer, path: str | Path, title: str) -> None:
    """Write the graph, checked, to a file."""
    onnx = writer.onnx
    model = onnx.helper.make_model(
        writer.graph(printable(title, "")),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="elman",
    )
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
