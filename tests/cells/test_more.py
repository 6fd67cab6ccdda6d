"""Cells of the library against loops in torch that know nothing of elman."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import elman
from benchmarks.peers.published import (
    STEPS,
    cfc,
    cfc_pure,
    ligru,
    mingru,
    minlstm,
    mogrifier,
    onlstm,
    positive,
    rhn,
    s4d,
    s5,
    slstm,
)
from benchmarks.peers.spiking_steps import (
    alpha_lif,
    atan,
    lif,
    lif_euler,
    lif_node,
    plif,
    rlif,
    rlif_euler,
    spiking_lstm,
    synaptic,
)
from calls import call
from elman import cells, compiler
from elman.autodiff.structure import Degree, structure
from elman.cells.t_lstm import fast
from elman.errors import TraceError
from elman.frontend.cell import Cell
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_all_same, job_of, need, need_engine, oracle, random_case, run
from scripts import begin, finished

F64 = torch.float64


def with_option(loop: Any, **options: Any) -> Any:
    return lambda *arguments: loop(*arguments, **options)


SMALL, WIDE = Sizes(T=6, B=4, I=3, H=5), Sizes(T=6, B=4, I=3, H=5, more=(("U", 7),))
LOOPS: dict[str, tuple[Cell, Any, Sizes]] = {
    made.name: (made, STEPS[made.name], WIDE if made.name.startswith("cfc") else SMALL)
    for made in cells.ALL
    if made.name in STEPS
}
VARIANTS = set[str]()
LOOPS["ligru"] = (cells.ligru, ligru, Sizes(T=6, B=4, I=10, H=5))
LOOPS["rwkv4"] = (cells.rwkv4, STEPS["rwkv4"], Sizes(T=6, B=4, I=5, H=5))


def add_variant(own: Cell, loop: Any, theirs: dict[str, Any], **options: Any) -> None:
    """A spiking cell with options, and its loop with the same ones by the loop's names."""
    name = " ".join([own.name, *(f"{key}={value}" for key, value in options.items())])
    LOOPS[name] = (own.with_options(**options), with_option(loop, **theirs), SMALL)
    VARIANTS.add(name)


for own, loop in ((cells.lif, lif), (cells.rlif, rlif), (cells.synaptic, synaptic)):
    for reset in ("zero", "zero_before", "none"):
        add_variant(own, loop, {"reset": reset}, reset_mechanism=reset)
    for reset in ("subtract", "zero", "none"):
        theirs = {"reset": reset, "delay": False}
        add_variant(own, loop, theirs, reset_mechanism=reset, reset_delay=False)
for reset in ("subtract", "none"):
    add_variant(cells.alpha_lif, alpha_lif, {"reset": reset}, reset_mechanism=reset)
lower: dict[str, Any] = {"threshold": 0.1}  # |h| < 1: nothing fires at the usual 1
LOOPS["spiking_lstm"] = (
    cells.spiking_lstm.with_options(**lower),
    with_option(spiking_lstm, **lower),
    SMALL,
)
for reset in ("subtract", "zero"):
    theirs = {"reset": reset, **lower}
    add_variant(cells.spiking_lstm, spiking_lstm, theirs, reset_mechanism=reset, **lower)
theirs = {"reset": -0.25, "detach": True, "slope": atan}
norse = {"v_reset": -0.25, "detach_reset": True, "surrogate": "atan"}
add_variant(cells.lif_euler, lif_euler, theirs, **norse)
theirs = {"reset": 0.25, "detach": False}
add_variant(cells.rlif_euler, rlif_euler, theirs, v_reset=0.25, detach_reset=False)
for own, loop in ((cells.plif, plif), (cells.lif_node, lif_node)):
    for decay, soft, detach in ((False, False, True), (False, True, False), (True, True, True)):
        jelly: dict[str, Any] = {"decay_input": decay, "detach_reset": detach}
        jelly["reset_mechanism"] = "subtract" if soft else "zero"
        add_variant(own, loop, {"decay": decay, "soft": soft, "detach": detach}, **jelly)
theirs = {"tau": math.inf, "decay": False, "slope": atan}
add_variant(cells.lif_node, lif_node, theirs, tau=math.inf, decay_input=False, surrogate="atan")
for own, loop in ((cells.mingru, mingru), (cells.minlstm, minlstm)):
    name = f"{own.name} of positive candidates"
    LOOPS[name] = (own.with_options(candidate="positive"), with_option(loop, g=positive), SMALL)
LOOPS["s5 of single modes"] = (
    cells.s5.with_options(conj_sym=False),
    with_option(s5, pairs=1.0),
    SMALL,
)
LOOPS["cfc no_gate"] = (
    cells.cfc.with_options(mode="no_gate"),
    with_option(cfc, mode="no_gate"),
    WIDE,
)
LOOPS["slstm of max(n, 1)"] = (
    cells.slstm.with_options(least=1.0),
    with_option(slstm, least=1.0),
    SMALL,
)
LOOPS["slstm, forget gate exp"] = (
    cells.slstm.with_options(forget="exp"),
    with_option(slstm, forget=lambda f: f),
    SMALL,
)
LOOPS["cfc of three layers"] = (cells.cfc_of(3), cfc, WIDE)
LOOPS["cfc_pure of two layers"] = (cells.cfc_pure_of(2), cfc_pure, WIDE)
LOOPS["onlstm of chunks"] = (
    cells.onlstm_chunked,
    onlstm,
    Sizes(T=6, B=4, I=3, H=12, more=(("M", 4),)),
)
LOOPS["s4d"] = (cells.s4d, s4d, Sizes(T=6, B=4, I=3, H=12, more=(("D", 3), ("M", 12))))
LOOPS["rhn of depth 1"] = (cells.rhn_of(1), rhn, SMALL)
LOOPS["mogrifier of two rounds"] = (cells.mogrifier_of(2), mogrifier, SMALL)


def case_of(name: str, dtype: torch.dtype = F64):
    """Random arguments, in the range that each is meant for."""
    made, _, sizes = LOOPS[name]
    case = random_case(made, sizes, 3, F64)
    for key in ("t", "gap", "delta"):
        if key in case.inputs:
            case.inputs[key].abs_().add_(0.1)
    if "mask" in case.inputs:
        case.inputs["mask"].gt_(0)
    if "tau" in case.weights:
        case.weights["tau"].abs_().add_(1.0)
        case.weights["ratio"].abs_().add_(0.3)
        case.weights["shift"].abs_()
    if "a" in case.states:
        case.states["a"].abs_()
    if made.name == "s5":
        case.weights["A_real"].abs_().neg_()
    if made.name == "lsnn":
        case.states["v"].mul_(4)  # a tenth of a current is all that a step adds
        case.states["i"].mul_(8)
    if made.name == "izhikevich":
        case.states["v"].mul_(40).sub_(40)  # mV
        case.weights["bias"].add_(60)
    if made.name in [own.name for own in cells.SPIKING]:
        for weight in case.weights.values():
            weight.mul_(2)  # so that there are spikes
    return case.to(dtype)


def by_torch(name: str, case) -> dict[str, Tensor]:
    """Output, last states and every gradient of the loop, by torch.autograd."""
    _, loop, _ = LOOPS[name]
    groups = [
        {key: value.clone().requires_grad_() for key, value in given.items()}
        for given in (case.inputs, case.states, case.weights)
    ]
    inputs, states, weights = groups
    now = tuple(states.values())
    outputs = []
    for t in range(case.T):
        output, now = loop(*(x[t] for x in inputs.values()), *now, weights)
        outputs.append(output)
    out = torch.stack(outputs)
    found = {"out": out, **{f"last {key}": end for key, end in zip(states, now, strict=True)}}
    total = (out * case.d_output).sum()
    for end, d in zip(now, case.d_last.values(), strict=True):
        total = total + (end * d).sum()
    leaves = {f"d{key}": leaf for group in groups for key, leaf in group.items()}
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for (key, leaf), grad in zip(leaves.items(), grads, strict=True):
        found[key] = torch.zeros_like(leaf) if grad is None else grad
    return {key: value.detach() for key, value in found.items()}


@pytest.mark.parametrize("name", LOOPS)
def test_cells_are_the_published_loops(name):
    """Outputs, last states and every gradient of the oracle."""
    case = case_of(name)
    want = by_torch(name, case)
    got = run(case.cell, case, "reference")
    assert_all_same(got, want, F64, case.T)
    if case.cell.function in [made.function for made in cells.SPIKING]:
        assert 0 < want["out"].mean() < 1
        assert set(want["out"].unique().tolist()) == {0.0, 1.0}


SPIKES = {made.function for made in cells.SPIKING}


def kernels() -> Iterator[Any]:
    """Names and types of numbers: of spiking cells both, of their variants float32 of each
    fourth."""
    for k, (name, (of, *_)) in enumerate(LOOPS.items()):
        yield pytest.param(name, F64, marks=[pytest.mark.long] * (name in VARIANTS))
        usual = k % 4 == 0 or (of.function in SPIKES and name not in VARIANTS)
        yield pytest.param(name, torch.float32, marks=[pytest.mark.long] * (not usual))


@pytest.mark.parametrize("name, dtype", [*kernels()])
def test_cells_on_engine_c(name, dtype):
    """Against the oracle; spikes are the same ones, far from thresholds as these are."""
    case = case_of(name, dtype)
    job = job_of(case)
    need("c", job)
    want = oracle(case)
    assert_all_same(call(kernel_of(job, "c"), case), want, dtype, case.T)


DIAGONAL = (
    "lif",
    "synaptic",
    "alpha_lif",
    "lif_euler",
    "plif",
    "li",
    "s5",
    "indgru",
    "unicornn",
    "rwkv4",
)


@pytest.mark.parametrize("name", DIAGONAL)
def test_cells_whose_units_do_not_mix_run_all_steps_at_once(name):
    """Engine deer: spikes too, whose Jacobian is the surrogate's."""
    case = case_of(name)
    assert structure(compiler.pair_of(case.cell).source).diagonal
    got = run(case.cell, case, "deer")
    assert_all_same(got, oracle(case), F64, case.T)


@pytest.mark.parametrize("made", cells.MORE)
def test_cells_are_drawn_and_explained(made):
    """With the paper they come from."""
    assert made.source
    text = elman.explain(made, hidden_size=6, measure=False, **sizes_of(made)).all
    assert made.source in text
    assert "<svg" in elman.draw(made, hidden_size=6, **sizes_of(made)).svg


def sizes_of(made: Cell) -> dict[str, int]:
    """What else is needed to draw a cell."""
    input_size = {"ligru": 12, "rwkv4": 6}.get(made.name)
    given = {"input_size": input_size} if input_size else {}
    return {**given, "U": 9} if made.name.startswith("cfc") else given


def test_modules_of_several_inputs_and_constants():
    """As they are used: times, masks and a mean of the data; saved with all of it."""
    need_engine("c")
    T, B = 5, 3
    x, t = torch.randn(T, B, 4), torch.rand(T, B)
    for net in (
        elman.Recurrent(cells.phased_lstm, 4, 6, engine="reference"),
        elman.Recurrent(cells.t_lstm, 4, 6, decay=fast, engine="reference"),
        elman.Recurrent(cells.cfc, 4, 6, U=9, mode="no_gate", engine="reference"),
        elman.Recurrent(cells.cfc_of(2), 4, 6, U=9, engine="reference"),
    ):
        want, _ = net((x, t + 0.5))
        assert want.shape == (T, B, 6)
        again = pickle.loads(pickle.dumps(net))
        assert torch.equal(again((x, t + 0.5))[0], want)
    mean = torch.randn(4)
    net = elman.Recurrent(cells.gru_d, 4, 6, mean=mean)
    known = (torch.rand(T, B, 4) > 0.5).float()
    holes = torch.where(known > 0, x, torch.nan)
    output = net((holes, known, torch.zeros(T, B, 4)))[0]
    output.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_rwkv4_is_a_mean_of_all_values_so_far():
    """With the weights of eq. 16, from its own initial state."""
    net = elman.Recurrent(cells.rwkv4, 4, 4, dtype=F64, engine="reference")
    k, v = torch.randn(9, 2, 4, dtype=F64), torch.randn(9, 2, 4, dtype=F64)
    out, _ = net((k, v))
    decay, ages = net.log_w_l0.exp(), torch.arange(9.0, dtype=F64)[:, None, None]
    for t in range(9):
        exponents = torch.cat([k[:t] - (t - 1 - ages[:t]) * decay, k[t : t + 1] + net.u_l0])
        torch.testing.assert_close(out[t], (exponents.softmax(0) * v[: t + 1]).sum(0))


def test_initial_weights():
    """Periods between 1 and e^6 steps, coefficients of oscillators, as published."""
    net = elman.Recurrent(cells.phased_lstm, 4, 500)
    assert 1 <= net.tau_l0.min() < 3
    assert 100 < net.tau_l0.max() <= math.exp(6)
    assert set(net.ratio_l0.tolist()) == {float(torch.tensor(0.05))}
    net = elman.Recurrent(cells.rwkv4, 7, 7)
    assert net.log_w_l0[[0, 6]].tolist() == [-5, 3]
    assert net.u_l0[:4].tolist() == pytest.approx([math.log(0.3) + d for d in (0, 0.5, -0.5, 0)])
    net = elman.Recurrent(cells.unicornn, 4, 500)
    assert 0 <= net.w_l0.min() < 0.1 < 0.9 < net.w_l0.max() <= 1
    assert net.c_l0.abs().max() <= 0.1


def test_cells_of_any_depth_are_pickled_by_name():
    """A name that is found again in another process, where nothing was made yet."""
    several = [
        cells.rhn_of(10),
        cells.rhn_of(3),
        cells.mogrifier_of(4),
        cells.cfc_of(4),
        cells.cfc_pure_of(2),
    ]
    dumps = [pickle.dumps(made) for made in several]
    code = f"import pickle\nfor dump in {dumps!r}: print(pickle.loads(dump).fingerprint)"
    assert finished(begin("-c", code)).split() == [made.fingerprint for made in several]
    assert not any(hasattr(sys.modules[made.function.__module__], "nothing") for made in several)


def test_linear_cells_of_the_library():
    """Their states are found to be affine in the last ones, also with g of the log-space form."""
    variants = [own.with_options(candidate="positive") for own in (cells.mingru, cells.minlstm)]
    for own in (*cells.LINEAR, *cells.FILTERS, *variants):
        found = structure(compiler.pair_of(own).source)
        assert found.diagonal
        assert found.degree is Degree.LINEAR, own.name


def test_positive_candidates_keep_states_positive():
    """As the paper's log-space version, whose states are exponentials."""
    net = elman.Recurrent(cells.mingru, 4, 8, candidate="positive", engine="reference")
    out, _ = net(torch.randn(9, 3, 4))
    assert out.min() > 0


def test_frequencies_of_s5():
    """Eigenvalues of HiPPO-N as the authors compute them, for each block."""
    n = torch.arange(12, dtype=F64)
    hippo = -(torch.outer((2 * n + 1).sqrt(), (2 * n + 1).sqrt()).tril() - n.diag())
    normal = hippo + torch.outer((n + 0.5).sqrt(), (n + 0.5).sqrt())
    values = torch.linalg.eigvals(normal)
    torch.testing.assert_close(values.real, torch.full_like(n, -0.5))
    rising = values.imag[values.imag > 0].sort().values
    for blocks in (1, 2):
        found = torch.empty(6 * blocks, dtype=F64)
        cells.s5_frequencies(blocks)(found)
        torch.testing.assert_close(found, rising.repeat(blocks))


def test_initial_states_of_izhikevich():
    """Norse's tonic spiking; regular spikes under a constant current."""
    net = elman.Recurrent(cells.izhikevich, 1, 1, engine="reference")
    with torch.no_grad():
        net.bias_l0.fill_(10.0)
        net.W_l0.zero_()
        first, states = net(torch.zeros(1, 1, 1))
        assert first.item() == 0
        assert states[0].item() == pytest.approx(-70 + 0.25 * (0.04 * 70**2 - 350 + 154 + 10))
        spikes, _ = net(torch.zeros(400, 1, 1))  # a tenth of a second
    assert 2 <= spikes.sum() <= 10


def test_modes_and_resets_that_are_not_there():
    with pytest.raises(
        TraceError, match="reset_mechanism must be one of subtract, zero, zero_before, none, not"
    ):
        _ = cells.lif.with_options(reset_mechanism="half").graph
    with pytest.raises(TraceError, match="mode must be default or no_gate, not 'pure'"):
        _ = cells.cfc.with_options(mode="pure").graph
    with pytest.raises(TraceError, match="forget must be sigmoid or exp, not 'relu'"):
        _ = cells.slstm.with_options(forget="relu").graph
    with pytest.raises(TraceError, match="one of subtract, zero, none, not 'zero_before'"):
        _ = cells.plif.with_options(reset_mechanism="zero_before").graph
    with pytest.raises(TraceError, match="candidate must be linear or positive, not 'tanh'"):
        _ = cells.minlstm.with_options(candidate="tanh").graph
    with pytest.raises(TraceError, match="has 0 < beta < alpha"):
        _ = cells.alpha_lif.with_options(beta=0.9).graph
