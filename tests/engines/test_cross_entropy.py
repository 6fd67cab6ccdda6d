"""Decoder and loss in one: the C kernel and the torch ops against torch's two operations in
float64, on awkward shapes, in chunks of any length, by any number of workers."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.engines import cross_entropy as formulas
from elman.engines.c.compilation.build import find_compiler
from elman.engines.c.compilation.isa import ISAS
from elman.engines.c.kernels import cross_entropy as compiled
from elman.engines.cross_entropy import Rows, Wants, chunk_rows, in_torch
from helpers import GRADIENT, assert_close, assert_same, need_isa
from products import some_of

ALL = Wants(True, True, True)
DTYPES = (torch.float32, torch.float64)


def in_c(rows, scale, wants):
    if isinstance(find_compiler(), str):
        pytest.skip("no C compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_FEWEST", 1)
        found = compiled.losses_and_gradients(rows, scale, wants)
    assert found is not None
    return found


RUNS = {"c": in_c, "torch": in_torch}


def drawn(N, H, V, dtype=torch.float64, bias=True, smoothing=0.0, seed=0):
    """Rows and their scale."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    targets = torch.randint(V, (N,), generator=generator)
    rows = Rows(
        normal(N, H), normal(V, H) / H**0.5, normal(V) if bias else None, targets, smoothing
    )
    return rows, normal(N)


def oracle(rows, scale):
    """Losses and all gradients, by torch's own two operations in float64."""
    x, weight = (v.detach().double().requires_grad_() for v in (rows.x, rows.weight))
    bias = None if rows.bias is None else rows.bias.detach().double().requires_grad_()
    logits = F.linear(x, weight, bias)
    losses = F.cross_entropy(logits, rows.targets, label_smoothing=rows.smoothing, reduction="none")
    leaves = [v for v in (x, weight, bias) if v is not None]
    grads = torch.autograd.grad(losses, leaves, scale.double())
    return [losses.detach(), *grads]


def agree(name, got, want):
    """Losses one by one, gradients by their RMS error, as everywhere."""
    if name == "losses":
        assert_close(got, want)
    else:
        assert_same(f"d {name}", got, want, got.dtype, 1)


def compare(run, rows, scale, wants=ALL):
    """Hold what is found against the oracle; what is not wanted is not there."""
    wants = wants._replace(bias=wants.bias and rows.bias is not None)
    expected = oracle(rows, scale)
    if rows.bias is None:
        expected.append(None)
    for name, got, want, there in zip(
        formulas.Found._fields, run(rows, scale, wants), expected, (True, *wants), strict=True
    ):
        assert (got is not None) == there, name
        if got is not None:
            assert got.dtype == rows.x.dtype
            agree(name, got, want)


@contextlib.contextmanager
def cut(rows, workers=1, shares=None):
    """Chunks of at least so many rows; so many workers and shares, however small the work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(formulas.LEAST_ROWS, "cpu", rows)
        patch.setattr(formulas, "chunk_rows", lambda given: min(rows, len(given.x)))
        patch.setattr(compiled, "chunk_rows", lambda given: min(rows, len(given.x)))
        patch.setattr(compiled, "workers", lambda: workers)
        patch.setattr(compiled, "threads", lambda: shares or workers)
        patch.setattr(compiled, "_WORTH", 0)
        yield


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@given(
    N=st.integers(1, 90),
    H=st.one_of(st.integers(1, 70), st.integers(250, 270)),
    V=st.one_of(st.integers(2, 40), st.integers(120, 300)),
    rows=st.integers(1, 100),
    workers=st.integers(1, 3),
    shares=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    bias=st.booleans(),
    smoothing=st.sampled_from((0.0, 0.1, 1.0)),
    seed=st.integers(0, 9),
)
@settings(deadline=None)
def test_any_shape_agrees_with_torch_in_float64(
    run, N, H, V, rows, workers, shares, dtype, bias, smoothing, seed
):
    """Loss and every gradient, whatever is cut where."""
    with cut(rows, workers, shares):
        compare(run, *drawn(N, H, V, dtype, bias, smoothing, seed))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("wants", [Wants(*w) for w in itertools.product((False, True), repeat=3)])
def test_only_what_is_wanted_is_computed(run, wants):
    """Each selection of gradients, in several chunks."""
    with cut(20, 2):
        compare(run, *drawn(50, 21, 140), wants)


def test_bits_do_not_depend_on_who_is_there():
    """Other processes may take the cores, and fewer workers run: results are the same."""
    rows, scale = drawn(150, 40, 700, torch.float32)
    found = []
    for workers in (1, 2, 3):
        with cut(64, workers, 3):
            found.append(in_c(rows, scale, ALL))
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("name, dtype", some_of([*ISAS], [*DTYPES], together=1))
def test_every_instruction_set(name, dtype, monkeypatch):
    """Vectors of any width."""
    need_isa(name, monkeypatch)
    with cut(70, 2):
        compare(in_c, *drawn(75, 37, 150, dtype, smoothing=0.1))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("smoothing", (0.0, 0.1))
def test_a_single_class(run, smoothing):
    """There is nothing to lose and nothing to learn."""
    for found in run(*drawn(9, 5, 1, smoothing=smoothing), ALL):
        assert_close(found, torch.zeros_like(found))


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_large_logits_overflow_nothing(run):
    """Logits of a thousand and more, of either sign: the largest is subtracted first."""
    rows, scale = drawn(40, 9, 200)
    rows.weight.mul_(1000)

    compare(run, rows, scale)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_classes_that_are_ruled_out(run):
    """A bias of minus infinity, of single classes and of whole blocks of them: probability 0."""
    rows, scale = drawn(20, 5, 400)
    rows.bias[130:300] = rows.bias[7] = -torch.inf
    rows.targets.fill_(3)
    with cut(8, 2):
        compare(run, rows, scale)


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("bad", (torch.nan, torch.inf))
def test_what_is_no_number_stays_none(run, bad):
    """NaN and infinity reach the loss and the gradients of their row, and of no other row."""
    rows, scale = drawn(20, 5, 300)
    rows.x[3, 2] = bad
    found, expected = run(rows, scale, ALL), oracle(rows, scale)

    others = torch.arange(20) != 3
    assert found.losses[3].isnan()
    assert found.x[3].isnan().any()
    assert_close(found.losses[others], expected[0][others])
    assert_close(found.x[others], expected[1][others])
    assert found.weight.isnan().any()


def test_half_precision_sums_in_float32():
    """bfloat16 in, what sums over classes and rows are made in out."""
    rows, scale = drawn(60, 30, 200, torch.bfloat16)
    losses, *grads = in_torch(rows, scale.float(), ALL)
    expected = oracle(rows, scale)

    assert losses.dtype == torch.float32
    for got, want in zip((losses, *grads), expected, strict=True):
        assert (got.double() - want).norm() < GRADIENT[torch.bfloat16] * want.norm()
    found = compiled.losses_and_gradients(rows, scale.float(), ALL)
    assert (found is None) == (compiled.lacks_pairs() is not None)


def test_a_single_row_is_torchs():
    """The kernel would compute a whole vector of them."""
    assert compiled.losses_and_gradients(*drawn(1, 5, 30), ALL) is None


def test_rows_at_once():
    """Enough to be fast, more where a cache holds them, never more than there are."""
    sizes = {(700, 200, 10_000): 256, (3500, 200, 50): 291, (1, 8, 9): 1, (200, 8, 50): 200}

    assert {size: chunk_rows(drawn(*size, torch.float32)[0]) for size in sizes} == sizes
