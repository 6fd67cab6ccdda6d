"""The spellings of ops in C, over vectors of type V."""

from __future__ import annotations

from elman.ir.ops import OF_PARTS, REDUCTIONS, spell_calls
from elman.lowered.types import Across

SPELL: dict[str, str] = {
    **spell_calls("v_{name}({args})"),
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "minimum": "v_min({0}, {1})",
    "maximum": "v_max({0}, {1})",
    "lt": "truth({0} < {1})",
    "le": "truth({0} <= {1})",
    "gt": "truth({0} > {1})",
    "ge": "truth({0} >= {1})",
    "eq": "truth({0} == {1})",
    "ne": "truth({0} != {1})",
    "stop": "{0}",
    "surrogate": "{0}",
    "clip_gradient": "{0}",
    "uniform": "v_uniform({0}, {1}, {unit}, {stream}u)",
}

# over all units of some arrays, by functions of reductions.h; {of}: arrays and their number,
# {n}: number of their units, {mean}: their mean
REDUCE: dict[str, str] = {
    **{name: f"{name}_of({{of}})" for name in REDUCTIONS},
    "mean": "sum_of({of}) / {n}",
    "var": "square_of({of}, {mean}) / {n}",
}


def spell(op: str, args: list[str], unit: str, stream: int = 0) -> str:
    """An elementwise op of a vector, whose first unit is C text."""
    return SPELL[op].format(*args, unit=unit, stream=stream)


def number(value: float) -> str:
    """A constant as C text, exact, of the kernel's type."""
    if value != value:
        return "(T)NAN"
    if value in (float("inf"), float("-inf")):
        return "(T)INFINITY" if value > 0 else "-(T)INFINITY"
    return f"(T){value!r}"


def spell_sum(coefs: tuple[float, ...], bias: float, terms: list[str]) -> str:
    """``bias + Σ coef · term`` with as few operations as the coefficients allow."""
    text = ""
    for coef, term in zip(coefs, terms, strict=True):
        sign = "-" if coef < 0 or (coef == 0 and str(coef)[0] == "-") else "+"
        size = abs(coef)
        part = term if size == 1.0 else f"{number(size)} * {term}"
        text = f"{text} {sign} {part}" if text else (part if sign == "+" else f"-{part}")
    if bias:
        text = f"{text} + bc({number(bias)})" if text else f"bc({number(bias)})"
    return text or f"bc({number(0.0)})"


def spell_reduce(op: str, arrays: list[tuple[str, int]], mean: str = "") -> str:
    """A reduction over all units of some arrays: a scalar.

    Args:
        op: one of ``REDUCTIONS``.
        arrays: C text of an address, and units.
        mean: C text of the arrays' mean for ``var``, if the segment has computed it.
    """
    units = ", ".join(f"{{{address}, {count}}}" for address, count in arrays)
    of = f"(Units[]){{{units}}}, {len(arrays)}"
    return _reduction(op, of, number(float(sum(count for _, count in arrays))), mean)


def _reduction(op: str, of: str, n: str, mean: str = "") -> str:
    return REDUCE[op].format(of=of, n=n, mean=mean or REDUCE["mean"].format(of=of, n=n))


def grouped_reductions() -> str:
    """A function for each reduction of groups of units, by a macro of groups.h."""
    texts = {op: _reduction(op, "&own, 1", "(T)width") for op in REDUCTIONS}
    return "".join(f"GROUPED({op}_of_groups, {text})\n" for op, text in texts.items())


def spell_across(value: Across, address: str) -> str:
    """Units u, u + 1 … of a value that reads further units of the column at an address."""
    if value.name == "cumsum":
        return f"sums_{'from' if value.reverse else 'to'}({address}, u, {value.width})"
    if value.name in OF_PARTS:
        return f"{value.name}_of({address}, u, {value.width}, {value.shift})"
    arguments = f"{address}, u, {value.groups}, {value.width}"
    if value.name in REDUCE:
        return f"{value.name}_of_groups({arguments})"
    shift = f", {value.shift}" if value.name == "one_hot" else ""
    return f"{value.name}_of({arguments}{shift})"
