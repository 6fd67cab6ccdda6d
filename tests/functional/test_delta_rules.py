"""Functions with the calls of flash-linear-attention, against loops over independent steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.peers.matrix_steps import STEPS
from elman import functional
from elman.errors import InputError, ShapeError

F64 = torch.float64
CELLS = {"delta_rule": "delta_net", "gated_delta_rule": "gated_delta_net", "kda": "kda"}
CELLS["gla"] = "gla"
Sizes = tuple[int, ...]
SIZES = (2, 5, 2, 3, 4)  # B, T, heads, K, V


def drawn(name: str, sizes: Sizes, shared: int = 1) -> dict[str, Tensor]:
    """Arguments of a function; every ``shared`` heads of values have one of queries and keys."""
    B, T, heads, K, V = sizes
    source = torch.Generator().manual_seed(sum(sizes))

    def normal(*inner: int) -> Tensor:
        return torch.randn(B, T, *inner, generator=source, dtype=F64)

    every = {"q": normal(heads, K), "k": normal(heads, K), "v": normal(heads * shared, V)}
    decays = (heads * shared,) if name == "gated_delta_rule" else (heads * shared, K)
    if name != "delta_rule":
        every["g"] = -normal(*decays).abs()
    if name != "gla":
        every["beta"] = normal(heads * shared).sigmoid()
    return {key: value.requires_grad_() for key, value in every.items()}


def loop(
    name: str, every: dict[str, Tensor], state: Tensor | None, scale: float, norm: bool
) -> tuple[Tensor, Tensor]:
    """Outputs and last states, head by head and step by step."""
    q, k, v, *gates = every.values()
    shared = v.shape[2] // q.shape[2]
    q, k = (x.repeat_interleave(shared, 2) for x in (q, k))
    if norm:
        q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if "g" in every:
        gates[0] = gates[0].exp()
    B, T, heads, V = v.shape
    outputs, lasts = [], []
    for head in range(heads):
        S = q.new_zeros(B, q.shape[-1], V) if state is None else state[:, head]
        rows = []
        for t in range(T):
            inputs = tuple(x[:, t, head] for x in (q * scale, k, v, *gates))
            y, (S,) = STEPS[CELLS[name]](inputs, (), (S,))
            rows.append(y)
        outputs.append(torch.stack(rows, 1))
        lasts.append(S)
    return torch.stack(outputs, 2), torch.stack(lasts, 1)


def assert_alike(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], *leaves: Tensor) -> None:
    """The same results, and gradients of every leaf."""
    assert [x.shape for x in got] == [x.shape for x in want]
    assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True))
    gradients = [
        torch.autograd.grad([x.sin().sum() for x in results], leaves) for results in (got, want)
    ]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", CELLS)
@given(
    sizes=st.tuples(
        *[st.integers(1, most) for most in (3, 9, 3)], st.sampled_from((1, 5)), st.just(7)
    ),
    shared=st.integers(1, 2),
    norm=st.booleans(),
)
def test_functions_of_any_sizes(name: str, sizes: Sizes, shared: int, norm: bool) -> None:
    """A shared head of keys is that of several heads of values."""
    every = drawn(name, sizes, shared)
    norm = norm and name != "gla"
    options = {"use_qk_l2norm_in_kernel": True} if norm else {}
    state = torch.randn(sizes[0], sizes[2] * shared, *sizes[3:], dtype=F64, requires_grad=True)
    function = getattr(functional, name)
    got = function(
        **every, scale=0.7, initial_state=state, output_final_state=True, chunk_size=64, **options
    )
    assert_alike(got, loop(name, every, state, 0.7, norm), *every.values(), state)


@pytest.mark.parametrize("name", CELLS)
def test_usual_scale_and_sequences_behind_one_another(name: str) -> None:
    """One row of sequences gives what each by itself gives; last states only if asked for."""
    every, function = drawn(name, (1, 9, 2, 3, 4)), getattr(functional, name)
    ends = torch.tensor([0, 4, 5, 9])
    out, last = function(**every, output_final_state=True, cu_seqlens=ends)
    assert torch.equal(function(**every, cu_seqlens=ends.tolist())[0], out)
    parts = [
        loop(name, {key: x[:, a:b] for key, x in every.items()}, None, 3**-0.5, False)
        for a, b in zip(ends.tolist(), ends.tolist()[1:], strict=False)
    ]
    want = torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts])
    assert_alike((out, last), want, *every.values())
    assert function(**every)[1] is None


def test_half_precision_is_computed_in_float32() -> None:
    """The result has the values' type, the states are not rounded."""
    every = {key: x.detach().bfloat16() for key, x in drawn("gla", SIZES).items()}
    out, last = functional.gla(**every, output_final_state=True)
    assert last is not None
    assert (out.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    want, _ = functional.gla(**{key: x.float() for key, x in every.items()})
    assert torch.equal(out, want.bfloat16())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"q": torch.ones(2, 5, 3)},
            ShapeError,
            r"expected q, k \[B, T, heads, K\].*got .*2, 5, 3\]",
        ),
        ({"k": torch.ones(2, 5, 2, 4)}, ShapeError, "expected q, k"),
        ({"v": torch.ones(2, 5, 3, 4)}, ShapeError, "expected q, k"),
        ({"beta": torch.ones(2, 4, 2)}, ShapeError, "expected q, k"),
        ({"g": torch.ones(2, 5, 2, 3)}, ShapeError, "expected q, k"),
        ({"initial_state": torch.ones(2, 2, 4, 3)}, ShapeError, r"initial_state must be \[2, 2, 3"),
        ({"cu_seqlens": torch.tensor([0, 5])}, ShapeError, r"lie in one row, \[1, T"),
        ({"use_gate_in_kernel": True}, InputError, "no option use_gate_in_kernel=True"),
        ({"intial_state": torch.ones(2)}, InputError, "no option intial_state"),
    ],
)
def test_what_is_refused(changes, error, message) -> None:
    """With the shapes that are expected."""
    every = drawn("gated_delta_rule", SIZES) | changes
    with pytest.raises(error, match=message):
        functional.gated_delta_rule(**every)


def test_ends_of_sequences_are_checked() -> None:
    """They rise, and reach the last step."""
    every = drawn("gla", (1, 5, 2, 3, 4))
    for ends in ([0, 4], [1, 5], [0, 3, 2, 5], [0]):
        with pytest.raises(ShapeError, match="cu_seqlens"):
            functional.gla(**every, cu_seqlens=torch.tensor(ends))
