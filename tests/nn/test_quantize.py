"""The option ``quantize`` of modules: ranges, files, gradients, and what it does not go with."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import elman
from elman import cells
from elman.errors import EngineError, InputError
from elman.nn.call.weights import Grid, exponents, round_matrix
from elman.ops import abs, exp, relu, sqrt, tanh
from helpers import forced, need_engine

T, B = 15, 4


def x_of(size=6, scale=1.0):
    return scale * torch.randn(T, B, size, generator=torch.Generator().manual_seed(1))


def ready(make=lambda **k: elman.GRU(6, 10, 2, **k), **options):
    torch.manual_seed(0)
    net = make(quantize=8, **options)
    return net.calibrate(x_of().transpose(0, 1) if net.batch_first else x_of())


def test_matrices_are_rounded_by_row():
    """Whole numbers of eight bits times a power of two; rows of zeros; gradients as if there were
    no rounding."""
    W = torch.randn(5, 9) * torch.tensor([1.0, 0.3, 1e-3, 0.0, 7.0]).unsqueeze(1)
    W.requires_grad_()
    grid = Grid(8, True)
    rounded, e = round_matrix(W, grid), exponents(W.detach(), grid)
    n = rounded.detach() / 2.0 ** e.unsqueeze(1)
    assert torch.equal(n, n.round())
    assert float(n.abs().max()) <= 127
    assert int(e.max() - e.min()) <= 6
    assert float(n.abs().amax(1)[[0, 1, 4]].min()) > 63  # no bit is wasted
    (rounded * torch.arange(9.0)).sum().backward()
    assert torch.equal(W.grad, torch.arange(9.0).expand(5, 9))
    exact = torch.tensor([[127.0, -64.0]])  # already whole
    assert torch.equal(round_matrix(exact, grid), exact)
    assert torch.equal(round_matrix(torch.randn(0, 3), grid), torch.zeros(0, 3))


def test_ranges_are_needed():
    """A call before ``calibrate`` says what to write; calibrating says what is wrong."""
    net = elman.Recurrent(cells.gru, 6, 10, quantize=8)
    with pytest.raises(InputError, match=r"net\.calibrate"):
        net(x_of())
    with pytest.raises(EngineError, match=r"net\.calibrate"):
        elman.GRU(6, 10, quantize=8)(x_of())
    with pytest.raises(InputError, match="with quantize="):
        elman.GRU(6, 10).calibrate(x_of())
    with pytest.raises(InputError, match="a step of a sample"):
        net.calibrate(x_of()[:, :0])
    with pytest.raises(InputError, match="not finite"):
        net.calibrate(x_of() / 0)
    packed = torch.nn.utils.rnn.pack_sequence([torch.randn(5, 6), torch.randn(3, 6)])
    with pytest.raises(InputError, match="padded"):
        net.calibrate(packed)
    assert net.ranges_l0.isnan().all()
    net.calibrate(x_of(), x_of(scale=3.0))
    wide = net.ranges_l0.clone()
    net.calibrate(x_of())
    assert float(net.ranges_l0[0].abs().max()) < float(wide[0].abs().max())


def test_what_has_no_integers_is_refused():
    """By the option or operation, when the module is made."""
    for bits in (1, 9, 0, True, "8", 8.0, elman.Bits(states=17), elman.Bits(weights=1)):
        with pytest.raises(InputError, match="quantize"):
            elman.GRU(6, 10, quantize=bits)
    further = ({"heads": 2}, {"zoneout": 0.1}, {"recurrent_dropout": 0.1}, {"residual": True})
    for options in further:
        with pytest.raises(InputError, match="quantize="):
            elman.GRU(6, 10, 2, quantize=8, **options)
    for cell, words in ((cells.onlstm, "cumsum"), (cells.delta_net, "")):
        with pytest.raises(InputError, match=rf"in integers: .*{words}"):
            elman.Recurrent(cell, 6, 10, quantize=8, **({"K": 6} if not words else {}))
    with pytest.raises(InputError, match=r"R.* sums of 1041 terms"):
        elman.Recurrent(cells.gru, 6, 1041, quantize=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: elman.GRU(6, 10, 2, bidirectional=True, **k),
        lambda **k: elman.LSTM(6, 10, batch_first=True, dropout=0.0, **k),
        lambda **k: elman.Recurrent(cells.mingru, 6, 6, 2, **k),
        lambda **k: elman.RNN(6, 10, learn_initial=True, clip_gradient=1.0, **k),
    ],
)
def test_modules_come_back(make):
    """From copies, files of weights and files of modules, with the same bits; in float64, too."""
    net = ready(make)
    x = x_of().transpose(0, 1) if net.batch_first else x_of()
    with torch.no_grad():
        want = net(x)[0]
        again = make(quantize=8)
        again.load_state_dict(net.state_dict())
        assert torch.equal(again(x)[0], want)
        assert torch.equal(copy.deepcopy(net)(x)[0], want)
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x)[0], want)
        assert torch.equal(copy.deepcopy(net).double()(x.double())[0], want.double())
        with forced("reference"):
            assert torch.equal(net(x)[0], want)


def test_gradients_train():
    """On engine c as on the reference, of every weight; and a loss falls."""
    need_engine("c")
    net, x = ready(), x_of()
    grads = []
    for engine in ("c", "reference"):
        net.zero_grad()
        with forced(engine):
            net(x)[0].pow(2).mean().backward()
        grads.append({name: p.grad.clone() for name, p in net.named_parameters()})
    for name, grad in grads[0].items():
        assert float(grad.abs().max()) > 0
        torch.testing.assert_close(grad, grads[1][name], rtol=1e-4, atol=1e-6, msg=name)
    target = torch.sin(x.cumsum(0))[..., :1].expand(T, B, 10) * 0.5
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = (net(x)[0] - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_iterations_are_refused():
    """By ``deer``, which comes near to the numbers, and by nothing else."""
    net = ready(lambda **k: elman.Recurrent(cells.mingru, 6, 2, **k))
    net.engine = "deer"
    with pytest.raises(EngineError, match="has integers"):
        net(x_of())


def test_options_of_calls():
    """Masks, resets, lengths, given states and single steps are those of the reference."""
    net, x = ready(), x_of()
    mask = torch.rand(T, B, generator=torch.Generator().manual_seed(0)) < 0.7
    state = torch.randn(2, B, 10)
    with torch.no_grad():
        for options in ({"mask": mask}, {"reset": ~mask}, {"lengths": [15, 3, 9, 1]}):
            results = []
            for engine in ("c", "reference"):
                with forced(engine):
                    results.append(net(x, state, **options)[0])
            assert torch.equal(*results)
        out, last = net(x)
        steps, after = [], None
        for row in x:
            y, after = net.step(row, after)
            steps.append(y)
        assert torch.equal(torch.stack(steps), out)
        assert torch.equal(after, last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_are_exact(dtype):
    """As torch computes them, in vectors and alone."""
    for first, last in ((-60, 61), (-3, 0), (7, 8)):
        e = torch.arange(first, last)
        exact = torch.tensor([2.0**k for k in e.tolist()], dtype=dtype)
        assert torch.equal(torch.exp2(e.to(dtype)), exact)


def test_onnx_is_refused(tmp_path):
    """By a line that names what has it."""
    pytest.importorskip("onnxscript")
    with pytest.raises(InputError, match="quantize= has no ONNX"):
        elman.export.to_onnx(ready(), tmp_path / "net.onnx")


def test_half_precision():
    """Products in bfloat16 change no bit; autocast changes none of the module; a module in
    bfloat16 is refused."""
    net, x = ready(), x_of()
    with torch.no_grad():
        want = net(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(net(x)[0], want.bfloat16())
        with pytest.raises((InputError, EngineError)):
            copy.deepcopy(net).bfloat16()(x.bfloat16())


def test_programs_that_are_compiled():
    """torch.compile, torch.func and second derivatives run on the same numbers."""
    net, x = ready(lambda **k: elman.GRU(6, 10, **k)), x_of()
    with torch.no_grad():
        want = net(x)[0]
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x)[0].detach(), want)
    values = torch.vmap(lambda v: net(v)[0], 1, 1)(x)
    assert torch.equal(values.detach(), want)


def test_gradients_are_finite():
    """Of a root whose rounded argument is 0; results that grow fast stay in sight."""

    @elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
    def roots(x, h, W, R, b):
        return tanh(sqrt(relu(W @ x + R @ h)) + b) + exp(-10.0 - abs(W @ x))

    torch.manual_seed(0)
    net = elman.Recurrent(roots, 6, 10, quantize=8).calibrate(x_of())
    net(x_of())[0].sum().backward()
    for name, p in net.named_parameters():
        assert bool(p.grad.isfinite().all()), name


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-14, 1e5, 1e20])
def test_sizes_of_values(scale):
    """From zeros to what no integers reach, which is refused."""
    torch.manual_seed(0)
    net = elman.RNN(6, 10, quantize=8)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(scale)
        if scale > 1e10:
            with pytest.raises(InputError, match="scale the inputs"):
                net.calibrate(x_of())
            return
        net.calibrate(x_of())
        single = net(x_of())[0]
        assert torch.equal(net.double()(x_of().double())[0], single.double())


def test_casts_keep_the_ranges():
    """They are the formula, and stay in float32."""
    net, x = ready(), x_of()
    again = copy.deepcopy(net).half().float()
    assert torch.equal(again.ranges_l0, net.ranges_l0)
    with torch.no_grad():
        assert torch.equal(again(x)[0], copy.deepcopy(again)(x)[0])
    assert net.to("meta").ranges_l0.device.type == "meta"
