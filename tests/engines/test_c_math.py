"""The elementary functions of generated C: accuracy, NaN and infinities, on every ISA there is."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from elman.engines.c.build import build, find_compiler, load
from elman.engines.c.isa import ISAS, Isa, detect
from elman.engines.c.ops import SPELL, number, spell_sum
from elman.engines.c.shared import head, runtime
from elman.errors import EngineError

ULP = 4  # DESIGN: own vector functions within 4 units in the last place
NAMES = {"float32": np.float32, "float64": np.float64}
SINGLE = [name for name, text in SPELL.items() if "{1}" not in text]
DOUBLE = [name for name, text in SPELL.items() if "{1}" in text and "{2}" not in text]

_libraries: dict[tuple[str, str], Any] = {}


def usable() -> list[str]:
    """Names of the instruction sets that this machine can run."""
    able: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ISAS:
            patch.setenv("ELMAN_ISA", name)
            with contextlib.suppress(EngineError):
                able.append(detect().name)
    return able


def text_of(isa: Isa, dtype: str) -> str:
    """The head of every kernel and, per op, a loop over arrays."""
    lines = [head(isa, dtype)]
    for name, spelling in SPELL.items():
        body = spelling.format("a", "b", "c")
        lines.append(
            '__attribute__((visibility("default")))'
            f" void apply_{name}(long n, const T *x, const T *y, const T *z, T *out) {{\n"
            "    for (long i = 0; i < n; i += VL) {\n"
            "        const V a = ldn(x, i, n), b = ldn(y, i, n), c = ldn(z, i, n);\n"
            "        (void)a; (void)b; (void)c;\n"
            f"        stn(out, i, n, {body});\n"
            "    }\n}"
        )
    return "\n".join(lines) + "\n"


def _library(isa: Isa, dtype: str) -> ctypes.CDLL:
    return load(build(text_of(isa, dtype), isa, (runtime(isa, dtype),)))


def apply(name: str, isa: str, *args: np.ndarray) -> np.ndarray:
    """One op on arrays of one dtype."""
    dtype = args[0].dtype.name
    key = (isa, dtype)
    if key not in _libraries:
        reason = find_compiler()
        if isinstance(reason, str):
            pytest.skip(reason)
        _libraries[key] = _library(ISAS[isa], dtype)
    function = getattr(_libraries[key], f"apply_{name}")
    function.argtypes, function.restype = [ctypes.c_long] + [ctypes.c_void_p] * 4, None
    given = [np.ascontiguousarray(arg) for arg in (*args, *args, *args)[:3]]
    out = np.full_like(given[0], 77)
    function(len(out), *(array.ctypes.data for array in given), out.ctypes.data)
    return out


def samples(dtype: str, seed: int = 0) -> np.ndarray:
    """Every exponent with random mantissas, both signs, and densely where functions bend."""
    source = np.random.default_rng(seed)
    kind, bits, top = (np.uint32, 23, 0xFF) if dtype == "float32" else (np.uint64, 52, 0x7FF)
    exponents = np.repeat(np.arange(top, dtype=kind), 40)
    mantissas = source.integers(0, 1 << bits, len(exponents), dtype=kind)
    wild = ((exponents << kind(bits)) | mantissas).view(NAMES[dtype])
    near = source.uniform(-1.5, 1.5, 20_000)
    far = source.uniform(
        -110 if dtype == "float32" else -750, 90 if dtype == "float32" else 712, 20_000
    )
    return np.concatenate([wild, -wild, near.astype(wild.dtype), far.astype(wild.dtype)])


def in_ulp(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units of the last place; below the normal numbers, of the least one."""
    info = np.finfo(got.dtype)
    finite = np.isfinite(want.astype(got.dtype))
    np.testing.assert_array_equal(got[~finite], want[~finite].astype(got.dtype))
    unit = np.spacing(np.abs(want[finite]).astype(got.dtype)).astype(want.dtype)
    small = np.abs(want[finite]) < info.smallest_normal
    unit = np.where(small, np.asarray(info.smallest_normal, want.dtype), unit)
    return float((np.abs(got[finite].astype(want.dtype) - want[finite]) / unit).max())


EXACT = {  # in a wider type
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
}


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", EXACT)
def test_own_functions_are_accurate(name, dtype, isa):
    """exp, tanh, sigmoid over the whole range, subnormals and overflow included."""
    wide = np.float64 if dtype == "float32" else np.longdouble
    if np.finfo(wide).eps > np.finfo(dtype).eps / 100:
        pytest.skip("numpy has no type wider than float64 here to compare with")
    x = samples(dtype)
    with np.errstate(over="ignore", under="ignore"):
        want = EXACT[name](x.astype(wide))
        assert in_ulp(apply(name, isa, x), want) <= ULP


ODD = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 0.5, -2.5, 20.0, 21.0]
ODD += [1e-45, -1e-45, 1e-40, 3e38, -3e38, 87.0, 89.0, -87.0, -104.0, 700.0, 709.9, -745.2, 1e-320]

TORCH = {  # op -> torch's own
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "sign": torch.sign,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "softplus": torch.nn.functional.softplus,
    "stop": torch.clone,
    "mul": torch.mul,
    "div": torch.div,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    **{name: getattr(torch, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}
ROUNDED = ("tanh", "sigmoid", "exp", "log", "sqrt", "sin", "cos", "erf", "softplus")
ZEROS = ("tanh", "sqrt", "abs", "sin", "erf", "stop", "mul", "div")  # the sign of 0 is torch's too


def agree(name: str, got: np.ndarray, want: torch.Tensor) -> None:
    """The same numbers, NaN and infinities; rounding is allowed where there is some."""
    expected = want.to(torch.from_numpy(got).dtype).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), name)
    there = ~np.isnan(expected)
    if name in ROUNDED:
        assert in_ulp(got[there], expected[there].astype(np.longdouble)) <= ULP + 2
    else:
        np.testing.assert_array_equal(got[there], expected[there], name)
    if name in ZEROS:
        zero = there & (expected == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]), name)


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", SINGLE)
def test_ops_of_one_value_are_torchs(name, dtype, isa):
    """On zeros of both signs, NaN, infinities, subnormals, and where exp runs over."""
    x = np.array(ODD, NAMES[dtype])
    agree(name, apply(name, isa, x), TORCH[name](torch.from_numpy(x)))


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", DOUBLE)
def test_ops_of_two_values_are_torchs(name, dtype, isa):
    """Every pair of odd values: NaN wins in minimum and maximum, comparisons with it are false."""
    odd = np.array(ODD, NAMES[dtype])
    a, b = (grid.ravel() for grid in np.meshgrid(odd, odd))
    want = TORCH[name](torch.from_numpy(a), torch.from_numpy(b))
    agree(name, apply(name, isa, a, b), want)


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("dtype", NAMES)
def test_where_is_torchs(dtype, isa):
    """Anything but 0 chooses the first, NaN included; the other value does not matter."""
    odd = np.array(ODD, NAMES[dtype])
    c, a, b = (grid.ravel() for grid in np.meshgrid(odd, odd, odd))
    want = torch.where(*(torch.from_numpy(v) for v in (c != 0, a, b)))
    agree("where", apply("where", isa, c, a, b), want)


def test_every_spelling_is_compared():
    """A new op of the table needs torch's function here."""
    assert TORCH.keys() | {"where"} == SPELL.keys()


def test_numbers_are_exact():
    """Constants reach C with all their digits."""
    assert number(0.1) == "(T)0.1"
    assert float(number(1 / 3).removeprefix("(T)")) == 1 / 3
    assert number(float("inf")) == "(T)INFINITY"
    assert number(float("-inf")) == "-(T)INFINITY"
    assert number(float("nan")) == "(T)NAN"
    assert number(1e-310) == "(T)1e-310"


def test_sums_are_spelled():
    """As few operations as the coefficients allow; zero times infinity stays NaN."""
    assert spell_sum((1.0, -1.0), 0.0, ["a", "b"]) == "a - b"
    assert spell_sum((-1.0, 2.0), 1.0, ["a", "b"]) == "-a + (T)2.0 * b + bc((T)1.0)"
    assert spell_sum((0.0,), 0.0, ["a"]) == "(T)0.0 * a"
    assert spell_sum((), 0.0, []) == "bc((T)0.0)"
    assert spell_sum((), -3.0, []) == "bc((T)-3.0)"
