"""Lists of torch's operations on tensors at fixed addresses, run by one call: the caller of
``op_lists.h``. A new operation is a row of ``_POINTWISE``."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.calls.noted import Launch
from elman.engines.c.compilation.build import built
from elman.engines.c.compilation.isa import Isa, detect
from elman.engines.c.process.threads import on_pool, oversubscription
from elman.engines.c.text.units import file, head, runtime

_DIMS, _OPERANDS = 4, 3  # most loops and operands of an operation
_LAUNCH, _SUM, _MEAN, _LARGEST, _NORM = range(-1, -6, -1)  # kinds below 0; from 0 on: _POINTWISE
_REDUCTIONS = {"sum": _SUM, "mean": _MEAN, "amax": _LARGEST, "linalg_vector_norm": _NORM}
_SHORT = 16  # numbers; a shorter innermost loop is exchanged for the longest, to fill vectors
_POINTWISE = {  # by name and overload; vectors a, b, c are the arguments, in their order
    "clone.default": "a",
    "_to_copy.default": "a",
    "neg.default": "-a",
    "exp.default": "v_exp(a)",
    "log.default": "v_log(a)",
    "tanh.default": "v_tanh(a)",
    "sigmoid.default": "v_sigmoid(a)",
    "silu.default": "a / ((T)1 + v_exp(-a))",
    "relu.default": "v_relu(a)",
    "softplus.default": "v_softplus(a)",
    "sqrt.default": "v_sqrt(a)",
    "rsqrt.default": "(T)1 / v_sqrt(a)",
    "reciprocal.default": "(T)1 / a",
    "abs.default": "v_abs(a)",
    "square.default": "a * a",
    "sin.default": "v_sin(a)",
    "cos.default": "v_cos(a)",
    "add.Tensor": "a + b",
    "sub.Tensor": "a - b",
    "rsub.Scalar": "b - a",
    "mul.Tensor": "a * b",
    "div.Tensor": "a / b",
    "maximum.default": "v_max(a, b)",
    "minimum.default": "v_min(a, b)",
    "clamp_min.default": "v_max(a, b)",
    "addcmul.default": "a + b * c",
    "lerp.Tensor": "a + c * (b - a)",
    "pow.Tensor_Scalar": "v_pow(a, b)",
}
# the only values of these options with which an operation has a row
_DEFAULTS = {"alpha": (1,), "beta": (1,), "threshold": (20,), "value": (1,)}
_WITHOUT_MEANING = ("memory_format", "layout", "pin_memory", "non_blocking", "device", "dtype")
_ROOTS = {  # exponents for which torch, too, computes another function than pow
    2: "square.default",
    0.5: "sqrt.default",
    -0.5: "rsqrt.default",
}
_KINDS = {name: at for at, name in enumerate(_POINTWISE)}


class _Operation(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_long),
        ("operands", ctypes.c_long),
        ("sizes", ctypes.c_long * _DIMS),
        ("strides", ctypes.c_long * _DIMS * (_OPERANDS + 1)),
        ("out", ctypes.c_void_p),
        ("operand", ctypes.c_void_p * _OPERANDS),
        ("launch", ctypes.c_void_p),
        ("argument", ctypes.c_void_p),
    ]


@lru_cache(maxsize=2)
def _library(isa: Isa) -> Any:
    lines = [
        f"static void kind{at}(T *r, const T *p, const T *q, const T *s, long n) {{\n"
        "    for (long i = 0; i < n; i += VL) {\n"
        "        UNUSED V a = ldn(p, i, n), b = ldn(q, i, n), c = ldn(s, i, n);\n"
        f"        stn(r, i, n, {expression});\n"
        "    }\n}"
        for at, expression in enumerate(_POINTWISE.values())
    ]
    constants = {"DIMS": _DIMS, "OPERANDS": _OPERANDS, "LAUNCH": _LAUNCH, "SUM": _SUM}
    constants |= {"MEAN": _MEAN, "LARGEST": _LARGEST, "NORM": _NORM}
    lines += [f"#define {name} ({value})" for name, value in constants.items()]
    names = ", ".join(f"kind{at}" for at in _KINDS.values())
    lines.append("typedef void Pointwise(T *, const T *, const T *, const T *, long);")
    lines.append(f"static Pointwise *const POINTWISE[] = {{{names}}};")
    text = "\n".join([head(isa, "float32"), *lines, file("op_lists.h")])
    library = built(text, isa, (runtime(isa, "float32"),))[0]
    on_pool(library)
    run = library.elman_run_list
    run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_long
    return library


class OpList:
    """Operations and launches of kernels in order.

    Args:
        parts: results of :func:`operation`, and launches.
    """

    def __init__(self, parts: Sequence[list[_Operation] | Launch]) -> None:
        operations = list[_Operation]()
        for part in parts:
            if isinstance(part, Launch):
                operations.append(_Operation(_LAUNCH, launch=part.function, argument=part.argument))
            else:
                operations += part
        self._parts = parts  # whose memory the addresses belong to
        self._team = any(isinstance(part, Launch) and part.team for part in parts)
        self._count, self._array = len(operations), (_Operation * len(operations))(*operations)
        self._address, self._run = ctypes.addressof(self._array), _library(detect()).elman_run_list

    def __call__(self) -> None:
        """Run them."""
        stolen = self._run(self._address, self._count)
        if self._team:
            oversubscription.tell(stolen)


def operation(
    name: str, given: Sequence[Any], options: dict[str, Any], result: Tensor
) -> list[_Operation] | None:
    """An operation of torch's that writes into ``result``; None if it has no row.

    Args:
        name: with its overload, as ``add.Tensor``; of an in-place operation the name of its
            out-of-place counterpart.
        given, options: its arguments.
        result: float32, as all tensors.
    """
    for key, value in options.items():
        if key not in _WITHOUT_MEANING and value not in _DEFAULTS.get(key, ()):
            return None
    packet, _, _ = name.partition(".")
    if packet == "cat":
        return _cat(given[0], given[1] if len(given) > 1 else 0, result)
    if packet == "copy":
        name, given = "clone.default", given[1:2]
    if packet in _REDUCTIONS:
        return _reduction(packet, given, result)
    if name not in _POINTWISE:
        return None
    name, given = _usual(name, given)
    operands = [_operand(each) for each in given]
    if len(operands) != _arity(name) or not all(map(_is_plain, (*operands, result))):
        return None
    shown = [each.expand(result.shape) for each in operands]
    loops = [*zip(result.shape, *(each.stride() for each in (result, *shown)), strict=True)]
    return _noted(_KINDS[name], loops, result, operands)


def _usual(name: str, given: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """The operation without arguments that have their default values."""
    if name == "softplus.default" and tuple(given[1:]) in ((1,), (1, 20)):
        return name, given[:1]
    if name == "pow.Tensor_Scalar" and given[1] in _ROOTS:
        return _ROOTS[given[1]], given[:1]
    return name, given


@cache
def _arity(name: str) -> int:
    return len({*re.findall(r"\b[abc]\b", _POINTWISE[name])})


def _operand(value: Any) -> Any:
    return torch.tensor(float(value)) if isinstance(value, int | float) else value


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype is torch.float32
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_neg()
    )


def _cat(values: Sequence[Tensor], dim: int, result: Tensor) -> list[_Operation] | None:
    whole, at = list[_Operation](), 0
    for value in values:
        if value.dim() != result.dim():  # torch's cat skips empty tensors of one dimension
            return None
        size = value.shape[dim]
        part = operation("clone.default", (value,), {}, result.narrow(dim, at, size))
        if part is None:
            return None
        whole, at = whole + part, at + size
    return whole


def _reduction(name: str, given: Sequence[Any], result: Tensor) -> list[_Operation] | None:
    value, *rest = given
    if name == "linalg_vector_norm":
        order, *rest = rest or [2]
        if order != 2:
            return None
    dims, keeps, *_ = *rest, None, None
    if not (_is_plain(value) and _is_plain(result)) or value.numel() == 0:
        return None
    dims = range(value.dim()) if not dims else [dim % value.dim() for dim in dims]
    kept = iter(
        result.stride()
        if not keeps
        else [stride for dim, stride in enumerate(result.stride()) if dim not in dims]
    )
    strides = [0 if dim in dims else next(kept) for dim in range(value.dim())]
    loops = [*zip(value.shape, strides, value.stride(), strict=True)]
    reduced = [loop for dim, loop in enumerate(loops) if dim in dims]
    others = [loop for dim, loop in enumerate(loops) if dim not in dims]
    inner = _merged(reduced)
    if len(inner) > 1:
        return None
    return _noted(
        _REDUCTIONS[name], _merged(others) + (inner or [(1, 0, 0)]), result, [value], True
    )


def _merged(loops: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """As few loops as possible, outermost first, in the order of the result's strides."""
    merged = list[tuple[int, ...]]()
    for size, *strides in sorted(loops, key=lambda loop: loop[1:], reverse=True):
        if size == 1:
            continue
        if merged and all(s == t * size for s, t in zip(merged[-1][1:], strides, strict=True)):
            merged[-1] = (merged[-1][0] * size, *strides)
        else:
            merged.append((size, *strides))
    return merged


def _noted(
    kind: int,
    loops: list[tuple[int, ...]],
    result: Tensor,
    operands: list[Tensor],
    fixed: bool = False,
) -> list[_Operation] | None:
    """One operation, or None if it has too many loops.

    Args:
        loops: (size, strides of the result and of each operand), outermost first.
        fixed: whether the loops are merged already and their order must stay.
    """
    if result.numel() == 0:
        return []
    if not fixed:
        loops = _merged(loops)
        if loops and loops[-1][0] < _SHORT:
            longest = max(range(len(loops)), key=lambda at: loops[at][0])
            loops.append(loops.pop(longest))
    if len(loops) > _DIMS:
        return None
    empty = (1, *[0] * (1 + len(operands)))
    loops = [*[empty] * (_DIMS - len(loops)), *loops]
    sizes, *strides = zip(*loops, strict=True)
    noted = _Operation(kind, len(operands), sizes, out=result.data_ptr())
    for row, values in enumerate(strides):
        noted.strides[row][:] = values
    for at, operand in enumerate(operands):
        noted.operand[at] = operand.data_ptr()
    noted.owners = result, operands
    return [noted]
