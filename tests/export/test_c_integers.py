"""Modules of integers as C: every number is the module's, and no instruction is of floats."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from torch import nn

import elman
from elman import cells, ops
from elman.errors import InputError
from elman.export import to_c
from exported_c import CC
from helpers import forced
from kernels import cell_from
from library_sizes import DIMS
from products import every
from random_cells import Drawn, drawn_cells
from random_models import random_model

pytestmark = pytest.mark.skipif(CC is None, reason="no C compiler")
STRICT = "-O1 -std=c99 -pedantic -Wall -Wextra -Werror -Wshadow -Wconversion -Wno-sign-conversion"
STRICT += " -ffreestanding -fPIC"
SANITIZED = "-fsanitize=undefined,address -fno-sanitize-recover"
CELLS = [
    cells.gru, cells.lstm, cells.mingru, cells.ligru, cells.cfc, cells.rlif, cells.lmu,
    cells.gru_layernorm, cells.izhikevich, cells.spiking_lstm, cells.s5, cells.mogrifier,
]  # fmt: skip


def check(folder) -> None:
    """Build strictly, for whole numbers alone, and compare; then with sanitizers."""
    integers = "-mgeneral-regs-only" if platform.machine() in ("x86_64", "aarch64") else ""
    for flags, more in ((f"{STRICT} {integers}", ""), (f"{STRICT} {SANITIZED}", SANITIZED)):
        words = ["make", "-C", str(folder), "clean", "check", "ARCH=", f"CFLAGS={flags}"]
        done = subprocess.run(
            [*words, f"CC={CC} {more}"], capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "\n0 of " in done.stdout


def calibrated(net, T=30):
    """The module, calibrated with random inputs."""
    source = torch.Generator().manual_seed(2)
    x = tuple(torch.randn(T, 3, *s, generator=source) for s in net.runtime.input_sizes)
    return net.calibrate(x if len(x) > 1 else x[0])


@pytest.mark.parametrize("cell", every(4, CELLS))
def test_cells_of_the_library(cell, tmp_path):
    """Norms, spikes, clipped states, constants; inputs over all of their range."""
    torch.manual_seed(0)
    sizes = {"input_size": 6, "hidden_size": 6} | DIMS.get(cell.name, {})
    to_c(calibrated(elman.Recurrent(cell, **sizes, quantize=8)), tmp_path)
    check(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: elman.GRU(5, 7, 3, quantize=8),
        lambda: elman.LSTM(5, 7, proj_size=3, quantize=elman.Bits(4, 6, 12)),
        lambda: elman.RNN(5, 7, learn_initial=True, nonlinearity="relu", quantize=8),
        lambda: elman.Recurrent([cells.gru, cells.mingru], 5, [7, 4], quantize=8),
    ],
)
def test_layers(make, tmp_path):
    """Several, of several kinds and bits; initial states that are learned."""
    torch.manual_seed(0)
    net = make()
    with torch.no_grad():
        for value in net._initial():
            value.normal_()
    to_c(calibrated(net), tmp_path)
    check(tmp_path)


@elman.cell(input="x[I]", state="h[H], s[H], r[H]", weights="W[H, I], R[H, H]")
def delayed(x, h, s, r, W, R):
    """Each state becomes another."""
    return ops.tanh(W @ x + R @ r), h, s


@elman.cell(input="x[I]", state="h[H], s[H], p[H], q[H]", output="y[H]", weights="W[H, I]")
def circles(x, h, s, p, q, W):
    """States that change places."""
    return h + W @ x, s, h, q, p


@elman.cell(
    input="int16_t[I], x_exponent[I], m_step, i", state="n[H]", weights="sum[H, I], v0[H, H]"
)
def clashing(int16_t, x_exponent, m_step, i, n, sum, v0):
    """Names that C's text has, too."""
    return ops.tanh(sum @ int16_t + sum @ x_exponent + v0 @ n) * m_step + i


@pytest.mark.parametrize("cell", [delayed, circles, clashing])
def test_cells_of_odd_states_and_names(cell, tmp_path):
    """States are read before they change."""
    torch.manual_seed(0)
    to_c(calibrated(elman.Recurrent(cell, 5, 6, quantize=8)), tmp_path, "m")
    check(tmp_path)


@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=[*HealthCheck])
@given(drawn=drawn_cells())
def test_random_cells(drawn: Drawn, tmp_path_factory):
    """Formulas nobody has written."""
    torch.manual_seed(0)
    dims = {"P": drawn.P} if "P" in drawn.text.split("def ")[0] else {}
    folder = tmp_path_factory.mktemp("c")
    try:
        cell = cell_from(drawn.text)
        net = calibrated(elman.Recurrent(cell, drawn.I, drawn.H, **dims, quantize=8))
        to_c(net, folder)
    except InputError:
        assume(False)
    check(folder)


@pytest.mark.parametrize("seed", every(20, range(300)))
def test_random_models(seed, tmp_path):
    """Convolutions, norms, pools, linear and recurrent layers in any order."""
    model, x, _ = random_model(seed)
    source = torch.Generator().manual_seed(seed)
    example = torch.randn(2, 48, x.shape[-1], generator=source)
    try:
        to_c(model, tmp_path, example=example, quantize=8)
    except InputError as error:  # as some three of a hundred are
        if not re.search("of its formula differs|needs more than 32 bits", str(error)):
            raise
        pytest.skip(str(error))
    check(tmp_path)


class Spotter(nn.Module):
    """A strided convolution, a norm, a GRU and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(6, 12, 5, stride=2)
        self.norm, self.gru = nn.BatchNorm1d(12), nn.GRU(12, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.norm(self.front(x.transpose(1, 2)))).transpose(1, 2)
        return self.head(self.gru(x)[0])


def test_model_is_near_its_floats(tmp_path):
    """What a model computes in integers is within a few per cent of float32, step by step in C."""
    torch.manual_seed(0)
    model, x = Spotter().eval(), torch.randn(8, 61, 6)
    made = to_c(model, tmp_path, "spotter", example=x, quantize=8)
    assert (made.rows, made.inputs) == (2, {"x": 12})
    subprocess.run(["make", "-C", str(tmp_path), "libspotter.so"], check=True, capture_output=True)
    own = ctypes.CDLL(str(tmp_path / "libspotter.so"))
    state = (ctypes.c_uint8 * own.spotter_bytes())()
    own.spotter_init(state)
    whole = (x[0, :60] * 2.0 ** -made.exponents["x"]).round().clamp(-32767, 32767)
    rows = whole.to(torch.int16).reshape(30, 12).contiguous()
    kind = (tmp_path / "spotter.h").read_text().partition("_t *y")[0].rpartition("int")[2]
    y = torch.zeros(30, 4, dtype=getattr(torch, f"int{kind}"))
    for t in range(30):
        own.spotter_step(
            state, ctypes.c_void_p(rows[t].data_ptr()), ctypes.c_void_p(y[t].data_ptr())
        )
    got = y.float() * 2.0 ** made.exponents["y"]
    with torch.no_grad():
        want = model(x[:1, :60])[0]
    got = got[made.late :][: len(want)]
    assert float((got - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt()) < 0.1


class Ends(nn.Module):
    """Norms of the mean and the last of what a GRU returns, as classifiers of runs have them."""

    def __init__(self):
        super().__init__()
        self.gru, self.norm = nn.GRU(3, 12, batch_first=True), nn.LayerNorm(24)

    def forward(self, x):
        h = self.gru(x)[0]
        return self.norm(torch.cat((h.mean(1), h[:, -1]), -1))


def test_norms_of_means(tmp_path):
    """Their small numbers have bits, though a sum over steps could be far larger."""
    torch.manual_seed(0)
    model, x = Ends().eval(), torch.randn(32, 15, 3)
    y = to_c(model, tmp_path, example=x, quantize=8).run(x)
    with torch.no_grad():
        want = torch.stack([model(x[:, : t + 1]) for t in range(15)], 1)
    assert float((y - want).norm() / want.norm()) < 0.1
    check(tmp_path)


def test_far_from_floats_is_told(tmp_path):
    """A model that integers of few bits cannot be."""
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=r"are off by \d+% of their size on the example"):
        to_c(elman.GRU(3, 5), tmp_path, example=torch.randn(9, 4, 3), quantize=elman.Bits(2, 2, 8))


def test_numbers_of_words(tmp_path):
    """An embedding takes those of all its rows, whatever the example has."""
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(40, 6), elman.GRU(6, 8), First(), nn.Linear(8, 3)).eval()
    made = to_c(words, tmp_path, example=torch.zeros(20, 2, dtype=torch.int64), quantize=8)
    assert 39 * 2.0 ** -made.exponents["input"] < 2**15
    check(tmp_path)


def test_what_is_refused(tmp_path):
    """By name, before a file is written."""
    net = elman.GRU(4, 8, quantize=8)
    with pytest.raises(InputError, match=r"net\.calibrate"):
        to_c(net, tmp_path / "a")
    with pytest.raises(InputError, match="example="):
        to_c(elman.GRU(4, 8), tmp_path / "a", quantize=8)
    with pytest.raises(InputError, match="quantize= of its own"):
        to_c(calibrated(net), tmp_path / "a", example=torch.randn(9, 2, 4), quantize=8)
    assert not (tmp_path / "a").exists()
    to_c(elman.GRU(4, 8), tmp_path / "b", example=torch.randn(9, 2, 4), quantize=8)
    check(tmp_path / "b")


def test_states_of_a_stream(tmp_path):
    """A module that runs in chunks computes what it does at once."""
    torch.manual_seed(0)
    net = calibrated(elman.LSTM(4, 9, 2, quantize=8))
    x = torch.randn(20, 2, 4)
    with forced("reference"), torch.no_grad():
        first, state = net(x[:7])
        second, _ = net(x[7:], state)
        assert torch.equal(torch.cat([first, second]), net(x)[0])


def test_a_layer_of_integers_among_others(tmp_path):
    """A model in float32 would not compute what its layer was trained for."""
    net = elman.GRU(3, 4, batch_first=True, quantize=8).calibrate(torch.randn(2, 9, 3))
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), net, First(), torch.nn.Linear(4, 2)).eval()
    x = torch.randn(2, 9, 3)
    with pytest.raises(InputError, match=r"1 has quantize=(.|\n)*example=x, quantize=8"):
        to_c(model, tmp_path, "m", example=x)
    assert to_c(model, tmp_path, "m", example=x, quantize=8).exponents


class First(torch.nn.Module):
    """The first of several results."""

    def forward(self, results):
        return results[0]
