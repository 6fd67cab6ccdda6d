"""Names that a cell's dims, options and constants cannot have, as ``Recurrent`` takes them itself.

``Recurrent(cell, …, P=16)`` takes sizes, options and constants of its cell by name, next to
arguments of its own; a call ``net(x, mask=…)`` has further ones. The packages of both are above
this one, so ``tests/frontend/test_signature.py`` compares the names with theirs.
"""

from __future__ import annotations

from collections.abc import Collection

from elman.errors import TraceError

OF_MODULES = (
    "cell", "input_size", "hidden_size", "num_layers", "bidirectional", "batch_first", "dropout",
    "device", "dtype", "engine", "heads", "plan", "precision", "residual", "clip_gradient",
    "learn_initial", "zoneout", "recurrent_dropout", "recurrent_dropout_per", "weight_dropout",
    "quantize",
)  # fmt: skip
_SELF = "self"  # of Python's: the module
OF_CALLS = (
    "state", "lengths", "reset", "reset_to", "mask", "masked_output", "draws", "static", "outputs",
)  # fmt: skip


def check_names(
    options: Collection[str], dims: Collection[str], constants: Collection[str], where: str
) -> None:
    """Check the names that a module takes for its cell. A constant may have the name of an argument
    of calls, as ``mask``: no call takes constants.

    Args:
        options, dims, constants: of the cell.
        where: its line.

    Raises:
        TraceError: one is an argument of ``Recurrent`` or of a call.
    """
    for kind, names in (("option", options), ("dim", dims), ("constant", constants)):
        for name in sorted(names):
            of_module = name in (*OF_MODULES, _SELF)
            if of_module or (name in OF_CALLS and kind != "constant"):
                owner = "Recurrent" if of_module else "each call of a module"
                raise TraceError(
                    f"{kind} {name!r} has the name of an argument of {owner}",
                    f"another name: cell_{name}",
                    at=where,
                )
