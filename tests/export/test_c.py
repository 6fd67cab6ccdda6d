"""Exported C beside the module it was made of."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

import elman
from elman import cells, ops
from elman.cli.app import build_app
from elman.engines.c.spelling.ops import SPELL
from elman.errors import EngineError, InputError, RunError
from elman.export import to_c
from elman.interchange.c.step import tile_matrix
from elman.interchange.weights.state_dict import load_weights, read_state_dict
from exported_c import CC, STRICT, by_c, check, drawn, expected, library
from functions_of_one import FUNCTIONS, torchs
from kernels import cell_from
from library_sizes import DIMS
from matrix_parts import PARTS, PARTS_SIZES
from products import every, some_of
from random_matrices import cells_of_weights, matrix_cells
from unseen import UNSEEN, of_heads

needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler")


@needs_compiler
@pytest.mark.parametrize("cell", every(2, cells.ALL))
def test_every_cell(cell, tmp_path):
    """Outputs of some steps, of sizes that fill no vector."""
    torch.manual_seed(0)
    sizes = {"input_size": 6, "hidden_size": 6} | DIMS.get(cell.name, {})
    check(elman.Recurrent(cell, **sizes), tmp_path)


@elman.cell(input="x[V]", static="g[V]", state="S[V, V]", output="y[V], s, Y[V, V]")
def several(x, g, S):
    """Several outputs of each head, of all kinds."""
    S = 0.5 * S + ops.outer(ops.tanh(x), g)
    return S @ x, ops.sum(x), S, S


@needs_compiler
def test_heads_of_matrices(tmp_path):
    """A state for each head, in several layers; outputs of a head lie side by side."""
    sizes = {"heads": 3, "residual": True}
    check(elman.Recurrent(cells.delta_net, 15, 15, 2, **sizes), tmp_path / "layers")
    net = elman.Recurrent(several, 15, 15, heads=3)
    check(net, tmp_path / "outputs")
    header = (tmp_path / "outputs/model.h").read_text()
    assert "x [15], g [15] -> y [93]: y [5], s [1], Y [25] of each head */" in header
    for name in ("layers", "outputs"):
        subprocess.run(["make", "-C", str(tmp_path / name), "check"], check=True, timeout=100)


@needs_compiler
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("cell", every(2, PARTS))
def test_axes_of_several_parts(cell, lanes, tmp_path):
    """Parts whose ends lie within a vector."""
    torch.manual_seed(0)
    check(elman.Recurrent(cell, **PARTS_SIZES[cell.name]), tmp_path, lanes)


@needs_compiler
@settings(max_examples=6, derandomize=True, suppress_health_check=[*HealthCheck])
@given(drawn=matrix_cells())
def test_random_matrices(drawn, tmp_path_factory):
    """Cells nobody has written: matrices as states, inputs, outputs and weights; products,
    transposes and sums of them; from states that are not zero."""
    check_matrices(drawn, tmp_path_factory.mktemp("c"))


@needs_compiler
@settings(max_examples=4, derandomize=True, suppress_health_check=[*HealthCheck])
@given(drawn=cells_of_weights())
def test_random_expressions_of_weights(drawn, tmp_path_factory):
    """Products, sums along an axis, softmaxes … of weights alone are computed before, with the
    sizes of their dims."""
    check_matrices(drawn, tmp_path_factory.mktemp("c"))


def check_matrices(drawn, folder):
    torch.manual_seed(0)
    sizes = {"K": drawn.I, "V": drawn.H}
    net = elman.Recurrent(cell_from(drawn.text), drawn.I, drawn.H, **sizes, learn_initial=True)
    for value in net._initial():
        torch.nn.init.normal_(value)
    lanes = [1, 4, 8, 16][(drawn.I + drawn.H) % 4]
    check(net, folder, lanes, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize(
    "cell, lanes", some_of([c for c in UNSEEN if UNSEEN[c].H], [1, 16], together=1)
)
def test_odd_cells(cell, lanes, tmp_path):
    """Groups of units, running sums, states that only hold a value, scalars, low ranks: from
    states that are not zero."""
    torch.manual_seed(0)
    sizes = UNSEEN[cell]
    constants = {str(name).partition("[")[0]: 0.1 for name in cell.constants}
    more = dict(sizes.more) | constants
    net = elman.Recurrent(cell, sizes.I, sizes.H, learn_initial=True, **more)
    for value in net._initial():
        torch.nn.init.normal_(value)
    check(net, tmp_path, lanes)


@needs_compiler
@pytest.mark.parametrize(
    "sizes, lanes", some_of([(1, 1), (7, 64), (33, 81)], [1, 4, 8, 16], together=1)
)
def test_lanes_and_sizes(sizes, lanes, tmp_path):
    """Whole tiles, parts of tiles, and single rows, one number at a time or vectors."""
    I, H = sizes
    torch.manual_seed(1)
    check(elman.LSTM(I, H), tmp_path, lanes)


OPTIONS = {
    "stack": lambda: elman.GRU(6, 10, num_layers=3),
    "relu": lambda: elman.RNN(4, 9, nonlinearity="relu", bias=False),
    "projected": lambda: elman.LSTM(6, 12, proj_size=5, num_layers=2),
    "heads": lambda: elman.GRU(8, 12, heads=4),
    "norms of heads": lambda: elman.Recurrent(cells.lstm_layernorm, 8, 12, 2, heads=4),
    "scalars of heads": lambda: elman.Recurrent(of_heads, 8, 12, 2, heads=4),
    "residual": lambda: elman.Recurrent(cells.slstm, 6, 6, 3, residual=True),
    "dropout": lambda: elman.GRU(5, 6, dropout=0.5, num_layers=2, batch_first=True),
}


@needs_compiler
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, tmp_path):
    """Layers, heads, residual connections; dropout is off."""
    torch.manual_seed(2)
    net = OPTIONS[name]()
    inputs = drawn(net)
    got = by_c(net, tmp_path, inputs)
    net.batch_first = False
    torch.testing.assert_close(got, expected(net, inputs), rtol=1e-4, atol=1e-5)


@elman.cell(input="x[I], m", state="h[2H], n", weights="W[2H, I], u[2H], M[2H, 2H], s")
def many(x, m, h, n, W, u, M, s):
    a, b = ops.split(ops.erf(W @ x + m * h) + ops.sin((M * M.T) @ h) * ops.cos(h), 2)
    v = ops.softmax(ops.concat(a, b)) + u * ops.where(n > s, h, -h)
    k = ops.clip(ops.log(1.0 + ops.exp(n)) + ops.softplus(ops.mean(v)), -3.0, 3.0)
    return ops.concat(a, b) * 0.5 + v / ops.sqrt(1.0 + ops.var(v)), k


@needs_compiler
def test_several_inputs_scalars_and_weights_of_weights(tmp_path):
    """What is computed of weights alone is computed before; scalars are inputs and states."""
    torch.manual_seed(3)
    check(elman.Recurrent(many, 3, 10), tmp_path)


@elman.cell(
    input="x[I]",
    static="s[S], g",
    state="h[H], c[H]",
    weights="W[H, I], R[H, H], V[H, S]",
    constants="mask[H, H], p[H]",
)
def gated(x, s, g, h, c, W, R, V, mask, p):
    i = ops.sigmoid(V @ s + p * g)
    c = c + i * ops.tanh(W @ x + (R * mask) @ h)
    return ops.tanh(c), c


@needs_compiler
@pytest.mark.parametrize("layers", [1, 2])
def test_static_inputs_and_constants(layers, tmp_path):
    """Static inputs go to every step; constants are arrays like weights."""
    torch.manual_seed(4)
    given = {"mask": torch.eye(7), "p": torch.rand(7), "S": 3}
    net = elman.Recurrent(gated, 5, 7, layers, **given)
    check(net, tmp_path)
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, check=False)
    assert done.returncode == 0


@needs_compiler
@pytest.mark.parametrize(
    "learned", [pytest.param(False, marks=pytest.mark.long), True], ids=["zeros", "learned"]
)
def test_layers_of_their_own(learned, tmp_path):
    """Cells and sizes of each layer; inputs go to the layers that name them."""
    torch.manual_seed(5)
    given = {"mask": torch.eye(7), "p": torch.rand(7), "S": 3}
    one, sizes = [cells.gru, gated, cells.lstm, many], [6, 7, 4, 10]
    net = elman.Recurrent(one, 5, sizes, learn_initial=learned, **given)
    for value in net._initial():
        torch.nn.init.normal_(value)
    assert [name for name, _ in net.runtime.signature.inputs] == ["x", "m"]
    check(net, tmp_path)
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, check=False)
    assert done.returncode == 0


@elman.cell(
    input="x[I]",
    state="h[H], k",
    weights="W[H, I], R[H, H]",
    output="y[H], m, s[2H]",
    init={"k": 0.75},
)
def telling(x, h, k, W, R):
    new = ops.tanh(W @ x + R @ h + k)
    return new * 2, ops.sum(h), ops.concat(h, new), new, ops.mean(new)


@needs_compiler
@pytest.mark.parametrize("learned", [False, True], ids=["as the cell says", "learned"])
def test_several_outputs_and_initial_states(learned, tmp_path):
    """Outputs lie one behind another; a sequence begins with what was learned, or the cell says."""
    torch.manual_seed(6)
    net = elman.Recurrent(telling, 3, 5, learn_initial=learned)
    for value in net._initial() if learned else ():
        torch.nn.init.normal_(value)
    inputs = drawn(net)
    got = by_c(net, tmp_path, inputs)
    assert "-> y [16]: y [5], m [1], s [10] */" in (tmp_path / "model.h").read_text()
    with torch.no_grad(), elman.using(engine="reference"):
        out = net.eval()(inputs[0].unsqueeze(1))[0]
    want = torch.cat([value.reshape(len(got), -1) for value in out], 1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, check=False)
    assert done.returncode == 0


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], V[I, H]", output="y[I], g[H]")
def returning(x, h, W, V):
    h = ops.tanh(W @ x + h)
    return V @ h, h, h


@needs_compiler
def test_residual_is_of_the_first_output(tmp_path):
    """The others of the last layer are its own."""
    torch.manual_seed(6)
    net = elman.Recurrent(returning, 4, [6, 9], residual=True)
    inputs = drawn(net)
    with torch.no_grad(), elman.using(engine="reference"):
        out = net.eval()(inputs[0].unsqueeze(1))[0]
    want = torch.cat([value.squeeze(1) for value in out], 1)
    torch.testing.assert_close(by_c(net, tmp_path, inputs), want, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_mathematics(tmp_path):
    """Functions of a C library, over their whole range, with special values."""
    text = tmp_path / "all.c"
    to_c(elman.RNN(2, 2), tmp_path)
    code = (tmp_path / "model.c").read_text()
    for name in FUNCTIONS:
        code += f"void all_{name}(const float *x, float *y, long n) {{\n"
        code += (
            f"    for (long u = 0; u < n; u += LANES) stn(y, u, n, v_{name}(ldn(x, u, n)));\n}}\n"
        )
    text.write_text(code)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, 1e-30]
    grid = torch.linspace(-90, 90, 40_001)
    x = torch.cat([torch.tensor(special), grid, grid / 90, 10 ** (grid / 3), grid * 50])
    for lanes in (1, 8):
        own = library(tmp_path, "all", lanes, f"-I{tmp_path}")
        for name in FUNCTIONS:
            given = x[(x.abs() < 8000) | ~x.isfinite()] if name in ("sin", "cos") else x
            y = torch.zeros_like(given)
            at = [ctypes.c_void_p(v.data_ptr()) for v in (given, y)]
            getattr(own, f"all_{name}")(*at, ctypes.c_long(len(y)))
            want = torchs(name)
            tight = {"sin": 2e-6, "cos": 2e-6, "erf": 3e-7}.get(name, 1e-37)
            torch.testing.assert_close(
                y, want(given.double()).float(), rtol=3e-6, atol=tight, equal_nan=True
            )


@needs_compiler
def test_the_makefile(tmp_path):
    """`make check` compares, and fails once a weight is another."""
    torch.manual_seed(0)
    to_c(elman.GRU(4, 6), tmp_path, "voice")
    words = ["make", "-C", str(tmp_path), "check", "all"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "largest error" in done.stdout
    weights = tmp_path / "voice_weights.h"
    text = weights.read_text()
    number = re.search(r"-?0\.\d+f", text)
    assert number is not None
    weights.write_text(text.replace(number[0], "0.9f", 1))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0


@needs_compiler
def test_the_check_knows_how_far_float32_is_off(tmp_path):
    """Of a cell whose values grow in every step, 4e-5 in float32: the right code passes."""
    torch.manual_seed(1)
    net = elman.Recurrent(cells.ltc, 7, 7, learn_initial=True)
    for value in net._initial():
        torch.nn.init.normal_(value)
    to_c(net, tmp_path)
    words = ["make", "-C", str(tmp_path), "check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    worst, largest = map(float, re.findall(r"[\d.]+e[+-]\d+", done.stdout))
    assert worst > 2e-5 * largest


@needs_compiler
@pytest.mark.parametrize("cell", [cells.mlstm, cells.m2rnn], ids=lambda cell: cell.name)
def test_one_lane_does_nothing_undefined(cell, tmp_path):
    """Under gcc's sanitizers: exponentials, logarithms, tanh, matrices."""
    torch.manual_seed(0)
    to_c(elman.Recurrent(cell, 5, 7), tmp_path)
    flags = "-std=c99 -O0 -DLANES=1 -fsanitize=undefined -fno-sanitize-recover"
    words = [CC, *flags.split(), "model.c", "model_check.c", "-o", "check"]
    made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "ubsan" in made.stderr:
        pytest.skip("this compiler has no sanitizer's library")
    assert made.returncode == 0, made.stderr
    done = subprocess.run(["./check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_compiler
def test_fast_math_is_refused(tmp_path):
    """Under -ffast-math values would be wrong, without a warning."""
    to_c(elman.GRU(2, 3), tmp_path)
    words = [CC, "-ffast-math", "-c", tmp_path / "model.c", "-o", tmp_path / "model.o"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "compile this file without it" in done.stderr


@needs_compiler
def test_mathematics_of_two(tmp_path):
    """Powers and remainders, with all pairs of special values."""
    to_c(elman.RNN(2, 2), tmp_path)
    code = (tmp_path / "model.c").read_text()
    for name in ("pow", "remainder"):
        code += f"void all_{name}(const float *x, const float *z, float *y, long n) {{\n"
        code += "    for (long u = 0; u < n; u++)\n"
        code += f"        stn(y, u, u + 1, v_{name}(bc(x[u]), bc(z[u])));\n}}\n"
    (tmp_path / "all.c").write_text(code)
    source = torch.Generator().manual_seed(0)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -2.5, 1e9, math.inf, -math.inf, math.nan, 3e38]
    pairs = torch.cartesian_prod(torch.tensor(special), torch.tensor(special))
    more = torch.randn(4000, 2, generator=source) * torch.tensor([1.0, 6.0])
    large = torch.randn(500, 2, generator=source).exp() ** 20
    x, z = torch.cat([pairs, more, more.abs(), more.round(), large]).unbind(1)
    x, z, y = x.contiguous(), z.contiguous(), torch.zeros(len(x))
    own = library(tmp_path, "all", 1, f"-I{tmp_path}")
    for name, call in (("pow", torch.pow), ("remainder", torch.remainder)):
        at = [ctypes.c_void_p(v.data_ptr()) for v in (x, z, y)]
        getattr(own, f"all_{name}")(*at, ctypes.c_long(len(y)))
        want = call(x.double(), z.double()).float()  # its float32 has NaN for large quotients
        torch.testing.assert_close(y, want, rtol=1e-6, atol=1e-37, equal_nan=True)


def test_no_names_from_outside(tmp_path):
    """The text calls nothing that it does not define."""
    to_c(elman.Recurrent(many, 3, 4), tmp_path)
    text = (tmp_path / "model.c").read_text()
    assert set(re.findall(r"#include (\S+)", text)) == {
        "<stdint.h>",
        '"model.h"',
        '"model_weights.h"',
    }
    assert "malloc" not in text


def test_every_operation_has_a_function(tmp_path):
    """What engine c can spell, exported C can: or it says so."""
    folder = to_c(elman.RNN(2, 2), tmp_path).folder
    text = (folder / "model.c").read_text()
    known = set(re.findall(r"(?:V |LANES_OF\()(v_\w+)", text))
    called = {name for spelled in SPELL.values() for name in re.findall(r"v_\w+", spelled)}
    assert called <= known


def test_tiles():
    """Rows side by side, and what a vector may read behind them."""
    W = torch.arange(70.0 * 3).reshape(70, 3)
    tiles = tile_matrix(W)
    assert len(tiles) == 70 * 3 + 16
    assert torch.equal(tiles[:192].reshape(3, 64), W[:64].T)
    assert torch.equal(tiles[192:210].reshape(3, 6), W[64:].T)


def test_what_cannot_be_exported(tmp_path):
    """Said in one line."""
    with pytest.raises(InputError, match="no single step"):
        to_c(elman.GRU(2, 3, bidirectional=True), tmp_path)
    with pytest.raises(InputError, match="needs an input of Linear"):
        to_c(torch.nn.Linear(2, 3), tmp_path)
    with pytest.raises(InputError, match="not a C identifier"):
        to_c(elman.GRU(2, 3), tmp_path, "my model")
    net = elman.GRU(2, 3)
    with torch.no_grad():
        net.weight_hh_l0[0, 0] = math.nan
    with pytest.raises(InputError, match="weight_hh_l0 is not finite"):
        to_c(net, tmp_path)


def run(*words):
    return CliRunner().invoke(build_app("export"), ["export", *map(str, words)])


@needs_compiler
def test_command(tmp_path):
    """A part of a saved model, by a prefix; its C agrees."""
    torch.manual_seed(5)
    net = torch.nn.Sequential()
    net.add_module("embedding", torch.nn.Linear(2, 4))
    net.add_module("layers", elman.GRU(4, 6, num_layers=2))
    file = tmp_path / "net.pt"
    torch.save(net.state_dict(), file)
    out = tmp_path / "c"
    words = ("gru", "--c", out, "--inputs", 4, "--hidden", 6, "--layers", 2, "--weights", file)
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert "x [4] and gives y [6]" in done.output
    module = elman.GRU(4, 6, num_layers=2)
    assert load_weights(module, read_state_dict(file), file) == "layers."
    again = tmp_path / "again"
    to_c(module, again)
    assert (out / "model_weights.h").read_text() == (again / "model_weights.h").read_text()


def test_weights_that_do_not_fit(tmp_path):
    """Of another size, of another model, twice there, or unreadable."""
    file = tmp_path / "net.pt"
    torch.save(elman.GRU(4, 6).state_dict(), file)
    with pytest.raises(InputError, match=r"is \[18, 4\], not \[15, 4\]"):
        load_weights(elman.GRU(4, 5), read_state_dict(file), file)
    with pytest.raises(InputError, match="not those of this module"):
        load_weights(elman.GRU(4, 6, num_layers=2), read_state_dict(file), file)
    more = {
        "--layers 2": elman.GRU(4, 6, num_layers=2),
        "one direction": elman.GRU(4, 6, bidirectional=True),
    }
    for hint, trained in more.items():
        for prefix in ("", "model.rnn."):
            torch.save({prefix + k: v for k, v in trained.state_dict().items()}, file)
            with pytest.raises(InputError, match="there is more than this module has") as refused:
                load_weights(elman.GRU(4, 6), read_state_dict(file), file)
            assert hint in str(refused.value)
    torch.save(elman.GRU(4, 6).state_dict(), file)
    with pytest.raises(InputError, match=r"besides +bias_ih_l0, bias_hh_l0"):
        load_weights(elman.GRU(4, 6, bias=False), read_state_dict(file), file)
    both = {f"{part}.{k}": v for part in "ab" for k, v in elman.GRU(4, 6).state_dict().items()}
    torch.save(both, file)
    with pytest.raises(InputError, match="several parts"):
        load_weights(elman.GRU(4, 6), read_state_dict(file), file)
    file.write_bytes(b"nothing")
    for path in (file, tmp_path, tmp_path / "none.safetensors"):
        with pytest.raises(RunError):
            load_weights(elman.GRU(4, 6), read_state_dict(path), path)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_each_compiler_takes_it_without_a_warning(name, lanes, tmp_path):
    """clang warns of functions that a cell does not use, gcc does not."""
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    to_c(elman.Recurrent(elman.cells.mgu, 3, 5), tmp_path)
    flags = [*STRICT.split(), f"-DLANES={lanes}", "-o", str(tmp_path / "model.so")]
    words = [name, *flags, str(tmp_path / "model.c")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_run_in_python(tmp_path):
    """Sequences by the exported code: the module's results, in floats also of integers; strides and
    late outputs; what it does not take is told."""
    torch.manual_seed(0)
    net, x = elman.GRU(5, 7, 2, batch_first=True), torch.randn(3, 20, 5)
    written = to_c(net, tmp_path / "gru", name="gru")
    torch.testing.assert_close(written.run(x), net(x)[0], rtol=1e-4, atol=1e-5)
    front, sound = torch.nn.Sequential(torch.nn.Conv1d(2, 4, 5, stride=2)), torch.randn(3, 2, 41)
    for bits, off in ((None, 1e-5), (8, 0.1)):
        written = to_c(front, tmp_path / f"front{bits}", example=sound, quantize=bits)
        y = written.run(sound.mT)
        assert (written.late, y.shape) == (2, (3, 18, 4))
        torch.testing.assert_close(y, front(sound).mT[:, :18], rtol=0, atol=off)
    for wrong in ((), (x, x), (x[:, :1],), (x[0],), (torch.randn(3, 20, 3),)):
        with pytest.raises(InputError, match="model takes input"):
            written.run(*wrong)
    (tmp_path / "front8" / "model.c").write_text("int")
    with pytest.raises(EngineError, match=r"model\.c does not compile"):
        written.run(sound.mT)
