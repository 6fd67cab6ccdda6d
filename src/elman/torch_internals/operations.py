"""Operations of torch, what they are called with and made of; trees; processes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from elman.torch_internals.lookup import unavailable

__all__ = [
    "decomposition",
    "default_store",
    "name_of",
    "pytree",
    "schema_of",
    "symbols_of",
    "writing_variant",
]


def default_store() -> Any:
    """The store of the default process group, which processes pass texts through. Raises
    EngineError: this torch does not hand it out."""
    groups: Any = getattr(torch.distributed, "distributed_c10d", None)
    store = getattr(groups, "_get_default_store", None)
    if store is None:
        raise unavailable("one choice of engines for all processes", "_get_default_store")
    return store()


pytree: Any = torch.utils._pytree


def schema_of(operation: Any) -> Any:
    """Names of an operation's arguments, and which of them it writes to."""
    return operation._schema


def name_of(op: Any) -> str:
    """``add.Tensor`` of torch.ops.aten; without the mark of forms that write in place."""
    packet, dot, overload = str(op).removeprefix("aten.").partition(".")
    in_place = packet.endswith("_") and not packet.endswith("__")
    return (packet[:-1] if in_place else packet) + dot + overload


def writing_variant(operation: Any) -> tuple[Any, str] | None:
    """The variant of an operation that writes its one result into a given tensor, and the name of
    that argument; None if there is none."""

    def others(schema: Any) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]

    wanted, packet = others(operation._schema), operation.overloadpacket
    for name in packet.overloads():
        variant = getattr(packet, name)
        written = [a.name for a in variant._schema.arguments if a.is_out]
        if len(written) == 1 and others(variant._schema) == wanted:
            return variant, written[0]
    return None


@cache
def _decompositions() -> Mapping[Any, Any]:
    return torch._decomp.core_aten_decompositions()


def decomposition(operation: Any) -> Callable[..., Any] | None:
    """An operation in terms of others, if torch has such a rule."""
    table = _decompositions()
    # its get() finds none that was not asked for by [] before
    found = table[operation] if operation in table else None  # noqa: SIM401
    if found is None and operation.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    ):
        return operation.decompose
    return found


def symbols_of(size: Any) -> frozenset[str]:
    """Names of the symbols that a size of a traced tensor depends on; none of a number."""
    if not isinstance(size, torch.SymInt):
        return frozenset()
    return frozenset(map(str, size.node.expr.free_symbols))
