"""Tokens of layers of transformers as recorded operations: the same numbers as without, whatever
changes between two of them."""

from __future__ import annotations

import copy
import gc
import sys
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from elman import errors
from elman.functional import install, state_memory, tokens, uninstall

CODE = """
import torch
from torch import nn
from torch.nn import functional as F

def causal_conv1d_update(x, conv_state, weight, bias=None, activation=None):
    window = torch.cat((conv_state, x), -1)
    conv_state.copy_(window[..., 1:])
    return F.silu((window[..., 1:] * weight).sum(-1, keepdim=True) + bias[:, None])

def mamba2_selective_state_update(state, x, dt, A, B, C, D=None, dt_bias=None, dt_softplus=False):
    dt = F.softplus(dt + dt_bias)
    state.copy_(state * torch.exp(dt[..., None] * A) + (dt * x)[..., None] * B[:, :, None])
    return (state * C[:, :, None]).sum(-1) + D * x

class Mixer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.layer_idx, self.way = index, "usual"
        self.enter, self.leave = nn.Linear(8, 16 + 8 + 2), nn.Linear(16, 8)
        self.weight, self.bias = nn.Parameter(torch.randn(24, 3)), nn.Parameter(torch.randn(24))
        self.A_log, self.D = nn.Parameter(torch.rand(2)), nn.Parameter(torch.rand(2))
        self.other = [torch.ones(3)]

    def forward(self, hidden_states, cache=None, scale=1.0, mask=None, extra=None):
        batch = hidden_states.shape[0]
        held = cache.layers[self.layer_idx]
        mixed, dt = self.enter(hidden_states).split([24, 2], -1)
        mixed = causal_conv1d_update(
            mixed.transpose(1, 2), held.conv_states[0], self.weight, self.bias, activation="silu"
        )
        x, B, C = mixed.transpose(1, 2).split([16, 4, 4], -1)
        form = (-1, 8, 4)
        y = mamba2_selective_state_update(
            held.recurrent_states[0], x.view(batch, 2, 8), dt.transpose(1, 2).expand(-1, -1, 8),
            -self.A_log.exp()[:, None, None].expand(form), B.view(batch, 1, 4),
            C.view(batch, 1, 4), self.D[:, None].expand(-1, 8),
            dt_bias=self.D[:, None].expand(-1, 8), dt_softplus=True,
        )
        low = y.to(torch.promote_types(y.dtype, dt.dtype)).min(-1, keepdim=True)
        y = y + low.values * (low.indices < 0)
        if self.way == "drawn":
            y = y + torch.rand(2, 8)
        elif self.way == "read":
            y = y * float(y.sum() > 0)
        elif self.way == "asked":
            y = y if torch.is_nonzero(y.sum() > 0) else -y
        elif self.way == "foreign":
            y = y + self.other[0][0]
        elif self.way == "counted":
            held.count = y = y + held.count.add_(1)
        if extra is not None:
            y = y * extra["gain"]
        if mask is not None:
            y = y * mask[:, None, None]
        return scale * self.leave(y.reshape(batch, 1, 16))

class Layer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm, self.mixer = nn.RMSNorm(8), Mixer(index)
    def forward(self, hidden_states, cache=None, attention_mask=None, **options):
        return hidden_states + self.mixer(self.norm(hidden_states), cache=cache, **options)

class DynamicLayer:
    def __init__(self, batch, draw):
        self.keys, self.values = (torch.randn(batch, 2, 5, 4, generator=draw) for _ in range(2))
        self.cumulative_length = 5
    def update(self, keys, values, *given, **options):
        self.keys = torch.cat((self.keys, keys), 2)
        self.values = torch.cat((self.values, values), 2)
        self.cumulative_length += 1
        return self.keys, self.values

class StaticLayer(DynamicLayer):
    def update(self, keys, values, *given, **options):
        for held, new in ((self.keys, keys), (self.values, values)):
            held[:, :, self.cumulative_length % 5] = new[:, :, 0]
        self.cumulative_length += 1
        return self.keys, self.values

def attend(module, query, key, value, mask, scaling, **options):
    weights = query @ key.mT * scaling
    weights = (weights if mask is None else weights + mask[..., : key.shape[2]]).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights

class Table(dict):
    def get_interface(self, name, default):
        return self.get(name, default)

ALL_ATTENTION_FUNCTIONS = Table(sdpa=attend)

class Attention(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.layer_idx, self.way = index, "usual"
        self.enter, self.leave = nn.Linear(8, 24), nn.Linear(8, 8)
    def forward(self, hidden_states, attention_mask=None, cache=None, **options):
        form = hidden_states.shape[0], 1, 3, 2, 4
        q, k, v = self.enter(hidden_states).view(form).permute(2, 0, 3, 1, 4)
        if self.way == "asked":
            q = q * (cache.get_seq_length(self.layer_idx) + 1)
        k, v = cache.update(k, v, self.layer_idx, kwargs=options)
        if self.way == "read":
            q = q + k[:, :, -1:]
        if self.way == "masked":
            q = q + attention_mask[..., :1]
        function = ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", attend)
        out, weights = function(self, q, k, v, attention_mask, scaling=0.5, **options)
        return self.leave(out.reshape(*out.shape[:2], 8)), weights

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.seen = nn.Parameter(torch.randn(3, 8, 8)), torch.zeros(3)
        self.way = "usual"
    def forward(self, x, index):
        out = torch.zeros_like(x)
        for expert in range(3):
            rows = torch.where(index == expert)[0]
            out.index_add_(0, rows, x[rows] @ self.weights[expert])
            if self.way == "counted":
                self.seen[expert] += len(rows)
            if self.way == "drawn":
                out = out + torch.rand(8)
        return out

class AttentionLayer(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.norm, self.attention, self.experts = nn.RMSNorm(8), Attention(index), Experts()
        self.gate, self.way = nn.Linear(8, 3), "usual"
    def forward(self, hidden_states, cache=None, attention_mask=None, **options):
        x, weights = self.attention(
            self.norm(hidden_states), cache=cache, attention_mask=attention_mask, **options
        )
        x = (hidden_states + x)[:, 0]
        x = (x + self.experts(x, self.gate(x).argmax(-1)))[:, None]
        return (x, weights) if self.way == "returned" else x
"""
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
COUNT = 9  # tokens: recordings begin with the third, and are compared with the layer's own once


class Cache(SimpleNamespace):
    """Layers of states; it can be referred to weakly."""

    layers: list[Any]

    def update(self, keys: Tensor, values: Tensor, index: int, **options: Any) -> Any:
        return self.layers[index].update(keys, values, **options)

    def get_seq_length(self, index: int) -> int:
        return self.layers[index].cumulative_length


def cache_of(batch: int = 1, seed: int = 3) -> Any:
    """A cache of two layers, as transformers has it."""
    draw = torch.Generator().manual_seed(seed)

    def layer() -> Any:
        states = [torch.randn(batch, 2, 8, 4, generator=draw)]
        convs = [torch.randn(batch, 24, 3, generator=draw)]
        return SimpleNamespace(conv_states=convs, recurrent_states=states, seen=[True])

    return Cache(layers=[layer(), layer()])


def inputs(batch: int = 1, count: int = COUNT) -> list[Tensor]:
    """Hidden states of some tokens."""
    return [*torch.randn(count, batch, 1, 8, generator=torch.Generator().manual_seed(5))]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two layers of a module that stands in for one of transformers, installed."""
    module = ModuleType("transformers.models.tokens")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(CODE, vars(module))
    torch.manual_seed(0)
    layers = nn.ModuleList([module.Layer(index) for index in range(2)])
    install(layers)
    yield layers
    uninstall(layers)


@pytest.fixture
def mixed(model: Any) -> Any:
    """A recurrent layer and one with attention and experts, installed."""
    module = sys.modules[type(model[0]).__module__]
    layers = nn.ModuleList([model[0], module.AttentionLayer(1)])
    install(layers)
    yield layers
    uninstall(layers)


def cache_that_grows(model: Any, batch: int = 1, kind: str = "DynamicLayer", seed: int = 3) -> Any:
    """A cache of the layers of `mixed`."""
    cache, module = cache_of(batch, seed), sys.modules[type(model[0]).__module__]
    cache.layers[1] = getattr(module, kind)(batch, torch.Generator().manual_seed(seed))
    return cache


def run(model: Any, cache: Any, x: Tensor, **options: Any) -> Tensor:
    """Both layers for a token."""
    for layer in model:
        x = layer(x, cache=cache, **options)
    return x


def alone(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same without recordings."""

    def plain(*given: Any, **options: Any) -> Tensor:
        with monkeypatch.context() as patched:
            patched.setattr(tokens._busy, "layer", model, raising=False)
            return run(model, *given, **options)

    return plain


def gives_up(monkeypatch: pytest.MonkeyPatch, why: str = "") -> Any:
    """A context in which a warning names a layer whose tokens are not recorded."""
    monkeypatch.setattr(errors, "_warned", set())
    return pytest.warns(UserWarning, match=f"run by transformers' Python.*{why}")


def uses(model: Any) -> list[int]:
    """How many tokens were run by recordings, of each layer."""
    recordings = [tokens._tokens[layer]._recording for layer in model]
    return [recording.uses for recording in recordings if recording is not None]


def assert_same(model: Any, other: Any, a: Any, b: Any, xs: list[Tensor], **options: Any) -> None:
    """Outputs and states are those of another model with its own cache, but for rounding."""
    for x in xs:
        close(run(model, a, x, **options), other(b, x, **options))
    for ours, theirs in zip(a.layers, b.layers):
        if hasattr(ours, "keys"):
            close((ours.keys, ours.values), (theirs.keys, theirs.values))
        else:
            close(ours.conv_states[0], theirs.conv_states[0])
            close(ours.recurrent_states[0], theirs.recurrent_states[0])


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_the_same_numbers(model, monkeypatch, batch):
    """Of recordings and of layers, states included; the first tokens are the layers' own."""
    a, b = cache_of(batch), cache_of(batch)
    assert_same(model, alone(model, monkeypatch), a, b, inputs(batch))
    assert uses(model) == [COUNT - 3] * 2
    with torch.inference_mode():
        assert_same(model, alone(model, monkeypatch), a, b, inputs(batch))
    out = [run(model, a, x) for x in inputs(batch)]
    assert len({value.data_ptr() for value in out}) == COUNT  # nobody writes into a result again


@torch.no_grad()
@pytest.mark.parametrize("change", range(11))
def test_what_changes(model, monkeypatch, request, change):
    """Weights in place and new ones, flags, hooks, options, a mask, another cache, states at other
    addresses, parts: each is noticed."""
    other = alone(model, monkeypatch)
    a, b = cache_of(), cache_of()
    assert_same(model, other, a, b, inputs())
    mixer, options = model[1].mixer, dict[str, Any]()
    if change == 0:
        mixer.A_log.mul_(0.5)
    elif change == 1:
        mixer.leave.weight = nn.Parameter(torch.randn(8, 16))
    elif change == 2:
        mixer.leave.weight.data = torch.randn(8, 16)
    elif change == 3:
        mixer.leave.register_forward_hook(lambda *given: 2 * given[-1])
    elif change == 4:
        options["scale"] = 0.5
    elif change == 5:
        options["mask"] = torch.zeros(1)
    elif change == 6:
        a, b = cache_of(seed=4), cache_of(seed=4)
    elif change == 7:
        for cache in (a, b):
            cache.layers[0].recurrent_states[0] = 2 * cache.layers[0].recurrent_states[0]
    elif change == 8:
        mixer.norm = mixer.enter = nn.Linear(8, 26)
    elif change == 9:
        hook = register_module_forward_hook(lambda *given: 2 * given[-1])
        request.addfinalizer(hook.remove)
    else:
        a.other = b.other = True
    with gives_up(monkeypatch, "a hook") if change == 3 else nullcontext():
        assert_same(model, other, a, b, inputs(), **options)
        assert_same(model, other, a, b, inputs(count=2), **options)


@torch.no_grad()
def test_tensors_in_a_dict(model, monkeypatch):
    """Their numbers may change with each token; a tensor of another shape is noticed."""
    other, a, b = alone(model, monkeypatch), cache_of(), cache_of()
    extra = {"gain": torch.ones(1)}
    assert_same(model, other, a, b, inputs(), extra=extra)
    assert uses(model) == [COUNT - 3] * 2
    extra["gain"] = torch.full((1,), 0.5)
    assert_same(model, other, a, b, inputs(count=2), extra=extra)
    extra["gain"] = torch.tensor([[0.5], [2.0]])
    assert_same(model, other, a, b, inputs(), extra=extra)


@torch.no_grad()
@pytest.mark.parametrize("way", ["drawn", "read", "asked", "foreign", "counted"])
def test_what_is_not_recorded(model, monkeypatch, way):
    """Random numbers, branches on numbers, tensors that are neither the layer's nor the cache's:
    the layers run as they are."""
    a, b = cache_of(), cache_of()
    for layer, *held in zip(model, a.layers, b.layers):
        layer.mixer.way = way
        for each in held:
            each.count = torch.zeros(1)
    other = alone(model, monkeypatch)
    with gives_up(monkeypatch):
        for x in inputs():
            torch.manual_seed(1)
            got = run(model, a, x)
            torch.manual_seed(1)
            close(got, other(b, x))
    assert all(tokens._tokens[layer].refused for layer in model)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_attention_and_experts(mixed, monkeypatch, batch):
    """What grows with the text, and what chooses by numbers, is called by each run: another cache,
    a mask that grows, too."""
    other = alone(mixed, monkeypatch)
    for _ in range(2):
        a, b = (cache_that_grows(mixed, batch) for _ in range(2))
        assert_same(mixed, other, a, b, inputs(batch))
    assert uses(mixed)[1] > COUNT  # another cache needs no other recording of it
    for length, x in enumerate(inputs(batch), 15):
        mask = torch.randn(batch, 1, 1, length)
        assert_same(mixed, other, a, b, [x], attention_mask=mask)
    assert uses(mixed[1:]) == [COUNT - 7]
    assert a.layers[1].cumulative_length == 5 + 2 * COUNT
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


@torch.no_grad()
@pytest.mark.parametrize(
    ("part", "way"),
    [
        ("attention", "asked"),
        ("attention", "read"),
        ("attention", "masked"),
        ("experts", "counted"),
        ("experts", "drawn"),
        ("", "returned"),
    ],
)
def test_attention_of_its_own_kind(mixed, monkeypatch, part, way):
    """Attention that asks for the cache's length or reads what grows is called whole by each run; a
    mask may be read.
    A layer with a part that changes what it keeps, or draws, or that returns what grows, runs as
    it is."""
    (mixed[1].get_submodule(part) if part else mixed[1]).way = way
    a, b = (cache_that_grows(mixed) for _ in range(2))
    options = dict[str, Any]()
    if way == "masked":
        options["attention_mask"] = torch.randn(1, 1, 1, 20)
    with nullcontext() if part == "attention" else gives_up(monkeypatch):
        for x in inputs(count=12):
            torch.manual_seed(1)
            x = mixed[0](x, cache=a)
            got = mixed[1](x, cache=a, **options)
            torch.manual_seed(1)
            want = alone(mixed[1:], monkeypatch)(b, x, **options)
            for pair in zip(got, want) if way == "returned" else [(got, want)]:
                close(*pair)
    of_layer = tokens._tokens[mixed[1]]
    if part == "attention":
        assert (mixed[1].attention in of_layer._apart) == (way != "masked")
        assert uses(mixed)[1] == 12 - 4 - (way != "masked")
    else:
        assert of_layer.refused
    assert mixed[1].experts.seen.sum() == (24 if way == "counted" else 0)
    assert a.layers[1].cumulative_length == 17


@torch.no_grad()
@pytest.mark.parametrize("way", ["usual", "listed"])
def test_layers_with_states_elsewhere(mixed, monkeypatch, way):
    """A layer without states is recorded; states in a list of the cache, which are exchanged, are
    not counted twice."""
    weight = mixed[1].experts.weights

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, hidden_states: Tensor, cache: Any = None) -> Tensor:
            return 2 * self.part(hidden_states, cache=cache)

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, hidden_states: Tensor, cache: Any = None) -> Tensor:
            if way == "listed":
                cache.sums[0] = hidden_states = cache.sums[0] + hidden_states
            return hidden_states + self.weight[0, :1]

    for kind in (Plain, Part):
        kind.__module__ = type(mixed[0]).__module__
        monkeypatch.setattr(sys.modules[kind.__module__], kind.__name__, kind, raising=False)
    tokens.record(Plain)
    model = nn.ModuleList([Plain()])
    a, b = (Cache(layers=[], sums=[torch.zeros(1, 1, 8)]) for _ in range(2))
    for x in inputs():
        close(run(model, a, x), alone(model, monkeypatch)(b, x))
    close(a.sums[0], b.sums[0])
    assert uses(model) == [COUNT - (3 if way == "usual" else 4)]
    tokens.restore(Plain)


@torch.no_grad()
def test_a_cache_of_fixed_size(mixed, monkeypatch):
    """It is written to in place, so its layers run as they are."""
    a, b = (cache_that_grows(mixed, kind="StaticLayer") for _ in range(2))
    with pytest.warns(UserWarning, match="run by transformers' Python.*StaticLayer has a fixed"):
        assert_same(mixed, alone(mixed, monkeypatch), a, b, inputs())
    assert uses(mixed) == [COUNT - 3]


def test_gradients_and_copies(model, monkeypatch):
    """Calls with gradients are the layers' own; a copy of a model has recordings of its own."""
    a, b = cache_of(), cache_of()
    with torch.no_grad():
        assert_same(model, alone(model, monkeypatch), a, b, inputs())
    x = inputs(count=1)[0].requires_grad_()
    a = copy.deepcopy(b)
    got = run(model, a, x)
    assert got.requires_grad
    close(got, alone(model, monkeypatch)(b, x))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].mixer.D.mul_(2)
        a, b = cache_of(), cache_of()
        assert_same(twin, alone(twin, monkeypatch), a, b, inputs())
    assert uses(model) == uses(twin) == [COUNT - 3] * 2


@torch.no_grad()
def test_a_recording_that_differs(model, monkeypatch):
    """It is compared once with the layer's own result, and not used."""
    a, b = cache_of(), cache_of()
    run_of = tokens.Recording.run
    monkeypatch.setattr(tokens.Recording, "run", lambda *given: 2 * run_of(*given))
    with gives_up(monkeypatch, "its results differ"):
        assert_same(model, alone(model, monkeypatch), a, b, inputs())
    assert {tokens._tokens[layer].refused for layer in model} == {"its results differ"}


@torch.no_grad()
def test_hooks_see_each_token(mixed, monkeypatch):
    """Layers with a hook on one of their parts, or another forward of it, run as they are; hooks of
    a layer itself are called by torch."""
    seen = []
    hooks = [
        part.register_forward_hook(lambda *given: seen.append(given[-1]))
        for part in (mixed[0].mixer.leave, mixed[1].attention, mixed[1])
    ]
    a, b = (cache_that_grows(mixed) for _ in range(2))
    with gives_up(monkeypatch, "a hook"):
        for x in inputs():
            run(mixed, a, x)
    assert len(seen) == 3 * COUNT
    assert uses(mixed) == []
    for hook in hooks:
        hook.remove()
    for x in inputs():
        run(mixed, a, x)
        run(mixed, b, x)
    leave = mixed[0].mixer.leave
    leave.forward = lambda x: seen.append(x) or nn.Linear.forward(leave, x)
    for x in inputs():
        run(mixed, a, x)
    assert len(seen) == 4 * COUNT


@torch.no_grad()
@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_inputs_that_are_rounded(model, monkeypatch, weights):
    """Where weights of eight bits meet inputs of 16, another last bit of an input may be another
    integer: a recording is not given up for that."""
    install(model, weights=weights)
    run_of = tokens.Recording.run
    monkeypatch.setattr(tokens.Recording, "run", lambda *given: run_of(*given) * (1 + 1e-4))
    cache = cache_of()
    with nullcontext() if weights == "int8" else gives_up(monkeypatch, "its results differ"):
        for x in inputs():
            run(model, cache, x)
    assert uses(model) == ([COUNT - 4] * 2 if weights == "int8" else [])  # weights are copied first


@torch.no_grad()
def test_weights_that_are_written_by_their_data(model, monkeypatch):
    """As peft merges adapters, which torch does not count: the prompt of the next text tells."""
    install(model, weights="bf16")
    other, a = alone(model, monkeypatch), cache_of()
    for x in inputs():
        run(model, a, x)
    before = uses(model)
    assert min(before) > 0
    for part in model.modules():
        if isinstance(part, nn.Linear):
            part.weight.data += 0.1
            part(torch.randn(20, part.in_features))  # as a prompt
    b = copy.deepcopy(a)
    assert_same(model, other, a, b, inputs())
    assert min(uses(model)) > 0


@torch.no_grad()
@pytest.mark.parametrize("kind", ["model", "mixed"])
def test_threads_with_caches_of_their_own(kind, request, monkeypatch):
    """Several threads generate with one model."""
    model = request.getfixturevalue(kind)
    cache_of = partial(cache_that_grows, model) if kind == "mixed" else globals()["cache_of"]
    want = {
        seed: [alone(model, monkeypatch)(cache, x) for x in inputs(count=40)]
        for seed, cache in ((seed, cache_of(seed=seed)) for seed in range(3))
    }
    got = dict[int, list[Tensor]]()

    def generate(seed: int) -> None:
        with torch.no_grad():
            cache = cache_of(seed=seed)
            got[seed] = [run(model, cache, x) for x in inputs(count=40)]

    workers = [threading.Thread(target=generate, args=(seed,)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed, values in want.items():
        close(got[seed], values)


@torch.no_grad()
def test_a_cache_is_let_go(model):
    """Recordings hold the states of their layers, not the cache, which has those of all."""
    cache = cache_of()
    for x in inputs():
        run(model, cache, x)
    assert uses(model) == [COUNT - 3] * 2
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None


@torch.no_grad()
@pytest.mark.parametrize("kept", ["nothing", "cache", "state", "view", "memory", "new", "unknown"])
def test_the_next_text(model, monkeypatch, kept):
    """A cache in the place of one that is gone runs by the recordings at once; what is still in use
    of the old one keeps its numbers, and so does what uses the new one's memory."""
    monkeypatch.setattr(state_memory, "COUNTS_USERS", kept != "unknown")
    other, a, b = alone(model, monkeypatch), cache_of(), cache_of()
    assert_same(model, other, a, b, inputs())
    before = [tokens._tokens[layer]._recording for layer in model]
    state = a.layers[0].recurrent_states[0]
    want = state.clone()
    ways = {"cache": a, "state": state, "view": state[0], "memory": state.untyped_storage()}
    held = ways.get(kept)
    del a, state, ways
    gc.collect()
    a, b = cache_of(seed=8), cache_of(seed=8)
    view = a.layers[0].recurrent_states[0][0] if kept == "new" else None
    assert_same(model, other, a, b, inputs())
    same = [
        tokens._tokens[layer]._recording is recording
        for layer, recording in zip(model, before, strict=True)
    ]
    assert same == [kept == "nothing", kept not in ("cache", "unknown")]
    if same[0]:
        assert uses(model) == [2 * COUNT - 3] * 2
    if kept == "view":
        close(held, want[0])
    elif kept in ("cache", "state"):
        close(held.layers[0].recurrent_states[0] if kept == "cache" else held, want)
    if view is not None:
        close(view, a.layers[0].recurrent_states[0][0])


@torch.no_grad()
def test_states_that_are_chosen_anew(model, monkeypatch):
    """As beams choose them for each token: recordings run, and all have the layer's numbers."""
    other, a, b = alone(model, monkeypatch), cache_of(3), cache_of(3)
    for at, x in enumerate(inputs(3, 12)):
        close(run(model, a, x), other(b, x))
        rows = torch.randperm(3, generator=torch.Generator().manual_seed(at))
        for cache in (a, b):
            for layer in cache.layers if at > 4 else ():
                for states in (layer.conv_states, layer.recurrent_states):
                    states[0] = states[0].index_select(0, rows)
    assert uses(model) == [12 - 3] * 2


@torch.no_grad()
def test_recordings_of_little_use(model):
    """Where each text has another cache and none ends, recordings are given up for longer and
    longer."""
    made, caches = 0, [cache_of() for _ in range(40)]
    for cache in caches:
        for x in inputs(count=4):
            run(model, cache, x)
        made += tokens._tokens[model[0]]._recording is not None
    assert made <= 2


def test_uninstall(model):
    """Classes have their own forward again."""
    kinds = {type(model[0]), type(model[0].mixer)}
    assert all(hasattr(kind.forward, "__wrapped__") for kind in kinds)
    uninstall(model)
    assert not any(hasattr(kind.forward, "__wrapped__") for kind in kinds)
