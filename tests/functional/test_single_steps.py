"""A step of a text that is generated, without gradients: as one with them, by another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from elman import functional as F  # noqa: N812  # as people write it
from elman.functional import running

Call = Callable[[int], tuple[Any, ...]]


def drawn(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64).requires_grad_()


def rule(function: Any, *gates: bool) -> Call:
    """A rule with gates of one value, or of all keys, for each head."""

    def call(B: int) -> tuple[Any, ...]:
        q, k, v = drawn(B, 1, 2, 3), drawn(B, 1, 2, 3), drawn(B, 1, 4, 5)
        more = [-drawn(B, 1, 2, 3) if wide else -drawn(B, 1, 4) for wide in gates]
        return function(q, k, v, *more, initial_state=drawn(B, 4, 3, 5), output_final_state=True)

    return call


def convolution(B: int) -> tuple[Any, ...]:
    before = drawn(B, 6, 3)
    return F.causal_conv1d(drawn(B, 6, 1), drawn(6, 4), drawn(6), None, before, True, "silu")


def mamba2(B: int) -> tuple[Any, ...]:
    x, rates, both = drawn(B, 1, 4, 3), -drawn(4), [drawn(B, 1, 1, 5) for _ in range(2)]
    state = drawn(B, 4, 3, 5)
    options = {"initial_states": state, "dt_softplus": True, "return_final_states": True}
    return F.mamba2_scan(x, drawn(B, 1, 4), rates, *both, D=drawn(4), **options)


def update(*groups: int) -> Call:
    """In place, of channels, or of heads in groups."""

    def call(B: int) -> tuple[Any, ...]:
        each = (4, 3) if groups else (6,)
        state = drawn(B, *each, 5).detach()
        both = [drawn(B, *groups, 5) for _ in range(2)]
        out = F.selective_state_update(
            state, drawn(B, *each), drawn(B, *each), -drawn(*each, 5), *both, drawn(*each)
        )
        return out, state

    return call


def rwkv(B: int) -> tuple[Any, ...]:
    state = [drawn(B, 6) for _ in range(3)]
    return F.rwkv4(-drawn(6), drawn(6), drawn(B, 1, 6), drawn(B, 1, 6), state)


def mlstm(B: int) -> tuple[Any, ...]:
    steps = [drawn(B, 2, 1, 3), drawn(B, 2, 1, 3), drawn(B, 2, 1, 5), drawn(B, 2, 1)]
    states = drawn(B, 2, 3, 5), drawn(B, 2, 3), drawn(B, 2, 1)
    return F.mlstm(*steps, drawn(B, 2, 1), *states, return_last_states=True)


CALLS: dict[str, Call] = {
    "delta_rule": rule(F.delta_rule, False),
    "gated_delta_rule": rule(F.gated_delta_rule, False, False),
    "kda": rule(F.kda, True, False),
    "gla": rule(F.gla, True),
    "simple_gla": rule(F.simple_gla, False),
    "causal_conv1d": convolution,
    "mamba2_scan": mamba2,
    "selective_state_update of channels": update(),
    "selective_state_update of one group": update(1),
    "selective_state_update of two groups": update(2),
    "rglru_scan": lambda B: F.rglru_scan(drawn(B, 1, 6), drawn(B, 1, 6), drawn(B, 6)),
    "rwkv4": rwkv,
    "mlstm": mlstm,
}


@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("name", CALLS)
def test_without_gradients(name: str, B: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same outputs and last states, twice in a row: the second call is a prepared one."""
    steps, original = [], running._run_step

    def step(*given: Any) -> Any:
        steps.append(given)
        return original(*given)

    monkeypatch.setattr(running, "_run_step", step)
    for seed in (0, 1):
        results = []
        for grad in (True, False):
            torch.manual_seed(seed)
            with torch.set_grad_enabled(grad):
                results.append(tree_leaves(CALLS[name](B)))
        for want, got in zip(*results, strict=True):
            assert got.shape == want.shape
            assert torch.allclose(got, want, atol=1e-12)
    assert len(steps) == 2
