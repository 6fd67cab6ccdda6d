"""Matrices per sample on a GPU, beside the kernels of flash-linear-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.on_gpu.cases import Case
from benchmarks.on_gpu.kernels import own_times
from benchmarks.on_gpu.timers import Clock, both_ways
from benchmarks.peers.matrix_forms import FORMS

LOOPED = 1024 * 8  # steps of samples at most of which a loop in torch is timed


def matrix_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Matrices per sample beside torch's chunkwise form, a loop, and the kernels of
    flash-linear-attention where they are installed."""
    row = own_times(case, device, clock)
    forms, source = FORMS[case.cell], torch.Generator().manual_seed(0)
    drawn = forms.draw(case.T, case.B, case.H, case.H, source)
    leaves = {name: value.to(device).requires_grad_() for name, value in drawn.items()}
    contestants: dict[str, Callable[[], Any]] = {}
    if (chunks := forms.chunks) is not None:
        contestants["chunks"] = lambda: chunks.run(chunks.body, **leaves)
    if case.T * case.B <= LOOPED:
        contestants["python loop"] = lambda: forms.loop(**leaves)
    for name, run in contestants.items():
        row[name] = both_ways(run, list(leaves.values()), clock)
    if (kernels := linear_attention(case.cell, drawn, device)) is not None:
        row["fla"] = both_ways(*kernels, clock)
    return row


def linear_attention(
    cell: str, drawn: dict[str, torch.Tensor], device: str
) -> tuple[Callable[[], Any], list[torch.Tensor]] | None:
    """The chunkwise kernels of flash-linear-attention for a cell, in bfloat16, decays in float32;
    none where they are not installed or not known.

    Args:
        drawn: leaves [T, N, ..] of the cell; theirs are [1, T, N, ..].
    """
    try:
        from fla.ops import gated_delta_rule, gla, rwkv7, simple_gla  # pyright: ignore
    except ImportError:
        return None
    given = {name: value.to(device) for name, value in drawn.items()}

    def leaf(value: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return value.to(dtype).unsqueeze(0).requires_grad_()

    def logs(name: str) -> torch.Tensor:
        return leaf(given[name].log(), torch.float32)

    def of(*names: str) -> list[torch.Tensor]:
        return [leaf(given[name]) for name in names]

    if cell == "gated_delta_net":
        kernel, leaves = gated_delta_rule.chunk_gated_delta_rule, [*of(*"qkv"), logs("a"), *of("b")]
    elif cell == "gla":
        kernel, leaves = gla.chunk_gla, [*of(*"qkv"), logs("a")]
    elif cell == "mamba2":
        written, decay = given["x"] * given["dt"][..., None], given["dt"] * given["A"]
        kernel = simple_gla.chunk_simple_gla
        leaves = [*of("C", "B"), leaf(written), leaf(decay, torch.float32)]
    elif cell == "rwkv7":
        removed, written = -given["kk"], given["kk"] * given["a"]
        kernel = rwkv7.chunk_rwkv7
        leaves = [*of("r"), logs("w"), *of("k", "v"), leaf(removed), leaf(written)]
    else:
        return None
    return lambda: kernel(*leaves, scale=1.0)[0], leaves
