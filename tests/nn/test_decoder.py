"""LinearCrossEntropyLoss: torch's decoder and loss as one, under everything autograd does."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman
from elman.engines import cross_entropy as formulas
from elman.engines.c.compilation.isa import lacks_pairs
from elman.engines.c.kernels import cross_entropy as compiled
from elman.engines.cross_entropy import Rows, Wants, in_torch
from elman.errors import BuildError, DisagreementError, EngineError, InputError, ShapeError
from elman.nn.autograd.cross_entropy import linear_cross_entropy
from fake_compilers import compiler
from helpers import GRADIENT, assert_close

H, V = 6, 11
REDUCTIONS = ("mean", "sum", "none")
ENGINES = ("auto", "c", "reference")


def made(seed=0, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    sizes = {"in_features": H, "num_classes": V, "bias": True, "dtype": dtype}
    return elman.LinearCrossEntropyLoss(**sizes | options)


def given(*lead, ignored=(), dtype=torch.float64):
    """States that want a gradient, and targets."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*lead, H, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(V, lead, generator=generator)
    for place in ignored:
        targets[place] = -100
    return x, targets


def plain(decoder, x, targets):
    """The same by torch's two operations."""
    loss = F.cross_entropy(
        decoder.logits(x).flatten(0, -2),
        targets.flatten(),
        ignore_index=-100 if decoder.ignore_index is None else decoder.ignore_index,
        label_smoothing=decoder.label_smoothing,
        reduction=decoder.reduction,
    )
    return loss.reshape(targets.shape) if decoder.reduction == "none" else loss


def results(call, decoder, x, targets, **options):
    """The loss, and gradients of it with a cotangent that is not 1."""
    loss = call(x, targets)
    leaves = (x, *decoder.parameters())
    return [loss.detach(), *torch.autograd.grad(loss, leaves, loss.detach() + 2, **options)]


def check(decoder, x, targets, call=None):
    expected = results(lambda *args: plain(decoder, *args), decoder, x, targets)
    found = results(decoder if call is None else call, decoder, x, targets)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == want.dtype
        assert_close(got, want)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("options", ({}, {"bias": False}, {"label_smoothing": 0.1}))
def test_is_torchs_decoder_and_loss(engine, reduction, dtype, options):
    """Every option, with rows that are ignored and without, of any leading axes."""
    decoder = made(reduction=reduction, dtype=dtype, **options)
    with elman.using(engine=engine):
        check(decoder, *given(7, dtype=dtype))
        check(decoder, *given(3, 2, 5, ignored=((0, 1), (2, 1, 4)), dtype=dtype))
        check(decoder, *given(1, dtype=dtype))


TORCHS = getattr(nn, "LinearCrossEntropyLoss", None)
CLASS_WEIGHTS = torch.linspace(0.5, 2, V, dtype=torch.float64)


@pytest.mark.skipif(TORCHS is None, reason="torch.nn.LinearCrossEntropyLoss came with torch 2.13")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", ((), (2, 3)), ids=("rows", "out_features"))
@pytest.mark.parametrize("probable", (False, True), ids=("classes", "probabilities"))
@pytest.mark.parametrize(
    "options",
    ({}, {"bias": True}, {"label_smoothing": 0.1, "bias": True}, {"weight": CLASS_WEIGHTS},
     {"weight": CLASS_WEIGHTS, "label_smoothing": 0.2}),
    ids=lambda options: "+".join(options) or "defaults",
)  # fmt: skip
def test_is_torchs_module(reduction, shape, probable, options):
    """Same constructor, draws, state_dict, loss and gradients as torch 2.13's."""
    options = {"reduction": reduction, "out_features": shape, "dtype": torch.float64} | options
    modules = []
    for build in (elman.LinearCrossEntropyLoss, TORCHS):
        torch.manual_seed(0)
        modules.append(build(H, V, **options))
    states = [module.state_dict() for module in modules]
    assert [*states[0]] == [*states[1]]
    assert all(states[0][name].equal(states[1][name]) for name in states[0])

    x = given(5)[0]
    if probable:
        targets = torch.randn(5, V, *shape, dtype=torch.float64).softmax(1)
    else:
        targets = torch.randint(V, (5, *shape))
        targets[1] = -100
    got, want = (results(module, module, x, targets) for module in modules)
    for ours, theirs in zip(got, want, strict=True):
        assert_close(ours, theirs)


@pytest.mark.skipif(TORCHS is None, reason="torch.nn.LinearCrossEntropyLoss came with torch 2.13")
def test_has_torchs_arguments():
    """In torch's order, with torch's defaults; ``tie`` is ours."""
    parameters = [inspect.signature(c).parameters for c in (elman.LinearCrossEntropyLoss, TORCHS)]
    ours, theirs = ([(p.name, p.default, p.kind) for p in each.values()] for each in parameters)
    assert [entry for entry in ours if entry[0] != "tie"] == theirs
    calls = [inspect.signature(c.forward) for c in (elman.LinearCrossEntropyLoss, TORCHS)]
    assert [*calls[0].parameters] == [*calls[1].parameters]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ignored_rows_take_no_part(reduction):
    """Whatever is in them: their loss and their gradient are 0, and no mean counts them."""
    decoder = made(reduction=reduction)
    x, targets = given(8, ignored=(2, 5))
    expected = results(decoder, decoder, x, targets)
    with torch.no_grad():
        x[2], x[5] = torch.nan, torch.inf

    for got, want in zip(results(decoder, decoder, x, targets), expected, strict=True):
        assert torch.equal(got, want)
    assert not expected[1][[2, 5]].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("lead", ((0,), (3, 0), (4,)))
@pytest.mark.parametrize("smoothing", (0.0, 0.1))
def test_no_rows_at_all(reduction, lead, smoothing):
    """None, or all of them ignored: a mean of nothing is NaN as torch's, gradients are 0."""
    decoder = made(reduction=reduction, label_smoothing=smoothing)
    x, targets = given(*lead)
    loss = decoder(x, targets.fill_(-100))

    torch.testing.assert_close(loss, plain(decoder, x, targets), equal_nan=True)
    grads = torch.autograd.grad(loss.sum(), (x, *decoder.parameters()))
    assert not any(grad.any() for grad in grads)


def test_another_index_is_ignored():
    """Also one that is a class."""
    decoder = made(ignore_index=3)
    x, targets = given(9)
    targets[1] = targets[4] = 3

    check(decoder, x, targets)


def test_strides_are_free():
    """Transposed states, targets with steps between, a weight that is another's transpose."""
    decoder = made()
    x, targets = given(5, 4)
    check(decoder, x.detach().transpose(0, 1).requires_grad_(), targets.T)
    check(decoder, x[..., ::1, :], targets.repeat(1, 2)[:, ::2])
    decoder.linear.weight = nn.Parameter(torch.randn(H, V, dtype=torch.float64).T)
    check(decoder, x, targets)
    check(decoder, x, targets, lambda x, t: decoder(x, t.int()))


@pytest.mark.parametrize("trained", range(8))
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_only_some_learn(trained, reduction):
    """Frozen weights and states that want nothing: gradients of the others are the same."""
    decoder = made(reduction=reduction)
    x, targets = given(6)
    leaves = [x, *decoder.parameters()]
    expected = results(decoder, decoder, x, targets)[1:]
    for k, leaf in enumerate(leaves):
        leaf.requires_grad_(bool(trained >> k & 1))
    loss = decoder(x, targets)
    assert loss.requires_grad == bool(trained)
    if trained:
        loss.backward(loss.detach() + 2)
    for k, (leaf, want) in enumerate(zip(leaves, expected, strict=True)):
        if trained >> k & 1:
            assert_close(leaf.grad, want)
        else:
            assert leaf.grad is None


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_several_backwards(reduction):
    """Through one graph, and one after another into the same leaves: nothing is overwritten."""
    decoder = made(reduction=reduction)
    x, targets = given(6)
    expected = results(decoder, decoder, x, targets)
    loss = decoder(x, targets)
    leaves = (x, *decoder.parameters())
    for retain in (True, True, False):
        grads = torch.autograd.grad(loss, leaves, loss.detach() + 2, retain_graph=retain)
        for got, want in zip(grads, expected[1:], strict=True):
            assert_close(got, want)
            got.zero_()  # it is the caller's
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves, loss.detach())
    for _ in range(3):
        decoder(x, targets).sum().backward()
    once = torch.autograd.grad(decoder(x, targets).sum(), leaves)
    for leaf, grad in zip(leaves, once, strict=True):
        assert_close(leaf.grad, 3 * grad)


def test_weights_changed_in_between():
    """The gradients would be of other weights than those that the caller sees."""
    decoder = made()
    x, targets = given(6)
    loss = decoder(x, targets)
    with torch.no_grad():
        decoder.linear.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", (0.0, 0.2))
def test_gradients_of_gradients(reduction, smoothing):
    """Second derivatives, against torch's own and against finite differences."""
    decoder = made(reduction=reduction, label_smoothing=smoothing)
    x, targets = given(3, ignored=(1,))
    leaves = (x, *decoder.parameters())

    def second(call):
        loss = call(x, targets)
        first = torch.autograd.grad(loss, leaves, loss.detach() + 2, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    expected = second(lambda *args: plain(decoder, *args))
    for got, want in zip(second(decoder), expected, strict=True):
        assert_close(got, want)

    def call(x, weight, bias):
        return torch.func.functional_call(
            decoder, {"linear.weight": weight, "linear.bias": bias}, (x, targets)
        ).sum()

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transforms():
    """torch.func and forward-mode derivatives, of any order."""
    decoder = made()
    x, targets = given(4)
    x = x.detach()
    weights = {name: value.detach() for name, value in decoder.named_parameters()}

    def loss(call, weights, x, targets):
        if call:
            return torch.func.functional_call(decoder, weights, (x, targets))
        return F.cross_entropy(F.linear(x, *weights.values()), targets)

    def each(call):
        one = torch.func.vmap(
            torch.func.grad(lambda w, x, t: loss(call, w, x[None], t[None])), (None, 0, 0)
        )(weights, x, targets)
        whole = torch.func.jacrev(lambda x: loss(call, weights, x, targets))(x)
        forward = torch.func.jvp(lambda x: loss(call, weights, x, targets), (x,), (x + 1,))
        hessian = torch.func.hessian(lambda x: loss(call, weights, x, targets))(x)
        return [*one.values(), whole, *forward, hessian]

    for got, want in zip(each(True), each(False), strict=True):
        assert_close(got, want)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x + 1)
        tangent = torch.autograd.forward_ad.unpack_dual(decoder(dual, targets)).tangent
    assert_close(tangent, each(False)[-2])


def test_a_batch_of_cotangents():
    """autograd's own batching of a backward that began without it."""
    decoder = made(reduction="none")
    x, targets = given(4)
    cotangents = torch.randn(3, 4, dtype=torch.float64)

    def batch(call):
        return torch.autograd.grad(call(x, targets), x, cotangents, is_grads_batched=True)[0]

    assert_close(batch(decoder), batch(lambda *args: plain(decoder, *args)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("options", ({}, {"bias": False, "label_smoothing": 0.1}))
def test_compiled_in_one_graph(reduction, options):
    """torch.compile sees one operator; without gradients too; a wrong target is still named."""
    decoder = made(reduction=reduction, **options)
    call = torch.compile(decoder, fullgraph=True, backend="aot_eager")
    x, targets = given(4, 2, ignored=((1, 1),))

    check(decoder, x, targets, call)
    with torch.no_grad():
        assert_close(call(x, targets), plain(decoder, x, targets))
    with pytest.raises(InputError, match=r"target\[3, 1\] is 99, not one of"):
        call(x, targets.index_put((torch.tensor(3), torch.tensor(1)), torch.tensor(99)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_operator_keeps_torchs_rules(reduction):
    """torch's own checks of an operator: its fake, its autograd, what it may alias."""
    x, targets = given(4)
    decoder = made()
    wants = [True, False, True]
    weight, bias = decoder.linear.weight.detach(), decoder.linear.bias
    arguments = (x, weight, bias, targets, wants, -100, 0.1, reduction, "ieee")

    torch.library.opcheck(
        linear_cross_entropy,
        (*arguments, "auto"),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )


def test_autocast():
    """On a CPU its products round their operands where it has such products, by torch's own switch
    too; the loss is float32, as autocast's own."""
    decoder = made(dtype=torch.float32)
    x, targets = given(20, dtype=torch.float32)
    plain = results(decoder, decoder, x, targets)
    with elman.using(engine="reference"), torch.autocast("cpu", torch.bfloat16):
        rounded = results(decoder, decoder, x, targets)
    assert not torch.equal(rounded[1], plain[1])
    expected = plain if lacks_pairs() else rounded
    with torch.autocast("cpu", torch.bfloat16):
        found = results(decoder, decoder, x, targets)
        half = decoder(x.detach().bfloat16(), targets)
        call = torch.compile(decoder, fullgraph=True, backend="aot_eager")
        compiled_loss = results(call, decoder, x, targets)
    assert half.dtype == torch.float32
    assert abs(half.detach() - expected[0]) < 1e-2
    switch = torch.backends.mkldnn.matmul
    switch.fp32_precision = "bf16"
    try:
        switched = results(decoder, decoder, x, targets)
    finally:
        switch.fp32_precision = "none"
    for values in zip(found, switched, compiled_loss, expected, strict=True):
        for got in values[:-1]:
            assert_close(got, values[-1])


@pytest.mark.parametrize(
    "sizes",
    ((2, 1, 1), (3, 2, 9), (130, 33, 257), (67, 130, 131), (601, 5, 7), (301, 9, 2000)),
    ids=str,
)
def test_rounded_operands(sizes, monkeypatch):
    """The kernel agrees with an oracle that rounds the same operands, and not with one that leaves
    one of them as it is."""
    count, size, classes = sizes
    torch.manual_seed(count)
    values = [torch.randn(count, size), torch.randn(classes, size), torch.randn(classes)]
    targets, scale = torch.randint(classes, (count,)), torch.randn(count)
    wants = Wants(True, True, True)
    found = compiled.losses_and_gradients(Rows(*values, targets, 0.1, "bf16"), scale, wants)
    wide = Rows(*[value.double() for value in values], targets, 0.1, "bf16")
    expected = in_torch(wide, scale.double(), wants)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)
    if classes == 1:  # gradients by its logit are zero
        return
    exact = formulas._rounded
    for left_out in range(3):  # of x, weight and the gradients by logits
        calls = iter(range(99))
        monkeypatch.setattr(
            formulas,
            "_rounded",
            lambda v, rows, k=left_out, n=calls: v if next(n) == k else exact(v, rows),
        )
        other = in_torch(wide, scale.double(), wants)
        off = [float((a - b).norm() / b.norm()) for a, b in zip(other, expected, strict=True)]
        assert max(off) > 2e-4


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_half_precision(reduction):
    """bfloat16 throughout, as torch gives it back."""
    decoder = made(dtype=torch.bfloat16, reduction=reduction)
    x, targets = given(20, dtype=torch.bfloat16)
    found = results(decoder, decoder, x, targets)
    exact = copy.deepcopy(decoder).double()
    expected = results(exact, exact, x.detach().double().requires_grad_(), targets)
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == torch.bfloat16
        assert (got - want).norm() < GRADIENT[torch.bfloat16] * want.norm()


def test_a_tied_weight_is_one_weight():
    """Of an embedding: it learns from both uses, is drawn by the embedding, stays one in copies."""
    embedding = nn.Embedding(V, H, dtype=torch.float64)
    before = embedding.weight.detach().clone()
    decoder = made(tie=embedding)
    model = nn.ModuleList([embedding, decoder])
    words = torch.arange(5)

    assert decoder.linear.weight is embedding.weight
    assert torch.equal(embedding.weight, before)
    decoder(embedding(words), words).backward()
    both = embedding.weight.grad.clone()
    embedding.weight.grad = None
    plain(decoder, embedding(words), words).backward()
    assert_close(both, embedding.weight.grad)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied[1].linear.weight is copied[0].weight
    assert (
        elman.LinearCrossEntropyLoss(H, V, tie=embedding.weight).linear.weight is embedding.weight
    )
    assert "tied" in repr(decoder)


def test_whole_modules_in_files():
    """Loaded again with weights alone allowed, and elman's own names."""
    decoder = made(reduction="sum", label_smoothing=0.1)
    x, targets = given(6)
    file = io.BytesIO()
    torch.save(decoder, file)
    file.seek(0)
    with torch.serialization.safe_globals([*elman.safe_globals(), nn.Linear]):
        loaded = torch.load(file, weights_only=True)

    assert torch.equal(loaded(x, targets), decoder(x, targets))
    assert repr(loaded) == repr(decoder)
    assert "6, 11, reduction='sum', label_smoothing=0.1" in repr(decoder)


def test_on_the_meta_device():
    """Shapes alone."""
    decoder = elman.LinearCrossEntropyLoss(H, V, device="meta")
    x = torch.empty(3, 2, H, device="meta")
    assert decoder(x, torch.empty(3, 2, dtype=torch.long, device="meta")).shape == ()


def test_nothing_is_left_behind():
    """What was computed in advance goes with the graph, and after the backward that takes it."""
    decoder = made()
    x, targets = given(6)
    loss = decoder(x, targets)
    early = weakref.ref(loss.grad_fn.gradients[1])
    del loss
    assert early() is None
    loss = decoder(x, targets)
    loss.backward()
    assert loss.grad_fn.gradients is None


WRONG = {
    "class": (lambda d, x, t: d(x, t.index_fill(0, torch.tensor(1), V)), InputError,
              r"target\[1, 0\] is 11, not one of 0 … 10\n  hint  .*ignore_index=11"),
    "negative": (lambda d, x, t: d(x, t - 50), InputError, r"target\[0, 0\] is -"),
    "scalar": (lambda d, x, t: d(x[0, 0], torch.tensor(-1)), InputError, "target is -1, not"),
    "width": (lambda d, x, t: d(x[..., 1:], t), ShapeError, r"\[\.\.\., 6\], got \[3, 2, 5\]"),
    "rows": (lambda d, x, t: d(x, t[1:]), ShapeError, r"is \[3, 2\] for input .*, got \[2, 2\]"),
    "float": (lambda d, x, t: d(x, t.double()), ShapeError, r"probabilities, is \[3, 2, 11\] for"),
    "complex": (lambda d, x, t: d(x, t.cfloat()), InputError, "integers or probabilities, got"),
    "ignored": (lambda d, x, t: made(ignore_index=1)(x, d.logits(x)), InputError, "is a class"),
    "weight": (lambda *_: made(weight=torch.ones(V + 1)), ShapeError, r"\[11\], got \[12\]"),
    "options": (lambda *_: made(options={}), InputError, "leave them out"),
    "dtype": (lambda d, x, t: d(x.float(), t), InputError, r"decoder\(x.to\(torch.float64\)"),
    "list": (lambda d, x, t: d(x.tolist(), t), InputError, "input of Linear.* is a tensor"),
    "sparse": (lambda d, x, t: d(x.to_sparse(), t), InputError, "x.to_dense"),
    "device": (lambda d, x, t: d(x.to("meta"), t), InputError, "input is on meta"),
    "hidden": (lambda *_: made(in_features=0), InputError, "in_features must be at least 1"),
    "bare": (lambda *_: made(num_classes=2.5), InputError, "num_classes should be of"),
    "smooth": (lambda *_: made(label_smoothing=1.5), InputError, "label_smoothing must be in"),
    "average": (lambda *_: made(reduction="avg"), InputError, "'mean', 'sum' or 'none', got 'avg'"),
    "tie": (lambda *_: made(tie=nn.Linear(H, V)), InputError, "nn.Embedding or its weight"),
    "tied": (lambda *_: made(tie=nn.Embedding(H, V)), ShapeError, r"\[11, 6\], got \[6, 11\]"),
    "type": (lambda *_: made(tie=nn.Embedding(V, H)), InputError, "dtype is torch.float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_told(name):
    """What is wrong, where, and what would be right."""
    call, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        call(made(), *given(3, 2))


def test_a_named_engine_does_not_step_aside():
    """bfloat16 has no kernel; engines without one of their own leave it to torch's operations."""
    decoder = made(dtype=torch.bfloat16)
    x, targets = given(4, dtype=torch.bfloat16)
    with elman.using(engine="c"), pytest.raises(EngineError, match="dtype bfloat16 on cpu"):
        decoder(x, targets)
    with elman.using(engine="aten"):
        assert decoder(x, targets).isfinite()


def test_a_compiler_that_refuses(tmp_path, monkeypatch, empty_cache):
    """Told once, and torch's operations run; an engine asked for by name says why it cannot."""
    compiled._library.cache_clear()
    compiler(tmp_path, monkeypatch, "echo error: no such thing; exit 1")
    decoder = made()
    try:
        with pytest.warns(UserWarning, match=r"torch's operations: fake 1\.0 refused"):
            check(decoder, *given(5))
        check(decoder, *given(5))
        with elman.using(engine="c"), pytest.raises(BuildError, match=r"fake 1\.0 refused"):
            decoder(*given(5))
    finally:
        compiled._library.cache_clear()


def test_a_kernel_that_computes_something_else(monkeypatch):
    """It never runs: torch's operations do; asked for by name, it is an error."""
    compiled._library.cache_clear()
    right = compiled.file("cross_entropy.h")
    monkeypatch.setattr(
        compiled, "file", lambda name: right.replace("z[v * lanes + i] -=", "z[0] -=")
    )
    decoder = made()
    try:
        with pytest.warns(UserWarning, match="x of a decoder's loss is off by"):
            check(decoder, *given(5))
        with elman.using(engine="c"), pytest.raises(DisagreementError, match="does not agree"):
            decoder(*given(5))
    finally:
        compiled._library.cache_clear()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_single_row(reduction):
    """A vector [H] and its class: the loss of a batch of one."""
    decoder = made(reduction=reduction)
    x, target = torch.randn(H, dtype=torch.float64), torch.tensor(1)
    assert_close(decoder(x, target), decoder(x[None], target[None]).squeeze())
