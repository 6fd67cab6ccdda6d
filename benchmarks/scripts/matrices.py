"""The gated delta rule in training: elman's cell beside a loop and beside chunks, both in torch.

    python -m benchmarks.scripts.matrices [--quick] [--out FILE.jsonl]

All three agree before they are timed; rounds alternate; medians are printed with their quartiles
and written as rows. The loop runs the formula (Yang et al. 2024, arXiv:2412.06464, equation 10)
step by step, the chunks its parallel form (section 3.3) with a triangular solve in each chunk of
64 steps. Heads are samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from elman.measuring.timing import quartiles, time_side_by_side
from elman.ops import outer

CASES = [(1024, 8, 4, 64), (4096, 1, 4, 64), (1024, 8, 4, 128)]  # T, B, heads, K = V
QUICK = [(96, 1, 2, 16)]
CHUNK = 64
SECONDS, ROUNDS = 5.0, 5  # of timing each case, and at least so many rounds


@elman.cell(input="q[K], k[K], v[V], a, b", state="S[K, V]", output="y[V]")
def gated_delta(q: Any, k: Any, v: Any, a: Any, b: Any, S: Any) -> Any:
    """One step of the gated delta rule; a and b are the gates themselves."""
    S = a * S
    S = S + outer(k, b * (v - S.T @ k))
    return S.T @ q, S


def loop(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Step by step: q, k [T, N, K], v [T, N, V], a, b [T, N] -> [T, N, V]."""
    S, out = q.new_zeros(*q.shape[1:], v.shape[-1]), list[Tensor]()
    for t in range(len(q)):
        S = S * a[t, :, None, None]
        read = (S * k[t, :, :, None]).sum(1)
        S = S + k[t, :, :, None] * (b[t, :, None] * (v[t] - read))[:, None]
        out.append((S * q[t, :, :, None]).sum(1))
    return torch.stack(out)


def chunks(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Chunk by chunk: within one, what is written at each step solves a triangular system."""
    q, k, v, a, b = (x.movedim(0, 1) for x in (q, k, v, a, b))
    S, out = q.new_zeros(len(q), q.shape[-1], v.shape[-1]), list[Tensor]()
    for Q, K, V, A, b_ in zip(*(x.split(CHUNK, 1) for x in (q, k, v, a, b)), strict=True):
        logs = A.log().cumsum(1)
        decay = (logs[:, :, None] - logs[:, None, :]).tril().exp().tril()
        g = logs.exp()[..., None]
        system = b_[..., None] * (K @ K.mT) * decay
        U = torch.linalg.solve_triangular(
            system.tril(-1), b_[..., None] * (V - g * (K @ S)), upper=False, unitriangular=True
        )
        out.append(g * (Q @ S) + (Q @ K.mT * decay) @ U)
        S = g[:, -1:] * S + (K * decay[:, -1, :, None]).mT @ U
    return torch.cat(out, 1).movedim(1, 0)


def draw(T: int, N: int, size: int) -> tuple[Tensor, ...]:
    """Normalised keys and queries, values, and gates near their usual sizes."""
    torch.manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(T, N, size), dim=-1) for _ in range(2))
    a, b = torch.sigmoid(torch.randn(T, N) + 3), torch.rand(T, N)
    return tuple(x.requires_grad_() for x in (q, k, torch.randn(T, N, size), a, b))


def train(run: Callable[..., Tensor], x: tuple[Tensor, ...], d: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of all arguments."""
    out = run(*x)
    return out.detach(), *torch.autograd.grad(out, x, d)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table, and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny case")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)
    quick = options.quick
    print("T      B  heads  K = V  elman ms        loop ms         chunks ms       times as fast")
    for T, B, heads, size in QUICK if quick else CASES:
        x = draw(T, B * heads, size)
        d = torch.randn(T, B * heads, size)
        net = elman.Recurrent(gated_delta, size, size, engine="c")
        ways = {"elman": lambda *row: net(row)[0], "loop": loop, "chunks": chunks}  # noqa: B023
        want = train(loop, x, d)
        for run in ways.values():
            for value, other in zip(train(run, x, d), want, strict=True):
                torch.testing.assert_close(value, other, rtol=2e-3, atol=2e-3)
        runs = {name: partial(train, run, x, d) for name, run in ways.items()}
        samples = time_side_by_side(runs, 0.0 if quick else SECONDS, ROUNDS)
        spreads = {name: quartiles(sample.steady) for name, sample in samples.items()}
        cells = [
            f"{1e3 * s.median:7.1f} ({1e3 * s.q1:.1f}-{1e3 * s.q3:.1f})" for s in spreads.values()
        ]
        fast, slow, chunked = (spread.median for spread in spreads.values())
        gains = f"{slow / fast:.0f} of the loop, {chunked / fast:.1f} of chunks"
        print(f"{T:<6} {B:<2} {heads:<6} {size:<6} " + "  ".join(cells) + f"  {gains}")
        if options.out is not None:
            seconds = {name: asdict(spread) for name, spread in spreads.items()}
            row = {"case": f"{T},{B},{heads},{size}", "seconds": seconds, **code()}
            append_row(options.out, {**row, "machine": facts()})


if __name__ == "__main__":
    main()
