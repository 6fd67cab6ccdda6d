"""Engine c without tiling, vectors, threads or its own functions: slower, and as right."""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import chain, combinations

import pytest
import torch

import elman
from benchmarks.workloads.custom_cells import tanh_readout
from calls import call
from elman import cells, compiler
from elman.engines.c.compilation.build import build
from elman.engines.c.compilation.isa import AVX2, ISAS, detect
from elman.engines.c.engine import ENGINE, PRICES
from elman.engines.c.text.emit import Emitter
from elman.ops import outer, tanh
from elman.plan.build import program
from elman.plan.spec import OPTIMIZATIONS
from helpers import Sizes, assert_all_same, assert_close, need_engine, oracle, random_case
from kernels import c_kernel, scheduled
from products import some_of
from specs import spec_of

as_users = pytest.mark.usefixtures("as_users")

F32, F64 = torch.float32, torch.float64
SWITCHES = ("tiling", "simd", "threads")
ALL_OUT = frozenset(SWITCHES)
EVERY = [frozenset(c) for c in chain(*(combinations(SWITCHES, n) for n in range(4)))]
ODD = Sizes(T=7, B=3, I=5, H=19)
SCHEDULES = [("batch", 2, 100), ("units", 2, 3)]
CELLS = [cells.lstm_layernorm, cells.gru, tanh_readout]


def agree(monkeypatch, cell, dtype, without, sizes=ODD):
    """Several sizes of one kernel, all of its results under every split, and a step alone."""
    for T, B in ((sizes.T, sizes.B), (1, 1), (20, 17)):
        case = random_case(cell, Sizes(T, B, sizes.I, sizes.H), 1, dtype)
        kernel, want = c_kernel(case, without=without), oracle(case)
        assert_all_same(call(kernel, case), want, dtype, T)
        for schedule in SCHEDULES:
            with monkeypatch.context() as patch:
                scheduled(patch, kernel, *schedule)
                assert_all_same(call(kernel, case), want, dtype, T)


@pytest.mark.parametrize("cell, without", some_of(CELLS, EVERY, together=1))
def test_all_combinations_agree(cell, without, monkeypatch):
    """Outputs, last states and every gradient; units that fill no vector; also T = B = 1."""
    agree(monkeypatch, cell, F32, without)


@pytest.mark.parametrize("without", [{"specialization"}, {"specialization", *ALL_OUT}])
def test_libm_agrees(without, monkeypatch):
    """exp, tanh and softplus called one by one, in vectors and without."""
    for cell, dtype in ((cells.lstm, F32), (cells.slstm, F64)):
        agree(monkeypatch, cell, dtype, frozenset(without))


@pytest.mark.parametrize("cell", [cells.lem, cells.slstm, cells.lru])
def test_plain_code_agrees_in_float64(cell, monkeypatch):
    """Every operation on a number is written as it is on a vector."""
    agree(monkeypatch, cell, F64, ALL_OUT)


def emitted(without):
    spec = spec_of({"I": 32, "H": 48}.items(), wants=frozenset({"W", "R", "V"}), without=without)
    made = program(compiler.job(tanh_readout, spec).pair, spec, PRICES)
    return Emitter(made, detect().without(spec.options.without))


def test_what_is_left_out_is_not_in_the_text():
    """No tiles and no packed weights without tiling; numbers in the place of vectors."""
    usual, plain = emitted(frozenset()), emitted(frozenset({"tiling"}))
    assert re.search(r"\bpack_block\(w", usual.text())
    assert len(usual.linked_texts()) > 1
    assert not re.search(r"\b(pack_block|pack_right|rows\d|outer\d)\(w", plain.text())
    assert len(plain.linked_texts()) == 1
    assert "#define VL 1\n" in emitted(frozenset({"simd"})).text()
    assert AVX2.without({"simd"}).lanes("float32") == AVX2.without({"simd"}).lanes("float64") == 1
    assert AVX2.without(()) is AVX2
    assert len({isa.without(out).name for isa in ISAS.values() for out in EVERY}) == 2 * len(ISAS)


PACKED = re.compile(r"\bv?(add|sub|mul|fn?m(add|sub)\w*?)p[sd]\b")  # arithmetic of several numbers


@as_users
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed")
@pytest.mark.skipif(detect().name not in ("avx512", "avx2"), reason="x86's names of instructions")
@pytest.mark.parametrize("without", [{"simd"}, {"simd", "tiling"}])
def test_the_compiler_finds_no_vectors_either(without):
    """Scalar code has no arithmetic on vectors, and the usual kernel is full of it."""

    def code(left_out):
        kernel = c_kernel(random_case(tanh_readout, ODD, 1, F32), without=frozenset(left_out))
        path = build(kernel.emitter.text(), kernel.isa, kernel.emitter.linked_texts())
        return subprocess.run(["objdump", "-d", path], capture_output=True, text=True).stdout

    assert PACKED.search(code(()))
    assert not PACKED.search(code(without))


@elman.cell(input="q[I], m", state="S[I, H]")
def scaled(q, m, S):
    return 0.5 * S + 0.5 * tanh(m * tanh(outer(q, q) @ S))


def test_sums_of_matrices_follow_what_they_add_up():
    """The gradient of ``m``, in a segment per operation."""
    case = random_case(scaled, ODD, 1, torch.float64)
    kernel = c_kernel(case, without=frozenset({"fusion"}))
    assert_all_same(call(kernel, case), oracle(case), torch.float64, case.T)


@elman.cell(input="x[I]", output="y[H]", weights="W[H, I]")
def dense(x, W):
    return W @ x


@pytest.mark.parametrize("cell", [dense.recurrent, tanh_readout])
def test_work_outside_of_the_loop_is_worth_several_workers(cell, monkeypatch):
    """A layer without a loop has nothing else."""
    monkeypatch.setattr("elman.engines.c.run.kernel.threads", lambda: 4)
    kernel = c_kernel(random_case(cell, Sizes(50, 64, 32, 64), 1, F32))
    assert kernel.schedule(50, 64).workers == 4
    assert kernel.schedule(1, 1).workers == 1


def test_one_worker_without_threads(monkeypatch):
    """However many threads there are, whatever is asked of the kernel."""
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 4)
    monkeypatch.setattr("elman.engines.c.run.kernel.threads", lambda: 4)
    monkeypatch.setattr("elman.engines.c.run.kernel.workers", lambda: 4)
    case = random_case(tanh_readout, Sizes(50, 64, 32, 64), 1, F32)
    usual, alone = (c_kernel(case, without=frozenset(out)) for out in ((), ("threads",)))
    assert usual.schedule(50, 64).workers == 4
    for kernel in (alone, *alone.stressed(), alone.scheduled(None, 3)):
        assert (kernel.schedule(50, 64).workers, kernel.workers()) == (1, 1)
    spec = spec_of(case.dims.items(), without=frozenset({"threads"}))
    assert ENGINE.schedules(compiler.job(tanh_readout, spec), 50, 64) == ("one",)


@pytest.mark.parametrize("lengths", [None, [6, 2, 4]], ids=["dense", "ragged"])
def test_modules_leave_out_what_they_are_told(lengths):
    """The same results by layers in both directions, none of which run at once, padded or not."""
    need_engine("c")
    sizes = {"num_layers": 2, "bidirectional": True}
    torch.manual_seed(0)
    usual = elman.Recurrent(cells.gru, 5, 19, engine="reference", **sizes)
    out = sorted(ENGINE.leaves_out)
    plain = elman.Recurrent(
        cells.gru, 5, 19, engine="c", plan=elman.PlanOptions(without=out), **sizes
    )
    plain.load_state_dict(usual.state_dict())
    x, found = torch.randn(6, 3, 5), []
    for net in (plain, usual):
        output, last = net(x, lengths=None if lengths is None else torch.tensor(lengths))
        grads = torch.autograd.grad(output.square().sum(), list(net.parameters()))
        found.append((output.detach(), last.detach(), *grads))
    for ours, wanted in zip(*found, strict=True):
        assert_close(ours, wanted)
    records = [r for layer in elman.nn.choices(plain).values() for r in layer.values()]
    assert {record["engine"] for record in records} == {"c"}
    assert ENGINE.leaves_out <= {*OPTIMIZATIONS}
