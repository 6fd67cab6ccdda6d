"""PackedSequence and lengths on elman's engines, beside torch's own layers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import elman
from elman import cells
from elman.engines.packed import packed_of
from elman.errors import InputError, ShapeError
from helpers import assert_all_same, need_engine

KINDS = ("RNN", "GRU", "LSTM")
UNSORTED = (4, 9, 1, 7, 7)
# The oneDNN path of torch is not taken with projections, and torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def pair(kind, dtype, **options):
    """torch's module and elman's, of the same weights."""
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(5, 7, **options).to(dtype)
    ours = getattr(elman, kind)(5, 7, **options).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def states_of(module, batch, dtype):
    """Random initial states."""
    lead = module.num_layers * (1 + module.bidirectional)
    widths = [module.proj_size or module.hidden_size]
    widths += [module.hidden_size] * (module.mode == "LSTM")
    source = torch.Generator().manual_seed(4)
    made = tuple(torch.randn(lead, batch, w, dtype=dtype, generator=source) for w in widths)
    return made if module.mode == "LSTM" else made[0]


def leaves_of(value):
    """Tensors of a result in order."""
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in leaves_of(v)]


def results(call, module, x, hx):
    """Values and gradients of x, states and weights, by name."""
    x = x.detach().clone().requires_grad_()
    given = None
    own = []
    if hx is not None:
        own = [value.detach().clone().requires_grad_() for value in leaves_of(hx)]
        given = tuple(own) if isinstance(hx, tuple) else own[0]
    torch.manual_seed(3)
    out, last = call(module, x, given)
    values = [*leaves_of(out), *leaves_of(last)]
    source = torch.Generator().manual_seed(5)
    ds = [torch.randn(v.shape, dtype=v.dtype, generator=source) for v in values]
    weights = dict(module.named_parameters())
    grads = torch.autograd.grad(values, [x, *own, *weights.values()], ds)
    names = ["dx", *(f"dh{k}" for k in range(len(own))), *(f"d{name}" for name in weights)]
    found = {f"value {k}": value.detach() for k, value in enumerate(values)}
    return found | dict(zip(names, grads, strict=True))


def packing(lengths, enforce_sorted=False, batch_first=False):
    """A call on packed input."""

    def call(module, x, hx):
        given = pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted)
        return module(given, hx)

    return call


OPTIONS = [
    {**dict(zip(("num_layers", "bidirectional", "bias"), values))}
    for values in itertools.product((1, 2), (False, True), (True, False))
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_projections(options, packed):
    """proj_size, as torch."""
    theirs, ours = pair("LSTM", torch.float64, proj_size=3, **options)
    x = torch.randn(9, 5, 5, dtype=torch.float64)
    call = packing(UNSORTED) if packed else lambda module, x, hx: module(x, hx)
    for hx in (None, states_of(theirs, 5, torch.float64)):
        want, got = results(call, theirs, x, hx), results(call, ours, x, hx)
        assert_all_same(got, want, torch.float64, 9)


def test_its_own_engine_runs_it():
    """Nothing is left to torch's layers where engine c can run the cell."""
    need_engine("c")
    ours = elman.LSTM(5, 7, 2, bidirectional=True, proj_size=3)
    packing(UNSORTED)(ours, torch.randn(9, 5, 5), None)
    chosen = elman.nn.choices(ours)
    assert {c["engine"] for layer in chosen.values() for c in layer.values()} == {"c"}


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_packing(kind, batch_first):
    """Zero behind each end, states after each own last step; any container of whole numbers."""
    _, ours = pair(kind, torch.float64, batch_first=batch_first, bidirectional=True)
    x = torch.randn(*((5, 12) if batch_first else (12, 5)), 5, dtype=torch.float64)
    packed, want = packing(UNSORTED, batch_first=batch_first)(ours, x, None)
    whole, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first, total_length=12)
    for lengths in (torch.tensor(UNSORTED), list(UNSORTED), torch.tensor(UNSORTED).int()):
        out, last = ours(x, lengths=lengths)
        assert torch.equal(out, whole)
        for a, b in zip(leaves_of(last), leaves_of(want), strict=True):
            assert torch.equal(a, b)
    assert not (out if batch_first else out.transpose(0, 1))[2, 1:].any()


@pytest.mark.parametrize(
    "lengths, error, match",
    [
        ([1, 2], ShapeError, r"lengths must be \[3\], one per sequence, got \[2\]"),
        ([1, 2, 3, 4], ShapeError, "hint  x is 3 sequences of 4 steps here: batch_first="),
        ([1, 2, 0], InputError, "between 1 and T = 4, got 0 to 2"),
        ([1, 2, 5], InputError, "between 1 and T = 4, got 1 to 5"),
        ([1.0, 2.0, 3.0], InputError, "integers, not torch.float32"),
    ],
)
def test_bad_lengths(lengths, error, match):
    """Told with what they must be."""
    for net in (elman.GRU(2, 3), elman.Recurrent(cells.mgu, 2, 3)):
        with pytest.raises(error, match=match):
            net(torch.randn(4, 3, 2), lengths=lengths)
    with pytest.raises(ShapeError, match="a batch of sequences"):
        elman.GRU(2, 3)(torch.randn(4), lengths=[1])
    packed = pack_padded_sequence(torch.randn(4, 3, 2), torch.tensor([4, 2, 1]))
    with pytest.raises(InputError, match="padded tensors: a PackedSequence"):
        elman.GRU(2, 3)(packed, lengths=[4, 2, 1])


def test_dropout_draws_as_torch():
    """Between layers the same values are dropped for the same seed."""
    theirs, ours = pair("GRU", torch.float64, num_layers=3, dropout=0.5, bidirectional=True)
    x = torch.randn(9, 5, 5, dtype=torch.float64)
    call = packing(UNSORTED)
    assert_all_same(results(call, ours, x, None), results(call, theirs, x, None), torch.float64, 9)


def test_packed_inputs_that_do_not_fit():
    """One of two that is not packed, or otherwise, or of another size."""

    @elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
    def reset(x, m, h, W, R):
        """A state that m sets back."""
        return elman.ops.tanh(W @ x + R @ (m * h))

    net, x, m = elman.Recurrent(reset, 5, 5), torch.randn(9, 5, 5), torch.rand(9, 5)
    rows, flags = (
        pack_padded_sequence(value, torch.tensor(UNSORTED), enforce_sorted=False)
        for value in (x, m)
    )
    with pytest.raises(InputError, match="either all inputs of reset are packed, or none"):
        net((rows, m))
    other = pack_padded_sequence(m, torch.tensor([9] * 5))
    with pytest.raises(ShapeError, match="differ in their lengths"):
        net((rows, other))
    with pytest.raises(ShapeError, match="packed input x"):
        net((flags, flags))


@pytest.mark.parametrize("engine", ["reference", "c", "deer"])
@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_training_after_evaluation(engine, first):
    """What a first call keeps of lengths serves those that are differentiated, also twice."""
    need_engine(engine)
    _, ours = pair("GRU", torch.float64, bidirectional=True)
    ours.engine = engine
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    packed_of.cache_clear()
    with first():
        want = ours(x, lengths=(4, 1, 3))[0]
    x.requires_grad_()
    out = ours(x, lengths=(4, 1, 3))[0]
    torch.testing.assert_close(out, want)
    (once,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert torch.autograd.grad(once.square().sum(), x)[0].any()


def test_under_transforms_and_twice():
    """Second derivatives, and torch.func."""
    net = elman.GRU(3, 4).double()
    x = torch.randn(5, 3, 3, dtype=torch.float64, requires_grad=True)

    def loss(x):
        return net(x, lengths=[5, 2, 3])[0].pow(2).sum()

    assert torch.autograd.gradgradcheck(loss, (x,))
