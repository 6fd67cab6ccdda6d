"""Functions of a single step that write into a state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.errors import InputError, ShapeError
from elman.functional import (
    causal_conv1d,
    causal_conv1d_update,
    mamba2_scan,
    selective_scan,
    selective_state_update,
)

F64 = torch.float64


@given(
    count=st.integers(1, 3),
    steps=st.sampled_from((None, 1, 3)),
    K=st.sampled_from((1, 2, 4)),
    more=st.integers(0, 2),
    bias=st.booleans(),
    activation=st.sampled_from((None, "silu")),
)
def test_convolution(count, steps, K, more, bias, activation) -> None:
    """A state of K - 1 inputs or more; further steps are those of the whole sequence."""
    torch.manual_seed(0)
    channels, T = 5, steps or 1
    x = torch.randn(count, channels, 7 + T, dtype=F64)
    weight, b = torch.randn(channels, K, dtype=F64), torch.randn(channels, dtype=F64)
    b = b if bias else None
    state = x[..., 7 - (K - 1) - more : 7].clone()
    now = x[..., 7] if steps is None else x[..., 7:]
    got = causal_conv1d_update(now, state, weight, b, activation)
    want = causal_conv1d(x, weight, b, activation=activation)[..., 7:]
    assert torch.allclose(got, want[..., 0] if steps is None else want)
    assert torch.equal(state, x[..., x.shape[-1] - state.shape[-1] :])


def arguments(heads: bool, repeated: bool) -> dict[str, torch.Tensor]:
    """Of a step of two samples: six channels; or four heads of three values and two groups."""
    torch.manual_seed(0)
    each, groups, N = ((4, 3), (2,), 5) if heads else ((6,), (), 5)

    def of_heads(*shape: int) -> torch.Tensor:
        value = torch.randn(*shape, dtype=F64)
        return value[..., :1].expand(shape) if repeated else value

    return {
        "state": torch.randn(2, *each, N, dtype=F64),
        "x": torch.randn(2, *each, dtype=F64),
        "dt": of_heads(2, *each),
        "A": -(of_heads(*each).abs()[..., None] + (0 if repeated else torch.rand(N))).expand(
            *each, N
        ),
        "B": torch.randn(2, *groups, N, dtype=F64),
        "C": torch.randn(2, *groups, N, dtype=F64),
        "D": of_heads(*each),
        "dt_bias": of_heads(*each),
        "z": torch.randn(2, *each, dtype=F64),
    }


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("without", [(), ("D", "dt_bias", "z")])
@pytest.mark.parametrize("positive", [False, True])
def test_state_update(heads, repeated, without, positive) -> None:
    """Against the formula; Mamba-2 repeats the numbers of a head."""
    given = {k: v for k, v in arguments(heads, repeated and heads).items() if k not in without}
    state = given["state"].clone()
    dt = given["dt"] + given.get("dt_bias", 0)
    dt = F.softplus(dt) if positive else dt
    B, C = given["B"], given["C"]
    if heads:
        B, C = (v.repeat_interleave(2, 1)[:, :, None] for v in (B, C))
    else:
        B, C = B[:, None], C[:, None]
    state = (dt[..., None] * given["A"]).exp() * state + (dt * given["x"])[..., None] * B
    out = (state * C).sum(-1) + given.get("D", 0) * given["x"]
    out = out * F.silu(given["z"]) if "z" in given else out
    got = selective_state_update(**given, dt_softplus=positive)
    assert torch.allclose(got, out)
    assert torch.allclose(given["state"], state)


def test_a_state_of_half_precision_stays_so() -> None:
    """The dtypes of state and output are those of the arguments."""
    given = {key: value.to(torch.bfloat16) for key, value in arguments(True, True).items()}
    out = selective_state_update(**given)
    assert (out.dtype, given["state"].dtype) == (torch.bfloat16, torch.bfloat16)


def test_steps_continue_scans() -> None:
    """Four steps of a scan and a fifth by itself are five steps."""
    torch.manual_seed(0)
    x, dt = torch.randn(2, 5, 4, 3, dtype=F64), torch.rand(2, 5, 4, dtype=F64)
    B, C = torch.randn(2, 2, 5, 2, 5, dtype=F64)
    A = -torch.rand(4, dtype=F64)
    _, state = mamba2_scan(
        *(v[:, :4] for v in (x, dt)), A, B[:, :4], C[:, :4], return_final_states=True
    )
    want = mamba2_scan(x, dt, A, B, C)[:, 4]
    A = A[:, None, None].expand(4, 3, 5)
    now = dt[:, 4, :, None].expand(2, 4, 3)
    got = selective_state_update(state, x[:, 4], now, A, B[:, 4], C[:, 4])
    assert torch.allclose(got, want)
    u, step = torch.randn(2, 6, 5, dtype=F64), torch.rand(2, 6, 5, dtype=F64)
    A, B, C = -torch.rand(6, 5, dtype=F64), B[:, :, 0].mT, C[:, :, 0].mT
    parts = [v[..., :4] for v in (u, step)], [v[..., :4] for v in (B, C)]
    _, state = selective_scan(*parts[0], A, *parts[1], return_last_state=True)
    got = selective_state_update(state, u[..., 4], step[..., 4], A, B[..., 4], C[..., 4])
    assert torch.allclose(got, selective_scan(u, step, A, B, C)[..., 4])


@pytest.mark.parametrize("name", ["state", "x", "dt", "A", "B", "C", "D", "z", "dt_bias"])
def test_what_does_not_fit_is_refused(name) -> None:
    """By its name."""
    given = arguments(True, False)
    for value in ("q", torch.ones(2, dtype=torch.long), given[name][..., :1, :0]):
        with pytest.raises((InputError, ShapeError)):
            selective_state_update(**given | {name: value})
    with pytest.raises(ShapeError, match="divided among 3 groups"):
        selective_state_update(**given | {k: torch.ones(2, 3, 5, dtype=F64) for k in "BC"})
    with pytest.raises(InputError, match="no option silu"):
        selective_state_update(**given, silu=1)


def test_a_convolution_that_does_not_fit_is_refused() -> None:
    """States that are too short, activations that are unknown."""
    x, state, weight = torch.ones(2, 5), torch.ones(2, 5, 2), torch.ones(5, 4)
    with pytest.raises(ShapeError, match="conv_state must be"):
        causal_conv1d_update(x, state, weight)
    with pytest.raises(InputError, match="activation must be"):
        causal_conv1d_update(x, torch.ones(2, 5, 3), weight, activation="relu")
    with pytest.raises(ShapeError, match="x must be"):
        causal_conv1d_update(x[:1], torch.ones(2, 5, 3), weight)
