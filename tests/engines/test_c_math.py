"""The elementary functions of generated C: accuracy, NaN and infinities, on every ISA there is."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch

from elman import cells, compiler
from elman.engines.c.compilation.build import build, find_compiler, load
from elman.engines.c.compilation.isa import ISAS, Isa, detect
from elman.engines.c.spelling.ops import SPELL, number, spell_reduce, spell_sum
from elman.engines.c.text.emit import Emitter
from elman.engines.c.text.units import head, runtime
from elman.errors import EngineError
from elman.ir.draws import BITS, SCALE, drawn, stream
from elman.ir.ops import STAND_INS
from elman.plan.build import program
from elman.plan.spec import Spec
from functions_of_one import FUNCTIONS, torchs

pytestmark = pytest.mark.usefixtures("as_users")  # what is rounded

ULP = 4  # DESIGN: own vector functions within 4 units in the last place
NAMES = {"float32": np.float32, "float64": np.float64}
SINGLE = [name for name, text in SPELL.items() if "{1}" not in text and name not in STAND_INS]
REDUCED = {  # of float64
    "sum": np.sum,
    "mean": np.mean,
    "var": np.var,
    "amax": np.max,
}
DOUBLE = [
    name
    for name, text in SPELL.items()
    if "{1}" in text and "{2}" not in text and name != "uniform"
]
STREAM = stream(3, 2)  # of the numbers that are drawn here

Called = Callable[..., None]  # a function's name, and its arguments: numbers and arrays
_libraries: dict[tuple[str, str], Called] = {}


def usable() -> list[str]:
    """Names of the instruction sets that this machine can run."""
    able: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ISAS:
            patch.setenv("ELMAN_ISA", name)
            with contextlib.suppress(EngineError):
                able.append(detect().name)
    return list(dict.fromkeys(able))


def text_of(isa: Isa, dtype: str) -> str:
    """The head of every kernel; per op a loop over arrays, per reduction one of two arrays."""
    lines = [head(isa, dtype)]
    lines.extend(
        f'__attribute__((visibility("default"))) void reduce_{name}(long n, long size, const T *p,'
        f" const T *q, T *out) {{ *out = {_reduction(name)}; }}"
        for name in REDUCED
    )
    for name, spelling in SPELL.items():
        body = spelling.format("a", "b", "c", unit="u", stream=STREAM)
        lines.append(
            '__attribute__((visibility("default")))'
            f" void apply_{name}(long n, const T *x, const T *y, const T *z, T *out) {{\n"
            "    for (long i = 0; i < n; i += VL) {\n"
            "        const V a = ldn(x, i, n), b = ldn(y, i, n), c = ldn(z, i, n);\n"
            "        const long u = i; (void)a; (void)b; (void)c; (void)u;\n"
            f"        stn(out, i, n, {body});\n"
            "    }\n}"
        )
    return "\n".join(lines) + "\n"


def _reduction(name: str) -> str:
    """A reduction of p's n units and q's three; how many there are is not known to C's text."""
    text = spell_reduce(name, [("p", 1), ("q", 3)])
    return text.replace("{p, 1}", "{p, n}").replace(number(4.0), "(T)size")


def calling(name: str, dtype: str) -> Called:
    """What is tested here, compiled once."""
    if (name, dtype) in _libraries:
        return _libraries[name, dtype]
    reason = find_compiler()
    if isinstance(reason, str):
        pytest.skip(reason)
    isa = ISAS[name]
    library = load(build(text_of(isa, dtype), isa, (runtime(isa, dtype),)))

    def call(name: str, *args: int | np.ndarray) -> None:
        function = getattr(library, name)
        arrays = [isinstance(arg, np.ndarray) for arg in args]
        function.argtypes = [ctypes.c_void_p if array else ctypes.c_long for array in arrays]
        function.restype = None
        function(*(arg.ctypes.data if isinstance(arg, np.ndarray) else arg for arg in args))

    _libraries[name, dtype] = call
    return call


def apply(name: str, isa: str, *args: np.ndarray) -> np.ndarray:
    """One op on arrays of one dtype."""
    given = [np.ascontiguousarray(arg) for arg in (*args, *args, *args)[:3]]
    out = np.full_like(given[0], 77)
    calling(isa, args[0].dtype.name)(f"apply_{name}", len(out), *given, out)
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


def reduce(name: str, isa: str, p: np.ndarray, q: np.ndarray) -> float:
    """One reduction over the units of both arrays."""
    out = np.full(1, 77, p.dtype)
    calling(isa, p.dtype.name)(f"reduce_{name}", len(p), len(p) + len(q), p, q, out)
    return float(out[0])


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name, dtype, isa):
    """Of units that fill no vector, one, two and more, with any rest; NaN goes through."""
    drawn = np.random.default_rng(0).normal(5.0, 1.0, 104).astype(dtype)
    q = drawn[:3].copy()
    for n in (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64, 65, 100):
        p = drawn[3 : 3 + n].copy()
        want = REDUCED[name](np.concatenate([p, q]).astype("float64"))
        assert reduce(name, isa, p, q) == pytest.approx(
            want, rel=30 * float(np.finfo(dtype).eps)
        ), n
        for place in {0, n // 2, n - 1}:
            bad = p.copy()
            bad[place] = np.nan
            assert np.isnan(reduce(name, isa, bad, q)), (n, place)


def test_a_mean_at_hand_is_not_summed_again():
    """The variance of a layer norm takes the mean that was computed before it in the same step."""
    spec = Spec((("I", 4), ("H", 4)), wants=frozenset({"R"}))
    job = compiler.job(cells.lstm_layernorm, spec)
    text = Emitter(program(job.pair, spec), detect()).text()
    variances = [line for line in text.splitlines() if "square_of" in line and "sc[" in line]
    assert variances
    assert not any("sum_of" in line for line in variances)


EXACT = {  # in a wider type
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "expm1": np.expm1,
    "log": np.log,
    "softplus": lambda v: np.where(v > 20, v, np.log1p(np.exp(np.minimum(v, 20)))),
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "erf": lambda v: torch.erf(torch.from_numpy(v)).numpy(),
}
OF_FLOAT32 = {"sin", "cos", "atan", "erf"}  # libm's in float64
CASES = [(n, kind) for n in EXACT for kind in NAMES if not (n in OF_FLOAT32 and kind == "float64")]


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("name, dtype", CASES)
def test_own_functions_are_accurate(name, dtype, isa):
    """Over the whole range, subnormals and overflow included."""
    wide = np.float64 if dtype == "float32" else np.longdouble
    if np.finfo(wide).eps > np.finfo(dtype).eps / 100:
        pytest.skip("numpy has no type wider than float64 here to compare with")
    x = samples(dtype)
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(wide))
        assert in_ulp(apply(name, isa, x), want) <= ULP


@pytest.mark.parametrize("isa", usable())
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_turns_are_accurate(name, isa):
    """Next to multiples of half π, in small angles and in those beyond the fast reduction."""
    source = np.random.default_rng(0)
    turns = np.arange(40_000) * (np.pi / 2)
    x = np.concatenate([turns, -turns, source.uniform(-9000, 9000, 40_000)]).astype("float32")
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(9e9))])
    assert in_ulp(apply(name, isa, x), EXACT[name](x.astype("float64"))) <= ULP


@pytest.mark.parametrize("isa", usable())
def test_powers_are_accurate(isa):
    """Of any size of base and exponent, bases of either sign, whole exponents."""
    source = np.random.default_rng(0)
    base = np.exp(source.uniform(-80, 80, 40_000)).astype("float32")
    exponent = source.uniform(-3, 3, 40_000).astype("float32")
    exponent[::4] = np.round(exponent[::4])
    exponent[1::4] *= 40
    base[1::4] **= np.float32(0.02)
    for given in (base, np.where(np.arange(len(base)) % 3, base, 0), -base[::4]):
        given = given.astype("float32")
        y = exponent[::4] if len(given) < len(exponent) else exponent
        with np.errstate(all="ignore"):
            want = np.power(given.astype("float64"), y.astype("float64"))
            assert in_ulp(apply("pow", isa, given, y), want) <= 1


ODD = [0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 0.5, -2.5, 20.0, 21.0]
ODD += [1.5, -0.5, -0.3, 0.7, 3.0, -7.0, 8388607.5, 2.0**52 - 0.5, -(2.0**53)]
ODD += [1e-45, -1e-45, 1e-40, 3e38, -3e38, 87.0, 89.0, -87.0, -104.0, 700.0, 709.9, -745.2, 1e-320]


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """torch's own, but where that has NaN for quotients that overflow."""
    with np.errstate(all="ignore"):
        return np.remainder(a, b)


OF_TWO = "pow mul div minimum maximum lt le gt ge eq ne"
TORCH = {name: torchs(name) for name in (*FUNCTIONS, *OF_TWO.split())} | {  # op -> torch's own
    "remainder": lambda a, b: torch.from_numpy(_remainder(a.numpy(), b.numpy())),
    "stop": torch.clone,
}
ROUNDED = {"pow"} | {name for name, of in FUNCTIONS.items() if of.rounded}
ZEROS = {"stop", "mul", "div"} | {name for name, of in FUNCTIONS.items() if of.keeps_zero}


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
    assert TORCH.keys() | {"where", "uniform", *STAND_INS} == SPELL.keys()
    assert {SPELL[name] for name in STAND_INS} == {SPELL["stop"]}


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


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("isa", usable())
def test_drawn_numbers(isa, dtype):
    """Those of ``ir/draws`` to the bit, in every width of vectors; of what are no keys too."""
    keys = np.random.default_rng(0).integers(0, 1 << BITS, (2, 1003))
    keys[:, :4] = [[0, (1 << BITS) - 1, 0, -3], [0, (1 << BITS) - 1, 1, 5]]
    got = apply("uniform", isa, *keys.astype(dtype))
    want = drawn(*keys, np.arange(1003), STREAM) * SCALE  # type: ignore[arg-type]
    assert got.dtype == dtype
    assert (got == want).all()
    assert 0.0 <= got.min() < got.max() < 1.0
