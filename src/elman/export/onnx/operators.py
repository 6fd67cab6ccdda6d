"""Layers that are a standard operator: RNN, GRU and LSTM, whose weights are the layout ``onnx``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from elman.export.onnx.writer import INT32, Writer
from elman.weights.gates import Kind

KINDS = {
    "rnn": "RNN",
    "gru": "GRU",
    "gru_before": "GRU",
    "lstm": "LSTM",
    "lstm_peephole": "LSTM",
}
_MISSING = ""  # an input that is left out


class Layer(NamedTuple):
    """What a layer gives.

    Attributes:
        out: [T, B, H · directions].
        last: states [directions, B, H] after the last step.
    """

    out: str
    last: tuple[str, ...]


def operated(
    w: Writer,
    kind: Kind,
    x: str,
    states: Sequence[str],
    arrays: Mapping[str, Any],
    suffix: str,
    lengths: str | None = None,
) -> Layer:
    """A layer, all its directions, by its operator.

    Args:
        w: of the graph.
        kind: of the recurrence.
        x: [T, B, I].
        states: initial ones [directions, B, H].
        arrays: W, R and maybe B, P, by :func:`elman.weights.to_arrays`.
        suffix: of the arrays' names.
        lengths [B]: steps of each sequence; None: all of them.
    """
    directions, _, units = arrays["R"].shape
    names = {name: w.array(f"{name}_{suffix}", value) for name, value in arrays.items()}
    inputs = [x, names["W"], names["R"], names.get("B", _MISSING)]
    inputs.append(_MISSING if lengths is None else w.emit("Cast", lengths, to=INT32))
    inputs += states
    attributes: dict[str, Any] = {"hidden_size": units}
    if directions == 2:
        attributes["direction"] = "bidirectional"
    if kind.name in ("gru", "gru_before"):
        attributes["linear_before_reset"] = int(kind.name == "gru")
    if kind.relu:
        attributes["activations"] = ["Relu"] * directions
    if "P" in names:
        inputs.append(names["P"])
    made = [*(w.name(KINDS[kind.name]) for _ in (x, *states))]
    w.several(KINDS[kind.name], inputs, made, **attributes)
    if directions == 1:
        return Layer(w.emit("Squeeze", made[0], w.integers(1)), tuple(made[1:]))
    both = w.emit("Transpose", made[0], perm=[0, 2, 1, 3])  # [T, B, directions, H]
    return Layer(w.emit("Reshape", both, w.integers(0, 0, -1)), tuple(made[1:]))
