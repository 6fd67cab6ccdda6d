"""Experts of few tokens, of classes as transformers makes them."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.engines.c.kernels.few_rows import MOST_ROWS, linear
from elman.functional import experts, install, report, uninstall
from elman.functional.experts import FewTokensExperts
from elman.functional.linear_layers import TYPES, copy_of
from helpers import need_engine, need_isa

LINE = "Experts, weights in {} for up to 16 tokens"
ALONE = "Experts, left alone: its weights need a copy, which weights= makes"


class Experts(nn.Module):
    """As transformers' interface describes them; each token and choice by itself."""

    def __init__(self, count: int, width: int, inner: int, **facts: bool) -> None:
        super().__init__()
        self.has_gate, self.has_bias = facts.get("gate", True), facts.get("bias", False)
        self.is_transposed = facts.get("transposed", False)
        self.has_post_expert_norm = facts.get("norm", False)
        outputs = inner * (1 + self.has_gate)
        self.first = "gate_up_proj" if self.has_gate else "up_proj"
        for name, size in ((self.first, (outputs, width)), ("down_proj", (width, inner))):
            values = torch.randn(count, *size) / size[1] ** 0.5
            values = values.mT.contiguous() if self.is_transposed else values
            setattr(self, name, nn.Parameter(values))
            if self.has_bias:
                setattr(self, f"{name}_bias", nn.Parameter(torch.randn(count, size[0])))
        self.act_fn, self.post_expert_norm = F.silu, nn.LayerNorm(width)
        self.calls = 0  # of the class's own forward

    def _apply_gate(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return self.act_fn(gate) * up

    def product(self, x: Tensor, name: str, expert: Tensor) -> Tensor:
        weight = getattr(self, name)[expert]
        y = (weight if not self.is_transposed else weight.mT) @ x
        return y + getattr(self, f"{name}_bias")[expert] if self.has_bias else y

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        self.calls += 1
        rows = list[Tensor]()
        for x, chosen, shares in zip(hidden_states, top_k_index, top_k_weights, strict=True):
            y = torch.zeros_like(x)
            for expert, share in zip(chosen, shares, strict=True):
                inner = self.product(x, self.first, expert)
                inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
                out = self.product(inner, "down_proj", expert)
                y = y + share * (self.post_expert_norm(out) if self.has_post_expert_norm else out)
            rows.append(y)
        return torch.stack(rows)


def draw(tokens: int, choices: int, count: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, which experts each token has, and their shares."""
    chosen = torch.stack([torch.randperm(count)[:choices] for _ in range(tokens)])
    return torch.randn(tokens, width), chosen, torch.rand(tokens, choices)


def converted(model: nn.Module, weights: str | None = None) -> dict[str, str]:
    with pytest.warns(UserWarning, match="replaced nothing"):  # nothing recurs in it
        return install(model, weights=weights)


@pytest.mark.parametrize("isa", ["", "avx2", "scalar"])
@given(
    tokens=st.integers(1, MOST_ROWS),
    choices=st.integers(1, 5),
    inputs=st.sampled_from((1, 8, 31, 130, 300)),
    outputs=st.sampled_from((1, 3, 17, 300)),
    bias=st.booleans(),
    name=st.sampled_from([*TYPES]),
)
def test_rows_of_experts(isa, tokens, choices, inputs, outputs, bias, name) -> None:
    """What each row's own weights give; the rows of an expert that there is not are zero."""
    need_engine("c")
    torch.manual_seed(0)
    x, chosen, _ = draw(tokens, choices, 5, inputs)
    weight, scale = copy_of(torch.randn(5, outputs, inputs), TYPES[name])
    offsets = torch.randn(5, outputs) if bias else None
    chosen[tokens // 2, 0] = 5
    with pytest.MonkeyPatch.context() as patch:
        if isa:
            need_isa(isa, patch)
        got = linear(x, weight, scale, offsets, chosen).view(tokens, choices, outputs)
    known = chosen.clamp(max=4)
    wide = weight.double() if scale is None else weight.double() * scale.double()[..., None]
    want = torch.einsum("bi,bkoi->bko", x.double(), wide[known])
    if offsets is not None:
        want += offsets.double()[known]
    want[tokens // 2, 0] = 0
    off = 1e-3 if name == "int8" else 1e-5  # inputs are rounded to 16 bits
    assert (got - want).abs().max() <= off * (1 + want.abs().max())
    assert bool((got[tokens // 2, 0] == 0).all())


@given(
    tokens=st.integers(1, MOST_ROWS),
    choices=st.integers(1, 4),
    facts=st.fixed_dictionaries(
        {name: st.booleans() for name in ("gate", "bias", "transposed", "norm")}
    ),
    weights=st.sampled_from([None, *TYPES]),
)
def test_few_tokens(tokens, choices, facts, weights) -> None:
    """The class's own results, of the weights as they are read."""
    need_engine("c")
    torch.manual_seed(1)
    layer = Experts(4, 12, 9, **facts)
    given = draw(tokens, choices, 4, 12)
    own = copy.deepcopy(layer)
    lines = converted(layer, weights)
    if weights is None and facts["transposed"]:
        assert lines == report(layer) == {"": ALONE}
        return
    assert lines == report(layer) == {"": LINE.format(weights or "float32")}
    for name in (own.first, "down_proj"):
        value = getattr(own, name)
        stored, scale = copy_of(value.mT if own.is_transposed else value, layer.copy_dtype)
        stored = stored.float() if scale is None else stored * scale[..., None]
        value.data = stored.mT if own.is_transposed else stored
    with torch.no_grad():
        got, want = layer(*given), own(*given)
    assert layer.calls == 0
    assert (got - want).abs().max() <= 1e-3 * (1 + want.abs().max())
    if weights != "int8":
        assert torch.allclose(got, want, rtol=1e-4, atol=1e-5)


def test_all_else_is_the_classs() -> None:
    """Many tokens, gradients, autocast, and weights that are computed."""
    need_engine("c")
    layer = Experts(4, 12, 9)
    converted(layer, "int8")
    x, chosen, shares = draw(MOST_ROWS + 1, 2, 4, 12)
    few = x[:2], chosen[:2], shares[:2]
    with torch.no_grad():
        layer(x, chosen, shares)
        with torch.autocast("cpu", torch.bfloat16):
            layer(*few)
    assert layer.calls == 2
    layer(*few).sum().backward()
    assert layer.down_proj.grad is not None
    with torch.no_grad():
        layer(few[0], top_k_index=few[1], top_k_weights=few[2])
        assert layer.calls == 3
        first = layer(*few)
        layer.down_proj.mul_(2)
        assert torch.allclose(layer(*few), 2 * first, rtol=1e-5)
        assert layer.calls == 3
        nn.utils.parametrize.register_parametrization(layer, "down_proj", nn.Dropout())
        layer(*few)
        assert layer.calls == 4


def test_half_precision() -> None:
    """bfloat16 stays; float16 and float64 need a type to be named, or are the class's."""
    need_engine("c")
    given = draw(2, 2, 4, 12)
    layer = Experts(4, 12, 9).bfloat16()
    assert converted(layer) == {"": LINE.format("bf16")}
    half = given[0].bfloat16(), given[1], given[2].bfloat16()
    with torch.no_grad():
        got, want = layer(*half), Experts.forward(layer, *half)
    assert got.dtype is torch.bfloat16
    assert torch.allclose(got.float(), want.float(), rtol=0.05, atol=0.05)
    assert converted(Experts(4, 12, 9).half()) == {"": ALONE}
    assert converted(Experts(4, 12, 9).half(), "int8") == {"": LINE.format("int8")}
    assert converted(Experts(4, 12, 9).double(), "int8") == {}


def test_copies_and_the_way_back() -> None:
    """Copies and pickles run as well; the state_dict is the class's; its class comes back."""
    need_engine("c")
    model = nn.Sequential(Experts(4, 12, 9))
    keys, given = [*model.state_dict()], draw(2, 2, 4, 12)
    converted(model, "int8")
    layer: Any = model[0]
    assert isinstance(layer, FewTokensExperts)
    assert type(layer).__name__ == "Experts"
    with torch.no_grad():
        out = layer(*given)
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(again[0]) is type(layer)
            assert "_copies" not in vars(again[0])
            assert torch.equal(again[0](*given), out)
    assert [*model.state_dict()] == keys
    uninstall(model)
    assert report(model) == {"0": "Experts, not replaced: elman.functional.install(model)"}
    assert type(model[0]) is Experts
    assert {*vars(model[0])} == {*vars(Experts(4, 12, 9))}


def test_layers_that_are_none(monkeypatch) -> None:
    """A layer with other parts stays; so do all without a compiler."""
    other = Experts(4, 12, 9)
    other.down_proj = nn.Parameter(torch.randn(12, 9))
    missing = Experts(4, 12, 9)
    del missing.gate_up_proj
    assert converted(nn.Sequential(other, missing)) == {}
    monkeypatch.setattr(experts, "find_compiler", lambda: "there is none")
    assert converted(Experts(4, 12, 9)) == {"": "Experts, left alone: there is no C compiler"}
