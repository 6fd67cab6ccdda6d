"""torch.compile and torch.export: one graph, no unrolling; each option's numbers are those of
``conformance/test_options.py``."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

import elman
from elman import cell, cells
from elman.errors import EngineError
from elman.nn.compile import names
from elman.nn.compile import operator as compiled
from helpers import need_engine
from scripts import begin, finished

# what torch itself says while it compiles
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def fresh():
    """Nothing counted before."""
    counters.clear()


def results(call, module, x):
    """Output, last states and every gradient."""
    x = x.detach().clone().requires_grad_()
    out, last = call(x)
    values = [out, *(last if isinstance(last, tuple) else (last,))]
    source = torch.Generator().manual_seed(5)
    ds = [torch.randn(v.shape, generator=source, dtype=v.dtype) for v in values]
    grads = torch.autograd.grad(values, [x, *module.parameters()], ds)
    return [*(value.detach() for value in values), *grads]


def test_autocast(monkeypatch):
    """One graph also where the compiler cannot ask torch whether a device has autocast, as that of
    torch 2.11: results have autocast's type, numbers are those without a compiler."""
    available = torch.amp.is_autocast_available

    def breaks(kind):
        torch._dynamo.graph_break()  # nothing outside of a graph
        return available(kind)

    monkeypatch.setattr(torch.amp, "is_autocast_available", breaks)
    net, x = elman.Recurrent(cells.mgu, 5, 7), torch.randn(6, 4, 5)
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mine, want in zip(compiles(x), net(x), strict=True):
            assert mine.dtype is torch.bfloat16
            assert torch.equal(mine, want)


SHARES = (0.0, 0.25, 1.0)
LAYERED = {
    "GRU": lambda p: elman.GRU(5, 7, 2, dropout=p, engine="reference"),
    "LSTM": lambda p: elman.LSTM(5, 7, 2, dropout=p, engine="reference", bidirectional=True),
    "residual": lambda p: elman.Recurrent(
        cells.mgu, 5, 5, 2, dropout=p, residual=True, engine="reference", batch_first=True
    ),
}


def same_draws(compiles, net, x):
    """One seed, one mask: the compiled call and the eager one give the same bits."""
    found = []
    for call in (compiles, net):
        torch.manual_seed(1)
        found.append(results(call, net, x))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, changed",
    [("residual", False), ("LSTM", True)],
    ids=lambda value: {False: "modules", True: "one module"}.get(value, value),
)
def test_every_share_of_dropout(kind, changed):
    """Several values in one process: from the second on, the compiler has a symbol for it."""
    torch.manual_seed(0)
    net, x = LAYERED[kind](SHARES[0]), torch.randn(6, 4, 5)
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    for share in (*SHARES, SHARES[1]):
        if changed:
            net.dropout = share
        else:
            net = LAYERED[kind](share)
            compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
        same_draws(compiles, net, x)
    same_draws(compiles, net.eval(), x)
    torch._dynamo.reset()
    same_draws(compiles, net.train(), x)


@pytest.mark.long
def test_inductor_takes_a_second_share():
    """So does the code that torch generates, with torch's own draws."""
    with inductor.patch(fallback_random=True):
        for share in (0.1, 0.25):
            net = LAYERED["GRU"](share)
            same_draws(torch.compile(net, fullgraph=True), net, torch.randn(6, 4, 5))


class Model(nn.Module):
    """Two kinds of layers with something in between."""

    def __init__(self):
        super().__init__()
        self.first = elman.Recurrent(cells.lem, 5, 7, num_layers=2)
        self.second = elman.GRU(7, 8, 2, bidirectional=True)

    def forward(self, x, lengths=None):
        y, _ = self.first(x, lengths=lengths)
        return self.second(y.relu(), lengths=lengths)[0]


@pytest.mark.slow
def test_sizes_change_without_compiling_again():
    """The second size makes T and B symbols; a third and fourth compile nothing."""
    net = Model()
    compiles = torch.compile(net, fullgraph=True, backend="inductor")
    for count, steps in zip((1, 2, 2, 2), (40, 23, 11, 7)):
        x, lengths = torch.randn(steps, 3, 5), torch.tensor([steps, 2, steps // 2])
        out = compiles(x, lengths)
        out.sum().backward()
        torch.testing.assert_close(out, net(x, lengths))
        assert counters["stats"]["unique_graphs"] == count


@pytest.mark.parametrize("engine", ["aten", "reference", "c"])
@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_results_may_be_written_over(kind, engine):
    """As a compiler does once nothing reads them any more: the backward has its own."""
    if engine == "c":
        need_engine("c")
    net = getattr(elman, kind)(5, 8, engine=engine)
    compiles, x = torch.compile(net, fullgraph=True, backend="aot_eager"), torch.randn(6, 4, 5)
    found = []
    for call in (net, compiles):
        out, last = call(x)
        ends = last if isinstance(last, tuple) else (last,)
        total = out.square().sum() + sum(end.sum() for end in ends)
        if call is compiles:
            cotangents = 2 * out.detach(), *(torch.ones_like(end) for end in ends)
            for value in (out, *ends):
                value.data.fill_(7.0)
            found.append(torch.autograd.grad((out, *ends), list(net.parameters()), cotangents))
        else:
            found.append(torch.autograd.grad(total, list(net.parameters())))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_compiled_before_it_ever_ran():
    """What options ask of a formula is known when a compiler traces the first call."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", init={"h": 0.5})
    def unseen(x, h, W, R):
        """A cell that nobody has run."""
        return elman.ops.tanh(W @ x + R @ h)

    options: dict[str, Any] = {
        "weight_dropout": 0.5,
        "recurrent_dropout": 0.5,
        "zoneout": 0.5,
        "clip_gradient": 1.0,
    }
    net = elman.Recurrent(unseen, 4, 4, engine="reference", **options)
    x, found = torch.randn(2, 2, 4), []
    for call in (torch.compile(net, fullgraph=True, backend="aot_eager"), net):
        torch.manual_seed(0)
        found.append(call(x, reset=torch.ones(2, 2))[0])
    assert torch.equal(*found)


@cell(input="x[I]", state="h[H], k[H], m[H]", weights="W[H, I]")
def hands_on(x, h, k, m, W):
    """States that are others' next ones as they are, one of them twice."""
    return m, h, h


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_state_that_is_handed_on(engine, steps):
    """What a compiled call returns is memory of its own: no argument, no other result."""
    net = elman.Recurrent(hands_on, 3, 4, engine=engine)
    x, states = torch.randn(steps, 2, 3), tuple(torch.randn(3, 1, 2, 4))
    with torch.no_grad():
        _, got = torch.compile(net, fullgraph=True, backend="aot_eager")(x, states)
        _, want = net(x, states)
    for mine, theirs in zip(got, want, strict=True):
        assert torch.equal(mine, theirs)
    got[0].fill_(7.0)
    assert all(torch.equal(*pair) for pair in zip(got[1:], want[1:]))


@pytest.mark.parametrize("engine, steps", [("reference", 1), ("deer", 2)])
def test_a_gradient_of_several(engine, steps):
    """So is what a compiled backward returns: both biases have the same."""
    net, x = elman.RNN(3, 4, engine=engine), torch.randn(steps, 2, 3)
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    both = [results(call, net, x) for call in (compiles, net)]
    for mine, theirs in zip(*both, strict=True):
        torch.testing.assert_close(mine, theirs)


_GLOBAL = elman.GRU(5, 8, 2, bidirectional=True)


def _calls_a_global(x):
    return _GLOBAL(x)[0] + 1


def test_a_module_that_is_a_global():
    """What the compiler takes for constants needs no guard by a name."""
    x = torch.randn(3, 2, 5)
    compiles = torch.compile(_calls_a_global, fullgraph=True, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiles(x), _calls_a_global(x))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # of torch 2.11
def test_export_round_trip(tmp_path):
    """A saved program runs, on other sizes, from its text alone."""
    net = Model().eval()
    sizes = {0: torch.export.Dim("T", min=2, max=500), 1: torch.export.Dim("B", min=2, max=50)}
    program = torch.export.export(net, (torch.randn(20, 4, 5),), dynamic_shapes={"x": sizes})
    torch.export.save(program, tmp_path / "net.pt2")
    x = torch.randn(33, 6, 5)
    want = net(x)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    del net, program
    gc.collect()
    torch._dynamo.reset()
    again = torch.export.load(tmp_path / "net.pt2")
    torch.testing.assert_close(again.module()(x), want)
    assert again.state_dict.keys() == weights.keys()


def test_the_backward_finds_its_forward_or_runs_it_again():
    """Kept results are freed with the graph; a lost ticket costs a second forward, no more."""
    net = elman.GRU(3, 4)
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 2, 3)
    out = compiles(x)[0]
    assert len(compiled._saved_results) == 1
    del out
    gc.collect()
    assert not compiled._saved_results

    out = compiles(x)[0]
    compiled._saved_results.clear()
    out.sum().backward()
    got = [p.grad for p in net.parameters()]
    net.zero_grad()
    net(x)[0].sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()], rtol=0, atol=0)


def test_torchs_own_layers_still_break_the_graph():
    """What is let through is ours alone: torch's layers would be unrolled over time."""
    compiles = torch.compile(nn.GRU(3, 4), fullgraph=True, backend="eager")
    with pytest.raises(Unsupported, match="GRU"):
        compiles(torch.randn(5, 2, 3))


def test_operators_pass_torchs_own_checks():
    """Schema, fake implementation and autograd registration, by torch's tester."""
    net = elman.GRU(3, 4)
    (name, _), *_ = names.names_of(net.runtime.stack_key, False)
    weights = [w.detach().requires_grad_() for w in net.parameters()]
    x, h = torch.randn(5, 2, 3, requires_grad=True), torch.zeros(2, 4)
    wants = [True, False, True, True, True, True]
    counts, flags = torch.tensor([5, 2]), torch.rand(5, 2) < 0.3
    for lengths, values, options, outputs in (
        (None, [], "", ""),
        (counts, [], "", "first"),
        (counts, [flags, flags], "mask 1;reset 1 initial", "states"),
    ):
        how = (lengths, wants, name, "auto", options, [0, 0, 1], outputs, "bf16")
        given = ([x], [h], weights, values, *how)
        torch.library.opcheck(
            torch.ops.elman.recurrent.default,
            given,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


def test_names():
    """A cell of a module is found by its name; a local one lives only here."""
    net = elman.GRU(3, 4)
    (name, _), *_ = names.names_of(net.runtime.stack_key, False)
    assert names.group_of(name) is net.stack.groups_for(False)[0][0]
    other = name.replace('"H": 4', '"H": 5')
    made = names.group_of(other)
    assert dict(made.runners[0].dims)["H"] == 5
    facts = json.loads(name)
    assert facts.pop("formula") == cells.gru.fingerprint
    assert names.group_of(json.dumps(facts)).runners[0].cell is cells.gru  # of earlier versions

    lost = '{"cell": ["a", "b", 1], "dims": [{}], "tape": "auto", "beside": false, "local": 7}'
    with pytest.raises(EngineError, match="lived in another process"):
        names.group_of(lost)


IMPORTED_IN_INFERENCE = """
import torch
with torch.inference_mode():
    import elman
    import elman.nn.compile.operator
net = elman.GRU(3, 5, engine="reference")
called = torch.compile(net, backend="eager", fullgraph=True)
x = torch.randn(4, 2, 3, requires_grad=True)
grads = [torch.autograd.grad(call(x)[0].sum(), [x, *net.parameters()]) for call in (called, net)]
for compiled, eager in zip(*grads):
    torch.testing.assert_close(compiled, eager)
"""


@pytest.mark.slow
def test_imported_in_inference_mode():
    """The dispatch keys of compiled calls are not those of whoever imports elman."""
    finished(begin("-W", "ignore", "-c", IMPORTED_IN_INFERENCE))
