"""The door for flash-linear-attention: a package of a few modules stands in for it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.errors import EngineError, InputError
from elman.functional import fla
from helpers import forced

F64 = torch.float64
Given = dict[str, Any]
FILES = {
    "__init__.py": """
        import importlib
        try:
            layers = importlib.import_module("fla.layers")
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
    """,
    "utils.py": """
        import inspect
        import triton
        import triton.runtime.driver as driver
        from triton.runtime.autotuner import Autotuner
        assert triton.__version__ >= "3.3.0"
        DEVICE = driver.active.get_current_target().backend
        CACHED = "cache_results" in inspect.signature(triton.autotune).parameters
        class CachedAutotuner(Autotuner):
            pass
    """,
    "ops/__init__.py": "from fla.ops.gla import chunk_gla",
    "ops/gla.py": """
        import torch
        import triton
        import triton.language as tl
        from triton.language.extra import libdevice
        from fla.utils import CachedAutotuner
        PRECISION = tl.constexpr("ieee")
        BLOCKS = triton.cdiv(7, 2), triton.next_power_of_2(5)

        @triton.heuristics({"HAS_STATE": lambda args: True})
        @triton.autotune(configs=[triton.Config({"BK": 32}, num_warps=2)], key=["K"])
        @triton.jit(do_not_specialize=["T"])
        def gla_kernel(q, T, K: tl.constexpr):
            libdevice.exp(q)

        @triton.jit
        def gsa_kernel(q):
            tl.load(q)

        def start(kernel, q):
            CachedAutotuner(kernel, kernel.arg_names)[(1,)](q)

        def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False,
                      state_v_first=False, cu_seqlens=None, **kwargs):
            start(gla_kernel, q)

        def chunk_gsa(q):
            start(gsa_kernel, q)

        def ask(q):
            return tl.sum(q)
    """,
    "modules/__init__.py": "",
    "modules/activations.py": """
        import torch
        from fla.ops.gla import start, gsa_kernel
        class SwishFunction(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                start(gsa_kernel, x)
        swish = SwishFunction.apply
        ACT2FN = {"swish": swish, "relu": torch.relu}
        class FusedCrossEntropyLoss:
            def forward(self, input, target):
                raise AssertionError("only GPUs")
        class Mamba2:
            method_of_another_version = None
    """,
    "layers.py": """
        from fla.modules.activations import ACT2FN, FusedCrossEntropyLoss
        from fla.ops import chunk_gla
        from fla.ops.gla import chunk_gsa as slots
        def forward(q):
            return chunk_gla(ACT2FN["swish"](q), q, q, -q.abs(), scale=1.0)[0]
    """,
}


def lines(text: str) -> str:
    return inspect.cleandoc(text) + "\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package fla that can be imported, and no Triton."""
    for name, text in FILES.items():
        path = tmp_path / "fla" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines(text), encoding="utf-8")
    before = {name for name in sys.modules if name.partition(".")[0] == "fla"}
    assert not before, "nothing else imports it"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "triton", None)
    yield
    fla.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]


def loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor | None = None) -> Tensor:
    """Outputs of gated linear attention."""
    rows = []
    S = q.new_zeros(len(q), q.shape[2], q.shape[3], v.shape[3]) if S is None else S
    for t in range(q.shape[1]):
        S = g[:, t, :, :, None].exp() * S + k[:, t, :, :, None] * v[:, t, :, None]
        rows.append((q[:, t, :, :, None] * S).sum(2))
    return torch.stack(rows, 1)


def check_layer(layers: ModuleType) -> None:
    q = torch.randn(2, 3, 2, 4, dtype=F64)
    with forced("reference"):
        got = layers.forward(q)
    assert torch.allclose(got, loop(F.silu(q), q, q, -q.abs()))


def test_before_the_import(package):
    """Functions, methods of autograd's functions, entries of dicts, and methods; twice is once.
    What else asks for Triton finds none."""
    fla.install()
    fla.install()
    layers = importlib.import_module("fla.layers")
    check_layer(layers)
    assert sys.modules["fla.utils"].DEVICE == "cpu"
    assert not sys.modules["fla.utils"].CACHED
    assert sys.modules["fla.ops.gla"].BLOCKS == (4, 8)
    assert sys.modules["triton"] is None
    assert fla.replaced() == ["fla.modules.activations.swish", "fla.ops.gla.chunk_gla"]
    loss = layers.FusedCrossEntropyLoss()
    vars(loss).update(
        label_smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, process_group=None
    )
    vars(loss).update(
        logit_softcapping=None, ignore_index=-100, reduction="none", return_z_loss=False
    )
    assert loss.forward(torch.zeros(2, 3), torch.tensor([0, -100]))[1] == 0
    theirs = fla.original("FusedCrossEntropyLoss", "forward")
    assert theirs.__globals__["__name__"] == "fla.modules.activations"
    fla.uninstall()
    fla.uninstall()
    assert fla.replaced() == []
    assert layers.FusedCrossEntropyLoss.forward is theirs
    with pytest.raises(InputError, match=r"nothing is in the place of fla\.ops\.gla\.chunk_gla"):
        fla.original("fla.ops.gla", "chunk_gla")
    with pytest.raises(AssertionError, match="only GPUs"):
        loss.forward(0, 0)
    match = r"^fla\.ops\.gla\.chunk_gla needs Triton and a GPU(.|\n)*kernel gla_kernel"
    with pytest.raises(EngineError, match=match):
        sys.modules["fla.ops.gla"].chunk_gla(1, 2, 3, 4)


def test_what_is_not_replaced(package):
    """Says which function needs Triton, whatever name it was called by, and which kernel."""
    fla.install()
    layers = importlib.import_module("fla.layers")
    with pytest.raises(EngineError, match=r"fla\.ops\.gla\.chunk_gsa needs Triton and a GPU"):
        layers.slots(torch.ones(2))
    with pytest.raises(EngineError, match=r"ask needs Triton(.|\n)*kernel triton\.language\.sum"):
        sys.modules["fla.ops.gla"].ask(1)


def test_after_an_import_without_layers(package):
    """They could not be imported; now they can."""
    module = importlib.import_module("fla")
    assert not hasattr(module, "layers")
    fla.install()
    check_layer(module.layers)


def test_after_the_import(package, monkeypatch):
    """Where there is a Triton: its kernels are not started without a GPU, either."""
    triton = ModuleType("triton")
    kind = type("JITFunction", (), {"__module__": "triton.runtime.jit", "run": None})
    kind.__getitem__ = lambda self, grid: 1 / 0
    kind.arg_names = ()

    def jit(function=None, **options):
        return kind()

    vars(triton).update(vars(fla.loading._TRITON), jit=lambda f=None, **_: kind() if f else jit)
    monkeypatch.setitem(sys.modules, "triton", triton)
    for name in ("language", "runtime"):
        monkeypatch.setitem(sys.modules, f"triton.{name}", getattr(triton, name))
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", triton.runtime.driver)
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", triton.runtime.autotuner)
    monkeypatch.setitem(sys.modules, "triton.language.extra", triton.language.extra)
    layers = importlib.import_module("fla.layers")
    gla, chunk_gla = sys.modules["fla.ops.gla"], layers.chunk_gla
    fla.install()
    check_layer(layers)
    assert layers.chunk_gla is gla.chunk_gla is sys.modules["fla.ops"].chunk_gla is not chunk_gla
    with pytest.raises(EngineError, match="chunk_gsa needs Triton and a GPU"):
        layers.slots(torch.ones(2))
    fla.uninstall()
    assert layers.chunk_gla is gla.chunk_gla is sys.modules["fla.ops"].chunk_gla is chunk_gla


def test_calls_are_those_of_the_package(package):
    """Arguments by place and by name; what is unknown is refused with the function's name."""
    fla.install()
    call = importlib.import_module("fla.layers").chunk_gla
    q = torch.randn(1, 2, 1, 3)
    with forced("reference"):
        out, last = call(q, q, q, -q.abs(), 1.0, None, True)
        assert torch.equal(call(q=q, k=q, v=q, g=-q.abs(), scale=1.0)[0], out)
        assert last.shape == (1, 1, 3, 3)
        assert call(q, q, q, -q.abs(), output_final_state=None)[1] is None
    refused = r"^chunk_gla of fla, run by elman: there is no option reverse=True"
    with pytest.raises(InputError, match=refused):
        call(q, q, q, q, reverse=True)
    with pytest.raises(TypeError, match="multiple values for argument 'k'"):
        call(q, q, q, q, k=q)
    with pytest.raises(TypeError, match="too many positional"):
        call(*[q] * 11)


# ---- recurrences, against loops


B, T, H, K, V = 2, 7, 2, 3, 4
ENDS = torch.tensor([0, 3, 3, 7])
Row = tuple[Any, ...]  # queries, keys, values, decays, and the matrix of rank one, if there is one


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta(x: Given, g: Tensor | None = None, norm: bool = False) -> Row:
    """A delta rule: I - beta k k^T behind the decay."""
    q, k, beta = x["q"], x["k"], x["beta"][..., None]
    q, k = (unit(q), unit(k)) if norm else (q, k)
    w = torch.ones_like(k) if g is None else (g if g.dim() == 4 else g[..., None]).exp()
    return K**-0.5 * q, beta * k, x["v"], w * torch.ones_like(k), -w * k, beta * k


def gdn_decay(x: Given) -> Tensor:
    return -x["A_log"].exp() * F.softplus(x["g"] + x["dt_bias"])


def kda_decay(x: Given) -> Tensor:
    bias = x["dt_bias"].view(H, K)
    return -x["A_log"].exp()[:, None] * F.softplus(x["g"] + bias)


def bounded_decay(x: Given) -> Tensor:
    return -5 * torch.sigmoid(x["A_log"].exp()[:, None] * (x["g"] + x["dt_bias"].view(H, K)))


KEYS, HEADS = "KEYS", "HEADS"  # shapes of inputs: [.., heads, K], [.., heads], or their own
QKV = {"q": KEYS, "k": KEYS, "v": "VALUES"}
GATE = {"A_log": (H,), "dt_bias": (H,)}
GATES = {"A_log": (H,), "dt_bias": (H * K,)}
IN_KERNEL = {"use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True}
IN_KERNEL |= {"use_qk_l2norm_in_kernel": True, "allow_neg_eigval": True}


def sigmoid_of(x: Given) -> Given:
    return {**x, "beta": 2 * x["beta"].sigmoid()}


RULES: dict[str, list[tuple[Given, Given, Callable[[Given], Row]]]] = {  # inputs, options, rows
    "chunk_gla": [
        ({**QKV, "g": KEYS}, {}, lambda x: (K**-0.5 * x["q"], x["k"], x["v"], x["g"].exp())),
        (
            {**QKV, "g": KEYS},
            {"scale": 0.7, "state_v_first": True, "chunk_size": 16},
            lambda x: (0.7 * x["q"], x["k"], x["v"], x["g"].exp()),
        ),
    ],
    "fused_recurrent": [
        (
            {**QKV, "gk": KEYS, "g": HEADS},
            {"scale": 1.0, "gv": None, "reverse": False},
            lambda x: (x["q"], x["k"], x["v"], (x["gk"] + x["g"][..., None]).exp()),
        ),
    ],
    "chunk_simple_gla": [
        (
            {**QKV, "g": HEADS},
            {"scale": 1.0, "g_gamma": None, "state_v_first": True},
            lambda x: (x["q"], x["k"], x["v"], x["g"][..., None].exp() * torch.ones_like(x["k"])),
        ),
        (
            {**QKV, "g_gamma": (H,)},
            {"scale": 1.0},
            lambda x: (
                x["q"],
                x["k"],
                x["v"],
                x["g_gamma"][:, None].exp() * torch.ones_like(x["k"]),
            ),
        ),
        ({**QKV}, {"scale": 1.0}, lambda x: (x["q"], x["k"], x["v"], torch.ones_like(x["k"]))),
    ],
    "chunk_delta_rule": [
        ({**QKV, "beta": HEADS}, {}, delta),
        (
            {**QKV, "beta": HEADS},
            {"use_qk_l2norm_in_kernel": True},
            lambda x: delta(x, norm=True),
        ),
    ],
    "chunk_gated_delta_rule": [
        ({**QKV, "beta": HEADS, "g": HEADS}, {"A_log": None}, lambda x: delta(x, x["g"])),
        (
            {**QKV, "beta": HEADS, "g": HEADS, **GATE},
            {**IN_KERNEL, "state_v_first": True, "cp_context": None},
            lambda x: delta(sigmoid_of(x), gdn_decay(x), norm=True),
        ),
    ],
    "fused_recurrent_gated_delta_rule": [
        (
            {**QKV, "beta": HEADS, "g": HEADS, "gk": KEYS},
            {"gv": None},
            lambda x: delta(x, x["gk"] + x["g"][..., None]),
        ),
    ],
    "chunk_kda": [
        (
            {**QKV, "beta": HEADS, "g": KEYS, **GATES},
            {**IN_KERNEL, "state_v_first": True, "use_graph": False, "max_num_seqs": None},
            lambda x: delta(sigmoid_of(x), kda_decay(x), norm=True),
        ),
        (
            {**QKV, "beta": HEADS, "g": KEYS, **GATES},
            {**IN_KERNEL, "safe_gate": True, "lower_bound": -5.0},
            lambda x: delta(sigmoid_of(x), bounded_decay(x), norm=True),
        ),
    ],
    "chunk_dplr_delta_rule": [
        (
            {**QKV, "a": KEYS, "b": KEYS, "gk": KEYS},
            {"scale": 1.0, "safe_gate": True, "lower_bound": -0.6, "chunk_size": 64},
            lambda x: (x["q"], x["k"], x["v"], x["gk"].exp(), x["a"], x["b"]),
        ),
    ],
    "chunk_iplr_delta_rule": [
        (
            {**QKV, "a": KEYS, "b": KEYS},
            {},
            lambda x: (K**-0.5 * x["q"], x["k"], x["v"], torch.ones_like(x["k"]), x["a"], x["b"]),
        ),
    ],
    "fused_mul_recurrent_rwkv7": [
        (
            {"r": KEYS, "w": KEYS, "k": KEYS, "v": "VALUES", "kk": KEYS, "a": KEYS},
            {"scale": 1.0, "reverse": False},
            lambda x: (x["r"], x["k"], x["v"], x["w"].exp(), -x["kk"], x["kk"] * x["a"]),
        ),
    ],
}


def draw(shapes: Given, lead: tuple[int, int]) -> dict[str, Tensor]:
    """Leaves; what decays is negative."""
    torch.manual_seed(0)
    inner = {KEYS: (*lead, H, K), HEADS: (*lead, H), "VALUES": (*lead, H, V)}
    drawn = dict[str, Tensor]()
    for name, shape in shapes.items():
        value = torch.randn(inner[shape] if isinstance(shape, str) else shape, dtype=F64)
        drawn[name] = -value.abs() if name in ("g", "gk", "w", "g_gamma") else value / 2
    return {name: value.requires_grad_() for name, value in drawn.items()}


def run_loop(row: Row, state: Tensor, past: bool = False) -> tuple[Tensor, Tensor]:
    """S = diag(w) S + b (a^T S) + k v^T, read by q behind the step, or before it."""
    q, k, v, w, *ab = row
    S, outputs = state, []
    for t in range(q.shape[1]):
        before = S
        if ab:
            a, b = (x[:, t, ..., None] for x in ab)
            S = w[:, t, ..., None] * S + b * (a * S).sum(2, keepdim=True)
        else:
            S = w[:, t, ..., None] * S
        S = S + k[:, t, ..., None] * v[:, t, :, None]
        outputs.append((q[:, t, ..., None] * (before if past else S)).sum(2))
    empty = q.new_zeros(len(q), 0, H, V)
    return torch.stack(outputs, 1) if outputs else empty, S


def by_sequence(packed: bool, row: Row, state: Tensor, past: bool = False) -> tuple[Tensor, Tensor]:
    if not packed:
        return run_loop(row, state, past)
    parts = [
        run_loop(tuple(x[:, a:b] for x in row), state[n : n + 1], past)
        for n, (a, b) in enumerate(pairwise(ENDS.tolist()))
    ]
    return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts])


def assert_alike(got: Any, want: Any, leaves: list[Tensor]) -> None:
    """The same results, and gradients."""
    assert [x.shape for x in got] == [x.shape for x in want]
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))
    sums = [sum(x.sin().sum() for x in results) for results in (got, want)]
    gradients = [torch.autograd.grad(total, leaves, retain_graph=True) for total in sums]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name, case", [(n, c) for n in RULES for c in range(len(RULES[n]))])
def test_rules(name, case, packed):
    """With a state before, and sequences behind one another, one of them empty."""
    shapes, options, rows = RULES[name][case]
    given = draw(shapes, (1, T) if packed else (B, T))
    state = torch.randn(3 if packed else B, H, K, V, dtype=F64, requires_grad=True)
    want = by_sequence(packed, rows(given), state)
    turned = options.get("state_v_first", False)
    begin = state.mT if turned else state
    ends = ENDS if packed else None
    with forced("reference"):
        out, last = fla.FUNCTIONS[name](
            **given, **options, initial_state=begin, output_final_state=True, cu_seqlens=ends
        )
    assert_alike((out, last.mT if turned else last), want, [*given.values(), state])


@pytest.mark.parametrize("packed", [False, True])
def test_rwkv6(packed):
    """The bonus of the step itself, of each head."""
    shapes = {"r": KEYS, "k": KEYS, "v": "VALUES", "w": KEYS, "u": (H, K)}
    x = draw(shapes, (1, T) if packed else (B, T))
    state = torch.randn(3 if packed else B, H, K, V, dtype=F64, requires_grad=True)
    out, last = by_sequence(packed, (x["r"], x["k"], x["v"], x["w"].exp()), state, past=True)
    bonus = (x["r"] * x["u"] * x["k"]).sum(-1, keepdim=True) * x["v"]
    ends = ENDS if packed else None
    common = {"initial_state": state, "output_final_state": True, "cu_seqlens": ends}
    with forced("reference"):
        got = fla.FUNCTIONS["chunk_rwkv6"](**x, **common, scale=1.0)
        halved = fla.FUNCTIONS["fused_recurrent_rwkv6"](**x, **common, scale=None)
    assert_alike(got, (out + bonus, last), [*x.values(), state])
    assert torch.allclose(halved[0], K**-0.5 * (out + bonus))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_delta_product(gated, packed, norm):
    """Two steps of the delta rule for each query."""
    lead = (1, T) if packed else (B, T)
    x = draw({"q": KEYS, "g": HEADS}, lead)
    x |= draw({"k": KEYS, "v": "VALUES", "beta": HEADS}, (lead[0], 2 * T))
    g = x["g"] if gated else None
    state = torch.randn(3 if packed else B, H, K, V, dtype=F64, requires_grad=True)
    q = torch.stack((torch.zeros_like(x["q"]), x["q"]), 2).flatten(1, 2)
    decay = torch.stack((x["g"], torch.zeros_like(x["g"])), 2).flatten(1, 2) if gated else None
    row = delta({**x, "q": q}, decay, norm)
    if packed:
        row = tuple(part.unflatten(1, (T, 2)) for part in row)
        parts = [
            run_loop(tuple(p[:, a:b].flatten(1, 2) for p in row), state[n : n + 1])
            for n, (a, b) in enumerate(pairwise(ENDS.tolist()))
        ]
        want = torch.cat([p[0] for p in parts], 1), torch.cat([p[1] for p in parts])
    else:
        want = run_loop(row, state)
    with forced("reference"):
        got = fla.FUNCTIONS["chunk_gated_delta_product"](
            **{**x, "g": g}, num_householder=2, initial_state=state, output_final_state=True,
            cu_seqlens=ENDS if packed else None, use_qk_l2norm_in_kernel=norm, cp_context=None,
        )  # fmt: skip
    leaves = [value for key, value in x.items() if gated or key != "g"]
    assert_alike(got, (want[0][:, 1::2], want[1]), [*leaves, state])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_hgrn(packed, begins):
    """A scan, channel by channel."""
    torch.manual_seed(0)
    count, D = 3 if packed else B, 5
    x = torch.randn(1 if packed else B, T, D, dtype=F64, requires_grad=True)
    g = (-x.detach().abs() - 0.1).requires_grad_()
    state = torch.randn(count, D, dtype=F64, requires_grad=True) if begins else None
    bounds = ENDS.tolist() if packed else [0, T]
    rows, lasts = [], []
    for n, (a, b) in enumerate(pairwise(bounds)):
        pick = slice(n, n + 1) if packed else slice(None)
        h = x.new_zeros(1 if packed else B, D) if state is None else state[pick]
        for t in range(a, b):
            h = g[:, t].exp() * h + x[:, t]
            rows.append(h)
        lasts.append(h)
    want = torch.stack(rows, 1), torch.cat(lasts)
    with forced("reference"):
        got = fla.FUNCTIONS["fused_recurrent_hgrn"](
            x=x,
            g=g,
            initial_state=state,
            output_final_state=True,
            cu_seqlens=ENDS if packed else None,
        )
        plain = {"x": x, "g": g, "initial_state": None, "output_final_state": False}
        assert fla.FUNCTIONS["chunk_hgrn"](**plain)[1] is None
    assert_alike(got, want, [x, g] if state is None else [x, g, state])


def test_what_rules_refuse():
    """Options that would change a result."""
    x = draw({**QKV, "g": HEADS, "beta": HEADS}, (B, T))
    linear, rule = fla.FUNCTIONS["fused_recurrent"], fla.FUNCTIONS["chunk_kda"]
    qkv = {key: x[key] for key in QKV}
    with pytest.raises(InputError, match="no option gv="):
        linear(**qkv, g=x["g"], gv=x["v"])
    with pytest.raises(InputError, match="no option reverse=True"):
        linear(**qkv, g=x["g"], reverse=True)
    with pytest.raises(InputError, match="no option output_attentions=True"):
        linear(**qkv, g=x["g"], output_attentions=True)
    with pytest.raises(InputError, match="both given"):
        linear(**qkv, g=x["g"], g_gamma=x["g"][0, 0])
    with pytest.raises(InputError, match="allow_neg_eigval"):
        rule(**x, allow_neg_eigval=True)
    with pytest.raises(InputError, match="g is missing"):
        rule(**{**x, "g": None}, use_gate_in_kernel=True)
    with pytest.raises(InputError, match="A_log is missing"):
        rule(**x, use_gate_in_kernel=True)
    with pytest.raises(InputError, match="no option return_intermediate_states=True"):
        rule(**x, return_intermediate_states=True)


def test_gates_and_sums():
    """Decays by themselves, and sums along sequences."""
    x = draw({"g": KEYS, **GATES}, (B, T))
    gate = fla.FUNCTIONS["fused_kda_gate"]
    assert torch.allclose(
        gate(**x, lower_bound=None, output_dtype=torch.float32).double(), kda_decay(x)
    )
    assert torch.allclose(
        gate(g=x["g"], A_log=None, dt_bias=None, lower_bound=-2.0), -2 * x["g"].sigmoid()
    )
    given = {"scale": None, "output_dtype": None}
    total = fla.FUNCTIONS["chunk_global_cumsum"]
    assert torch.allclose(
        total(s=x["g"], reverse=False, cu_seqlens=None, **given), x["g"].cumsum(1)
    )
    got = total(s=x["g"][:1], reverse=True, cu_seqlens=ENDS, **{**given, "scale": 2.0})
    want = [p.flip(1).cumsum(1).flip(1) for p in x["g"][:1].split(ENDS.diff().tolist(), 1)]
    assert torch.allclose(got, 2 * torch.cat(want, 1))


# ---- what lies around


PLAIN = {"residual": None, "activation": None, "output_final_state": True, "backend": "triton"}


@pytest.mark.parametrize("W", [1, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_convolution(packed, W):
    """All at once, from a state, in sequences behind one another, and step by step."""
    torch.manual_seed(0)
    D, count = 5, 3 if packed else B
    x = torch.randn(1 if packed else B, T, D, dtype=F64, requires_grad=True)
    state = torch.randn(count, D, W, dtype=F64, requires_grad=True)
    weight = torch.randn(D, W, dtype=F64, requires_grad=True)
    bias = torch.randn(D, dtype=F64, requires_grad=True)
    parts = x[0].split(ENDS.diff().tolist()) if packed else x
    rows, lasts = [], []
    for n, part in enumerate(parts):
        window = torch.cat((state[n], part.mT), -1)
        lead = window[None, :, 1:] if len(part) else window.new_zeros(1, D, W)
        out = F.conv1d(lead, weight[:, None], bias, groups=D)[0]
        rows.append(F.silu(out.mT[: len(part)]))
        lasts.append(window[:, -W:])
    joined = torch.cat(rows)[None] if packed else torch.stack(rows)
    given = {"x": x, "weight": weight, "bias": bias, "cu_seqlens": ENDS if packed else None}
    conv = fla.FUNCTIONS["causal_conv1d"]
    with forced("reference"):
        got = conv(**given, **{**PLAIN, "activation": "silu", "residual": x}, initial_state=state)
        zeros, none = conv(**given, **{**PLAIN, "output_final_state": None}, initial_state=None)
        same = conv(**given, **PLAIN, initial_state=torch.zeros_like(state))[0]
    assert_alike(got, (joined + x, torch.stack(lasts)), [x, state, weight, bias])
    assert none is None
    assert torch.allclose(zeros, same)
    step = fla.FUNCTIONS["causal_conv1d_update"]
    cache, steps = state.detach().clone(), {"weight": weight, "bias": bias, "activation": "silu"}
    with torch.no_grad():
        first = [part[:1] if len(part) else torch.zeros(1, D, dtype=F64) for part in parts]
        now = torch.stack(first)
        out, kept = step(x=now, cache=cache, residual=now, **steps)
    assert kept is cache
    assert torch.equal(cache, torch.cat((state[..., 1:], now.mT), -1))
    for n, part in enumerate(parts):
        if len(part):
            assert torch.allclose(out[n, 0], rows[n][0] + part[0])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_token_shift(packed, begins):
    """The cache is the last input of each sequence."""
    torch.manual_seed(0)
    count, D = 3 if packed else B, 5
    x = torch.randn(1 if packed else B, T, D, dtype=F64, requires_grad=True)
    cache = torch.randn(count, D, dtype=F64, requires_grad=True) if begins else None
    parts = x[0].split(ENDS.diff().tolist()) if packed else x
    rows, lasts = [], []
    for n, part in enumerate(parts):
        before = torch.zeros(1, D, dtype=F64) if cache is None else cache[n : n + 1]
        every = torch.cat((before, part))
        rows.append(every[:-1] - part)
        lasts.append(every[-1])
    want = torch.cat(rows)[None] if packed else torch.stack(rows), torch.stack(lasts)
    shift, ends = fla.FUNCTIONS["token_shift"], ENDS if packed else None
    got = shift(x=x, cu_seqlens=ends, cache=cache, output_cache=True, chunk_indices=None)
    assert_alike(got, want, [x] if cache is None else [x, cache])
    alone = shift(x=x, cu_seqlens=ends, cache=cache, output_cache=False, chunk_indices=None)
    assert torch.equal(alone, got[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(interleaved):
    """By complex numbers; offsets of all, of each, and of sequences behind one another."""
    torch.manual_seed(0)
    x, angles = torch.randn(B, T, H, 6, dtype=F64), torch.randn(12, 2, dtype=F64)
    turn = fla.FUNCTIONS["rotary_embedding"]

    def rotated(places: Tensor) -> Tensor:
        pairs = x[..., :4].unflatten(-1, (2, 2))
        pairs = pairs if interleaved else pairs.mT
        factor = torch.polar(torch.ones_like(angles), angles)[places.clamp(min=0)]
        factor = torch.where(places[..., None] < 0, 0, factor).unsqueeze(-2)
        out = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * factor)
        return torch.cat(((out if interleaved else out.mT).flatten(-2), x[..., 4:]), -1)

    common = {
        "cos": angles.cos(),
        "sin": angles.sin(),
        "interleaved": interleaved,
        "inplace": False,
    }
    steps = torch.arange(T)
    got = turn(x=x, **common, seqlen_offsets=2, cu_seqlens=None)
    assert torch.allclose(got, rotated(steps + 2))
    offsets = torch.tensor([-2, 3])
    got = turn(x=x, **common, seqlen_offsets=offsets, cu_seqlens=None)
    assert torch.allclose(got, rotated(steps + offsets[:, None]))
    got = turn(x=x[:1], **common, seqlen_offsets=torch.tensor([1, 5, 2]), cu_seqlens=ENDS)
    assert torch.allclose(got, rotated(torch.tensor([1, 2, 3, 2, 3, 4, 5]))[:1])
    same = x.clone()
    assert turn(x=same, **{**common, "inplace": True}, seqlen_offsets=0, cu_seqlens=None) is same
    assert torch.allclose(same, rotated(steps))
    with pytest.raises(InputError, match="position 12 is beyond the 12"):
        turn(x=x, **common, seqlen_offsets=6, cu_seqlens=None)


NORM = {"eps": 1e-3, "prenorm": True, "residual_in_fp32": False}


@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_norms(rms, affine, dtype):
    """With a sum before, in groups, with gates and projections."""
    torch.manual_seed(0)
    x, r, z = (torch.randn(2, 3, 8, dtype=dtype) for _ in range(3))
    w, b = (torch.randn(8, dtype=dtype), torch.randn(8, dtype=dtype)) if affine else (None, None)
    W, kind = torch.randn(5, 8, dtype=dtype), "rms" if rms else "layer"
    functions = fla.FUNCTIONS

    def norm(total: Tensor, groups: int = 1) -> Tensor:
        part = total.double().unflatten(-1, (groups, -1))
        part = part if rms else part - part.mean(-1, keepdim=True)
        part = (part / (part.square().mean(-1, keepdim=True) + 1e-3).sqrt()).flatten(-2)
        return part * w + b if affine else part

    def close(got: Tensor, want: Tensor) -> bool:
        assert got.dtype == dtype
        atol = 1e-6 if dtype == F64 else 3e-2
        return torch.allclose(got.double(), want.double(), atol=atol, rtol=1e-2)

    both, weights = x.double() + r.double(), {"weight": w, "bias": b}
    out, total = functions[f"{kind}_norm"](x=x, **weights, residual=r, **NORM)
    assert close(out, norm(both))
    assert close(total, both)
    given = {**NORM, "prenorm": False, "residual": None}
    out = functions["group_norm"](x=x, **weights, **given, is_rms_norm=rms, num_groups=2)
    assert close(out, norm(x, 2))
    for name, gate in (("swish", F.silu), ("sigmoid", torch.sigmoid)):
        out = functions[f"{kind}_norm_gated"](x=x, g=z, **weights, **given, activation=name)
        assert close(out, norm(x) * gate(z.double()))
    with pytest.raises(InputError, match="activation must be one of"):
        functions[f"{kind}_norm_gated"](x=x, g=z, **weights, **given, activation="gelu")
    out = functions[f"{kind}_norm_swish_gate_linear"](
        x=x, g=z, norm_weight=w, norm_bias=b, linear_weight=W, linear_bias=None, **given
    )
    want = (norm(x) * F.silu(z.double())).to(dtype)
    assert close(out, F.linear(want, W))
    out, passed = functions["layer_norm_linear"](
        x=x, norm_weight=w, norm_bias=b, linear_weight=W, linear_bias=None, residual=None,
        **{**NORM, "residual_in_fp32": True}, is_rms_norm=rms, num_groups=1,
    )  # fmt: skip
    assert close(out, F.linear(norm(x).to(dtype), W))
    assert passed.dtype == torch.promote_types(dtype, torch.float32)
    if affine:
        options = {"weight": w, "bias": b, "eps": 1e-3, "group_size": 4}
        options |= {} if rms else {"is_rms_norm": False}
        function = functions["rmsnorm_fn" if rms else "layernorm_fn"]
        assert close(
            function(x=x, z=z, **options, norm_before_gate=True), norm(x, 2) * F.silu(z.double())
        )
        assert close(
            function(x=x, z=z, **options, norm_before_gate=False),
            norm(x.double() * F.silu(z.double()), 2),
        )
        assert close(function(x=x, z=None, **options, norm_before_gate=True), norm(x, 2))


def test_activations():
    """By their formulas."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    f, W = fla.FUNCTIONS, torch.randn(2, 4, dtype=F64)
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    pairs = [
        (f["swish"](x), x * x.sigmoid()),
        (f["sigmoid"](x), 1 / (1 + (-x).exp())),
        (f["logsigmoid"](x=x, temperature=2.0), x.sigmoid().log() / 2),
        (f["sqrelu"](x), x.clamp(min=0) ** 2),
        (f["fast_gelu_impl"](x), tanh),
        (f["bias_gelu_impl"](x - 1, torch.ones(4, dtype=F64)), tanh),
        (f["swiglu"](x, y), x * x.sigmoid() * y),
        (f["sigmoidglu"](x, y), x.sigmoid() * y),
        (f["swiglu_linear"](x=x, y=y, weight=W, bias=None), (x * x.sigmoid() * y) @ W.T),
        (
            f["l2norm"](x=x, eps=0.1, output_dtype=None),
            x / (x.square().sum(-1, keepdim=True) + 0.1).sqrt(),
        ),
    ]
    assert all(torch.allclose(got, want) for got, want in pairs)
    assert f["l2norm"](x=x, eps=0.1, output_dtype=torch.float32).dtype == torch.float32


def test_parts_of_rwkv7():
    """Mixtures, keys and gates."""
    torch.manual_seed(0)
    x, d, s = (torch.randn(B, T, H * V, dtype=F64) for _ in range(3))
    names = [f"x{name}" for name in "rwkvag"]
    shares = {name: torch.randn(H * V, dtype=F64) for name in reversed(names)}
    mix = fla.FUNCTIONS["fused_addcmul_rwkv7"]
    for got, name in zip(mix(hidden_states=x, delta=d, **shares), names, strict=True):
        assert torch.allclose(got, x + d * shares[name])
    assert mix(hidden_states=x, delta=d, **{**shares, "xg": None})[-1] is None
    got = fla.FUNCTIONS["fused_k_rwkv7"](k=x, a=d, ka=s, cu_seqlens=None)
    assert torch.allclose(got, x * (1 + (d - 1) * s))
    r, k, v = (value.unflatten(-1, (H, V)) for value in (x, d, s))
    got = fla.FUNCTIONS["gate_output_correction"](o=x, r=r, k=k, r_k=v[0, 0], v=v, g=d)
    assert torch.allclose(got, (x + ((r * k * v[0, 0]).sum(-1, keepdim=True) * v).flatten(2)) * d)


def test_losses():
    """Smooth targets, caps, squares of the logarithms of sums, and what is ignored."""
    torch.manual_seed(0)
    x, W = torch.randn(5, 3, dtype=F64, requires_grad=True), torch.randn(7, 3, dtype=F64)
    target = torch.tensor([1, 0, -1, 6, 2])
    z = 4 * torch.tanh(0.7 * (x @ W.T) / 4)
    total, kept = z.logsumexp(-1), target != -1
    hit = z.gather(1, target.clamp(min=0)[:, None])[:, 0]
    plain = (total - 0.9 * hit - 0.1 * z.mean(-1)) * kept
    squares = 0.01 * total**2 * kept
    given = {
        "label_smoothing": 0.1,
        "logit_scale": 0.7,
        "logit_softcapping": 4.0,
        "ignore_index": -1,
    }
    loss = fla.FUNCTIONS["cross_entropy_loss"]
    got, part = loss(logits=x @ W.T, target=target, lse_square_scale=0.01, **given)
    assert_alike([got], [plain + squares], [x])
    assert torch.allclose(part, squares)
    assert not part.requires_grad
    joined = fla.FUNCTIONS["fused_linear_cross_entropy_loss"]
    more = {"num_chunks": 8, "l2_penalty_factor": 1e-4, "accumulate_grad_in_fp32": True}
    more |= {"x": x, "target": target, "weight": W, "bias": None, **given}
    assert_alike([joined(**more, reduction="mean")], [plain.sum() / 4], [x])
    assert torch.allclose(joined(**more, reduction="sum"), plain.sum())
    with pytest.raises(InputError, match="no option use_l2warp=True"):
        joined(**more, reduction="sum", use_l2warp=True)


class Loss:
    """The attributes of a module of the package."""

    label_smoothing, logit_scale, lse_square_scale, logit_softcapping = 0.0, 1.0, 0.01, None
    ignore_index, process_group, return_z_loss, reduction = -100, None, True, "mean"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_of_a_module(reduction):
    """As cross_entropy_loss, reduced."""
    module = Loss()
    module.reduction = reduction
    x, target = torch.randn(4, 5), torch.tensor([0, 1, -100, 4])
    loss, part = fla.parts.forward_of_loss(module, x, target)
    every = F.cross_entropy(x, target, reduction="none")
    every = every + 0.01 * x.logsumexp(-1) ** 2 * (target >= 0)
    want = {"mean": every.sum() / 3, "sum": every.sum(), "none": every}[reduction]
    assert torch.allclose(loss, want)
    assert part.shape == loss.shape


class Mamba2(torch.nn.Module):
    """The attributes of the package's layer."""

    intermediate_size, n_groups, ssm_state_size, num_heads, conv_dim = 8, 1, 3, 2, 14
    dt_limit, act = (0.0, 2.0), staticmethod(F.silu)

    def __init__(self, rmsnorm: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_proj = torch.nn.Linear(5, 24, dtype=F64)
        self.conv1d = torch.nn.Conv1d(14, 14, 4, groups=14, dtype=F64)
        self.out_proj = torch.nn.Linear(8, 5, dtype=F64)
        self.A_log, self.dt_bias, self.D = (
            torch.nn.Parameter(torch.randn(2, dtype=F64)) for _ in range(3)
        )
        self.rmsnorm, self.norm = rmsnorm, lambda y, gate: y.sin() * gate

    def _get_D(self, expand_to_head_dim: bool) -> Tensor:
        return self.D[:, None].expand(-1, 4)

    def run_loop(self, x: Tensor, mask: Tensor) -> Tensor:
        gate, rows, dt = self.in_proj(x).split([8, 14, 2], -1)
        rows = F.pad((rows * mask[..., None]).mT, (3, 0))
        rows = F.silu(F.conv1d(rows, self.conv1d.weight, self.conv1d.bias, groups=14)).mT
        u, B_, C = (rows * mask[..., None]).split([8, 3, 3], -1)
        dt = F.softplus(dt + self.dt_bias).clamp(*self.dt_limit)
        u, S, outputs = u.unflatten(-1, (2, 4)), x.new_zeros(len(x), 2, 4, 3), []
        for t in range(x.shape[1]):
            step = dt[:, t, :, None, None]
            S = (-self.A_log.exp()[:, None, None] * step).exp() * S
            S = S + step * u[:, t, ..., None] * B_[:, t, None, None]
            outputs.append((S * C[:, t, None, None]).sum(-1) + self.D[:, None] * u[:, t])
        y = torch.stack(outputs, 1).flatten(2)
        return self.out_proj(self.norm(y, gate) if self.rmsnorm else y * F.silu(gate))


@pytest.mark.parametrize("rmsnorm", [False, True])
def test_mamba2(rmsnorm):
    """What is padded, and steps from a cache."""
    layer, forward = Mamba2(rmsnorm), fla.parts.forward_of_mamba2
    x = torch.randn(B, T, 5, dtype=F64)
    mask = torch.ones(B, T)
    mask[0, :2] = 0
    with forced("reference"):
        got, none, _ = forward(layer, x, attention_mask=mask)
        assert_alike([got], [layer.run_loop(x, mask)], [*layer.parameters()])
        assert none is None
        out, past, state = forward(layer, x[:, :5], None, True)
        rows = [out]
        for t in range(5, T):
            cache = {"conv_state": past, "recurrent_state": state}
            out, past, state = forward(layer, x[:, t : t + 1], cache)
            rows.append(out)
    assert torch.allclose(torch.cat(rows, 1), layer.run_loop(x, torch.ones(B, T)))
    assert past.shape == (B, 14, 4)
