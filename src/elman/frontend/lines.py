"""Source lines of formulas, and errors reported at the user's line."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import NoReturn

from elman.errors import ShapeError, TraceError, diagnostic
from elman.ir.graph import Node, Rate
from elman.ir.types import is_matrix, show_shape

_HERE = __name__.rpartition(".")[0]
_FOREIGN = ("torch", "numpy", "concurrent", "threading")  # the latter two around recordings
_BETWEEN = ("elman", "functools", "contextlib")


_at: ContextVar[str] = ContextVar("elman_at", default="")


@contextmanager
def written_at(where: str) -> Generator[None]:
    """Context that attributes traced values to a given line."""
    token = _at.set(where)
    try:
        yield
    finally:
        _at.reset(token)


def _is_inside(frame: FrameType) -> bool:
    """Whether a frame belongs to the tracer, torch, numpy, or the start of a thread."""
    file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    is_frontend = module.startswith(_HERE) or module.partition(".")[0] in _FOREIGN
    return is_frontend or file.startswith("<frozen")


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame belongs to elman, torch, numpy, or helpers between them."""
    module = str(frame.f_globals.get("__name__", ""))
    return _is_inside(frame) or module.partition(".")[0] in _BETWEEN


def where_called() -> str:
    """The innermost line outside the tracer (and outside torch and numpy): ``file:line: text``."""
    return _at.get() or _innermost(_is_inside)


def where_asked() -> str:
    """The innermost line outside elman: a call of a library cell, or the making of a module."""
    return _at.get() or _innermost(_is_ours) or where_called()


def line_of(file: str, line: int) -> str:
    """``file:line: text``."""
    return f"{Path(file).name}:{line}: {linecache.getline(file, line).strip()}"


def _innermost(skipped: Callable[[FrameType], bool]) -> str:
    """The innermost line of a frame that is not skipped."""
    frame = inspect.currentframe()
    while frame is not None and skipped(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    return line_of(frame.f_code.co_filename, frame.f_lineno)


def refuse(message: str, hint: str) -> NoReturn:
    """Raise TraceError at the user's line."""
    raise TraceError(message, hint, at=where_asked())


def describe(value: Node, written: str = "") -> str:
    """A value as it is written here, or as its source line shows it, with its shape, for
    messages."""
    line = value.name if not value.args else (value.where.partition(": ")[2] or value.name)
    return f"{written or line}: {show_shape(value.shape)}"


def _evaluated() -> tuple[str, ast.expr | None]:
    """The expression under evaluation in the innermost frame outside the tracer: its text, and
    parsed; None without source."""
    frame = inspect.currentframe()
    while frame is not None and _is_inside(frame):
        frame = frame.f_back
    at = frame and inspect.getframeinfo(frame).positions
    if frame is None or not at or at.lineno is None or at.lineno != at.end_lineno:
        return "", None
    line = linecache.getline(frame.f_code.co_filename, at.lineno).encode()
    text = line[at.col_offset : at.end_col_offset].decode()
    try:
        return text, ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return "", None


def called() -> str:
    """Name of the builtin being called, which has no frame: ``sum`` in ``sum(v)``; empty if
    none."""
    _, node = _evaluated()
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _operands() -> tuple[str, str]:
    """Source of both operands of the current binary operation; empty for plain names."""
    text, node = _evaluated()
    if not isinstance(node, ast.BinOp):
        return "", ""
    left, right = (
        "" if isinstance(side, ast.Name) else ast.get_source_segment(text, side) or ""
        for side in (node.left, node.right)
    )
    return left, right


def mismatch(verb: str, left: Node, right: Node, hint: str = "") -> ShapeError:
    """The error for two operands whose shapes do not match."""
    sides = zip(("left", "right"), (left, right), _operands(), strict=True)
    at, inside = where_asked(), where_called()
    return ShapeError(
        diagnostic(
            f"cannot {verb} {show_shape(left.shape)} and {show_shape(right.shape)}",
            [
                ("at", at),
                ("in", inside * (inside != at)),
                *((side, describe(v, text)) for side, v, text in sides),
            ],
            hint,
        )
    )


def elementwise_hint(left: Node, right: Node) -> str:
    """For operands of an elementwise op that do not broadcast."""
    if is_matrix(left) != is_matrix(right):
        return "a vector meets a matrix of each sample as rows(a) * S or columns(b) * S"
    if is_matrix(left):
        return "the axes of S.T are in the other order; outer(k, v) is [K, V]"
    if 2 in (len(left.shape), len(right.shape)) and left.rate == right.rate == Rate.WEIGHT:
        return "W @ (s * v) scales the columns of W, s * (W @ v) its rows"
    if len(left.shape) != len(right.shape):
        return (
            "what follows inputs or states is a vector, never a matrix: W @ v, or, of all pairs of "
            'units, weights="w[N]" with N = H * H and spread(v, w)'
        )
    if (1,) in (left.shape[0], right.shape[0]):
        return "sum(v) of one unit [1] is that unit as a scalar, which meets every vector"
    if len(left.shape) == len(right.shape) == 1:
        for wide, narrow in ((left.shape[0], right.shape[0]), (right.shape[0], left.shape[0])):
            count = len(wide) // len(narrow)
            if count > 1 and narrow * count == wide:
                return f"split the wide operand first: split(v, {count})"
    return "values of one elementwise op have the same dims, or one is a scalar"


def product_hint(left: Node, right: Node) -> str:
    """For an ``@`` that is not a matrix times a vector."""
    ranks = len(left.shape), len(right.shape)
    if ranks == (1, 1):
        v, h = (
            (value.name, placeholder)[bool(value.args)]
            for value, placeholder in ((left, "v"), (right, "h"))
        )
        return f"the dot product of two vectors is sum({v} * {h})"
    if ranks == (1, 2):
        return "the left side of @ is a weight matrix: W @ v, or W.T @ v"
    if ranks == (2, 2):
        return "the right side of @ is a vector: write U @ (V @ h) for a product"
    return "a scalar is multiplied by *: m * v"
