"""Triton's interpreter, as exact as a GPU and fast enough for tests: importing this mends it.

What is computed and what is checked stays. What it does anew for every operation is done once
(types, what functions see), or on whole arrays instead of element by element (reductions, scans).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

builder: Any = interpreter.interpreter_builder

# --- rounding ---------------------------------------------------------------------------------

_convert: Any = interpreter._convert_float


def _rounded(values: Any, source: Any, target: Any, mode: Any) -> Any:
    """The interpreter cuts float32 off to bfloat16; a GPU rounds it to the nearest."""
    if (str(source), str(target)) != ("fp32", "bf16"):
        return _convert(values, source, target, mode)
    bits = np.ascontiguousarray(values).view(np.uint32)
    up = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
    return (np.where(np.isnan(values), bits, up) >> 16).astype(np.uint16).reshape(values.shape)


# --- device functions -------------------------------------------------------------------------

_patching: Any = interpreter.InterpretedFunction.__call__
_known: set[Any] = set()  # device functions that have been called before


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A device function. Around it the kernel has patched triton.language already; Triton looks
    through all of it at every call again, which takes a third of the time. What functions of
    Triton's own library see beside it is patched at their first call, for good."""
    if self.fn not in _known:
        _known.add(self.fn)
        return _patching(self, *args, **kwargs)
    try:
        return self.rewrite()(*args, **kwargs)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


# --- types ------------------------------------------------------------------------------------

_block: Any = tl.block_type.__init__
_np_dtype: Any = interpreter._get_np_dtype
_blocks: dict[Any, dict[str, Any]] = {}  # element type, shape -> what a block type has
_np_dtypes: dict[str, Any] = {}
_SCALAR: dict[str, Any] = {"numel": tl.constexpr(1), "shape": tl.tuple([])}


def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """A type of a block; its tensors' shape and size with it."""
    sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    key = element_ty.name, sizes
    if key not in _blocks:
        _block(self, element_ty, shape)
        numel = tl.constexpr(self.numel)
        found = {"numel": numel, "shape": tl.tuple([tl.constexpr(size) for size in sizes])}
        _blocks[key] = {**self.__dict__, "of_tensor": found}
    self.__dict__.update(_blocks[key])
    self.element_ty = element_ty


def _tensor(self: Any, handle: Any, type: Any) -> None:
    """A value of a type."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.__dict__.update(type.of_tensor if type.is_block() else _SCALAR)


def _number_type(kind: Any) -> Any:
    """What numpy calls a type."""
    if kind.name not in _np_dtypes:
        _np_dtypes[kind.name] = _np_dtype(kind)
    return _np_dtypes[kind.name]


# --- operations -------------------------------------------------------------------------------

_broadcast: Any = TritonSemantic.broadcast_impl_value


def _broadcasted(self: Any, lhs: Any, rhs: Any) -> Any:
    """Both operands in their common shape."""
    a, b = lhs.type, rhs.type
    if not a.is_block() or not b.is_block() or len(a.shape) != len(b.shape):
        return _broadcast(self, lhs, rhs)
    sizes = [max(pair) for pair in zip(a.shape.values, b.shape.values, strict=True)]
    return _in_shape(lhs, sizes), _in_shape(rhs, sizes)


def _in_shape(value: Any, sizes: list[int]) -> Any:
    """A block repeated along axes where it has one place."""
    if value.type.shape.values == sizes:
        return value
    handle = builder.create_broadcast(value.handle, sizes)  # refuses what does not fit
    return tl.tensor(handle, tl.block_type(value.dtype, sizes))


def _joined(self: Any, values: Any, others: Any) -> tuple[Any, ...]:
    """What the function of a reduction or a scan makes of two values, each a tuple of arrays."""
    given = [
        self.to_tensor(data, like.dtype)
        for parts in (values, others)
        for data, like in zip(parts, self.likes, strict=True)
    ]
    found = self.combine_fn.fn(*given)
    made = found if isinstance(found, tuple) else (found,)
    return tuple(
        np.asarray(one.handle.data).astype(data.dtype).reshape(data.shape)
        for one, data in zip(made, values, strict=True)
    )


def _in_order(self: Any, given: Any, axis: int) -> list[tuple[Any, ...]]:
    """What comes of a scan at each place of an axis, from the first, all others at once."""
    self.likes = given
    parts = [np.moveaxis(one.handle.data, axis, 0) for one in given]
    found = [tuple(part[0] for part in parts)]
    for place in range(1, len(parts[0])):
        found.append(_joined(self, found[-1], tuple(part[place] for part in parts)))
    return found


def _scanned(self: Any, given: Any) -> list[Any]:
    """The interpreter's scan by a function."""
    columns = zip(*_in_order(self, given, self.axis), strict=True)
    return [
        self.to_tensor(np.stack(parts, self.axis), like.dtype)
        for parts, like in zip(columns, given, strict=True)
    ]


def _reduced(self: Any, given: Any) -> list[Any]:
    """The interpreter's reduction by a function."""
    whole = self.axis is None
    dims = given[0].handle.data.ndim
    given, axis = self.unravel(given, self.axis)
    found = []
    for data, like in zip(_in_order(self, given, axis)[-1], given, strict=True):
        if self.keep_dims:
            data = data.reshape((1,) * dims) if whole else np.expand_dims(data, axis)
        found.append(
            self.to_tensor(data.item() if whole and not self.keep_dims else data, like.dtype)
        )
    return found


interpreter._convert_float = _rounded
interpreter.InterpretedFunction.__call__ = _called
interpreter._get_np_dtype = _number_type
interpreter.ScanOps.generic_scan = _scanned
interpreter.ReduceOps.generic_reduce = _reduced
tl.block_type.__init__ = _block_type
tl.tensor.__init__ = _tensor
TritonSemantic.broadcast_impl_value = _broadcasted
# Overflow is computed and, as `debug` is off, not looked at.
builder.options = replace(builder.options, sanitize_overflow=False)
