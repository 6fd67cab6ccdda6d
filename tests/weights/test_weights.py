"""Weights of other libraries: their arrays give their outputs, and come out as they went in."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.interchange.weights import layouts
from elman.interchange.weights.layouts import LAYOUTS

# Made by the libraries that each case names, with weights drawn by numpy.
MADE = json.loads((Path(__file__).parent / "libraries.json").read_text("utf-8"))
I, H = 2, 3


def built(cell: str, **options):
    """A module of a cell by its name in elman, or in elman.cells."""
    if hasattr(elman, cell):
        return getattr(elman, cell)(I, H, engine="reference", **options)
    return elman.Recurrent(getattr(cells, cell), I, H, engine="reference", **options)


def arrays_of(value):
    """Nested lists of numbers as arrays, in the dicts and lists that they stand in."""
    if isinstance(value, dict):
        return {name: arrays_of(inner) for name, inner in value.items()}
    numbers = np.array(value, dtype=np.float64) if _regular(value) else None
    return [arrays_of(inner) for inner in value] if numbers is None else numbers


def _regular(value) -> bool:
    return not isinstance(value[0], list) or all(
        isinstance(row, list) and len(row) == len(value[0]) and not isinstance(row[0], list)
        for row in value
    )


def leaves(value):
    """All arrays of a structure, by the way to them."""
    if isinstance(value, np.ndarray):
        return {"": value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {f"{key}.{k}": leaf for key, v in pairs for k, leaf in leaves(v).items()}


@pytest.mark.parametrize("case", MADE["cases"], ids=lambda case: f"{case['library']}")
def test_arrays_of_the_library_give_its_outputs(case):
    """And are saved as they were loaded."""
    module = built(case["cell"], **case["options"]).double()
    arrays = arrays_of(case["arrays"])
    elman.weights.from_arrays(module, arrays, case["layout"])
    out, _ = module(torch.tensor(MADE["x"], dtype=torch.float64))
    np.testing.assert_allclose(out.detach().numpy(), np.array(case["out"]), atol=1e-6)

    saved = elman.weights.to_arrays(module, case["layout"])
    if "params" in saved[0] and "params" not in arrays:
        saved = saved[0]["params"]
    again = leaves(saved[0] if isinstance(arrays, dict) and isinstance(saved, list) else saved)
    want = {name.replace("if_", "if"): value for name, value in leaves(arrays).items()}
    assert again.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


MODULES = {
    "rnn": "RNN",
    "gru": "GRU",
    "lstm": "LSTM",
    "gru_before": "gru_before",
    "lstm_peephole": "lstm_peephole",
}
PAIRS = [
    (layout, kind, bias)
    for layout, how in LAYOUTS.items()
    for kind in how.biases
    for bias in ((True, False) if MODULES[kind].isupper() else (True,))
]


@pytest.mark.parametrize("shape", [(1, False), (2, True)], ids=["one", "two layers both ways"])
@pytest.mark.parametrize("layout, kind, bias", PAIRS)
def test_there_and_back(layout, kind, shape, bias):
    """Every layout, kind, number of layers and directions: the same outputs."""
    layers, both = shape
    options = {"num_layers": layers, "bidirectional": both}
    if MODULES[kind].isupper():
        options["bias"] = bias
    torch.manual_seed(0)
    source, target = (built(MODULES[kind], **options).double() for _ in range(2))
    if (layout, kind) == ("nnx", "gru") and bias:
        with pytest.raises(InputError, match="has no bias for a GRU's candidate"):
            elman.weights.to_arrays(source, layout)
        with torch.no_grad():
            for name, value in source.named_parameters():
                value.zero_() if name.startswith("bias_hh") else None
    before = {name: value.clone() for name, value in source.state_dict().items()}
    elman.weights.from_arrays(target, elman.weights.to_arrays(source, layout), layout)
    x = torch.randn(4, 2, I, dtype=torch.float64)
    torch.testing.assert_close(target(x)[0], source(x)[0], rtol=0, atol=1e-14)
    for name, value in source.state_dict().items():
        assert torch.equal(value, before[name]), "saving changes nothing"


def sigmoid(v):
    """The logistic function."""
    return 1 / (1 + np.exp(-v))


def onnx_gru(x, node, before: bool):
    """GRU of the ONNX operator's own equations, forward, defaults."""
    (Wz, Wr, Wh), (Rz, Rr, Rh) = np.split(node["W"][0], 3), np.split(node["R"][0], 3)
    wz, wr, wh, rz, rr, rh = np.split(node["B"][0], 6)
    h, out = np.zeros((x.shape[1], H)), []
    for row in x:
        z = sigmoid(row @ Wz.T + h @ Rz.T + wz + rz)
        r = sigmoid(row @ Wr.T + h @ Rr.T + wr + rr)
        inner = (r * h) @ Rh.T + rh if before else r * (h @ Rh.T + rh)
        h = (1 - z) * np.tanh(row @ Wh.T + inner + wh) + z * h
        out.append(h)
    return np.stack(out)


def onnx_lstm(x, node):
    """LSTM of the ONNX operator's own equations, with peepholes if there are any."""
    (Wi, Wo, Wf, Wc), (Ri, Ro, Rf, Rc) = np.split(node["W"][0], 4), np.split(node["R"][0], 4)
    both = node["B"][0][: 4 * H] + node["B"][0][4 * H :]
    bi, bo, bf, bc = np.split(both, 4)
    pi, po, pf = np.split(node["P"][0], 3) if "P" in node else (0, 0, 0)
    h, c, out = np.zeros((x.shape[1], H)), np.zeros((x.shape[1], H)), []
    for row in x:
        i = sigmoid(row @ Wi.T + h @ Ri.T + pi * c + bi)
        f = sigmoid(row @ Wf.T + h @ Rf.T + pf * c + bf)
        c = f * c + i * np.tanh(row @ Wc.T + h @ Rc.T + bc)
        o = sigmoid(row @ Wo.T + h @ Ro.T + po * c + bo)
        h = o * np.tanh(c)
        out.append(h)
    return np.stack(out)


@pytest.mark.parametrize("name", ["GRU", "gru_before", "LSTM", "lstm_peephole"])
def test_onnx_arrays_mean_what_the_operator_says(name):
    """Orders of gates, of biases and of peepholes, both conventions of the GRU."""
    torch.manual_seed(0)
    module = built(name).double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_()
    (node,) = elman.weights.to_arrays(module, "onnx")
    x = np.random.default_rng(0).standard_normal((4, 2, I))
    before = name == "gru_before"
    want = onnx_gru(x, node, before) if "gru" in name.lower() else onnx_lstm(x, node)
    np.testing.assert_allclose(module(torch.from_numpy(x))[0].detach().numpy(), want, atol=1e-12)


def test_torchs_own_layers():
    """By torch's names; and in the order of cuDNN: all matrices, then all biases."""
    theirs = torch.nn.LSTM(I, H, 2, bidirectional=True)
    module = elman.Recurrent(cells.lstm, I, H, 2, bidirectional=True, engine="reference")
    elman.weights.from_arrays(
        module, {k: v.detach() for k, v in theirs.state_dict().items()}, "torch"
    )
    x = torch.randn(4, 2, I)
    torch.testing.assert_close(module(x)[0], theirs(x)[0])

    swapped = elman.LSTM(I, H, 2, bidirectional=True)
    swapped.load_state_dict(theirs.state_dict())
    groups = [theirs._flat_weights[k : k + 4] for k in range(0, 16, 4)]
    order = [g[k] for g in groups for k in (0, 1)] + [g[k] for g in groups for k in (2, 3)]
    want = torch.cat([weight.detach().reshape(-1) for weight in order]).numpy()
    np.testing.assert_array_equal(elman.weights.to_arrays(swapped, "cudnn"), want)


def test_gradients_play_no_part():
    """Weights of a layer whose gradients are clipped are laid out as any."""
    plain, clipped = elman.GRU(I, H), elman.GRU(I, H, clip_gradient=1.0)
    elman.weights.from_arrays(clipped, elman.weights.to_arrays(plain, "onnx"), "onnx")
    assert torch.equal(clipped.weight_hh_l0, plain.weight_hh_l0)


def test_tensors_are_arrays_too():
    """Parameters, also in half precision."""
    theirs, module = torch.nn.GRU(I, H).bfloat16(), elman.GRU(I, H)
    elman.weights.from_arrays(module, dict(theirs.named_parameters()), "torch")
    assert torch.equal(module.weight_hh_l0, theirs.weight_hh_l0.float())


def test_types_and_memory():
    """float64 is kept, half precision is widened, nothing is shared."""
    module = elman.GRU(I, H).double()
    kept = elman.weights.to_arrays(module, "torch")
    assert kept["weight_ih_l0"].dtype == np.float64
    kept["weight_ih_l0"][:] = 7
    assert not (module.weight_ih_l0 == 7).any()
    assert elman.weights.to_arrays(module.bfloat16(), "keras")[0].dtype == np.float32


def refused(call, *texts, error=InputError):
    """A call that raises, with all these words."""
    with pytest.raises(error) as found:
        call()
    for text in texts:
        assert text in str(found.value)


def test_what_does_not_fit_is_named():
    """One mistake each, in the words of the library; and the module is as before."""
    load, save = elman.weights.from_arrays, elman.weights.to_arrays
    module = elman.LSTM(I, H, num_layers=2)
    before = [value.clone() for value in module.parameters()]
    good = save(module, "keras")
    wide = [*good[:4], good[4].T, good[5]]
    refused(
        lambda: load(module, wide, "keras"),
        "recurrent_kernel of l1 is [12, 3], not [3, 12]",
        "layout 'keras'",
        "elman.weights.to_arrays(module, 'keras')",
        error=ShapeError,
    )
    refused(lambda: load(module, good[:5], "keras"), "there are 5 arrays for 2 layers")
    refused(lambda: load(module, {"a": 1}, "keras"), "a list of arrays", "dict")
    refused(lambda: load(module, save(module, "onnx")[:1], "onnx"), "there are 1 dicts", "l0, l1")
    node = {**save(module, "onnx")[0], "Q": np.zeros(3)}
    refused(lambda: load(module, [node, node], "onnx"), "nothing of the module is called Q")
    trees = save(module, "flax")
    del trees[1]["params"]["hg"]
    refused(lambda: load(module, trees, "flax"), "hg.kernel of l1 is missing")
    refused(lambda: load(module, np.zeros(7), "cudnn"), "the buffer is [7]", error=ShapeError)
    names = save(module, "torch") | {"weight_ih_l0": ["a"]}
    refused(lambda: load(module, names, "torch"), "weight_ih_l0 is not an array of numbers")
    refused(lambda: load(module, good, "tensorflow"), "no layout 'tensorflow'", "keras, flax")
    for value, kept in zip(module.parameters(), before, strict=True):
        assert torch.equal(value, kept)


def test_who_has_no_layout():
    """Other cells, heads, single modules of torch; a cell that one library does not have."""
    save = elman.weights.to_arrays
    refused(lambda: save(elman.Recurrent(cells.mgu, I, H), "keras"), "for the weights of mgu")
    refused(lambda: save(elman.GRU(I, 4, heads=2), "onnx"), "gru with 2 heads")
    refused(lambda: save(elman.LSTM(I, 4, proj_size=2), "cudnn"), "lstm_projected")
    refused(lambda: save(torch.nn.GRU(I, H), "onnx"), "not of GRU", "elman.accelerate")
    peephole = elman.Recurrent(cells.lstm_peephole, I, H)
    refused(lambda: save(peephole, "keras"), "'keras' has no lstm_peephole", "layout='onnx'")


def test_biases_that_nobody_has():
    """Zero biases go nowhere quietly; others are a mistake."""
    arrays = elman.weights.to_arrays(elman.GRU(I, H), "keras")
    bare = elman.GRU(I, H, bias=False)
    refused(lambda: elman.weights.from_arrays(bare, arrays, "keras"), "bias=True")
    elman.weights.from_arrays(bare, [*arrays[:2], np.zeros((2, 3 * H))], "keras")
    full = elman.GRU(I, H)
    elman.weights.from_arrays(full, arrays[:2], "keras")
    assert not full.bias_ih_l0.count_nonzero()
    assert not full.bias_hh_l0.count_nonzero()


def test_examples_of_the_docstrings():
    """As they are printed."""
    failed, tried = doctest.testmod(layouts, extraglobs={"elman": elman})
    assert tried > 3
    assert not failed


def test_a_weight_that_is_computed():
    """A parametrized weight cannot be loaded, and says so."""
    module = elman.GRU(I, H)
    arrays = elman.weights.to_arrays(module, "onnx")
    torch.nn.utils.parametrizations.weight_norm(module, "weight_hh_l0")
    refused(
        lambda: elman.weights.from_arrays(module, arrays, "onnx"), "weight_hh_l0 is not a parameter"
    )
