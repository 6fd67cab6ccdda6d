"""A cell that no cache has: drawn at random, written as a user would write it."""

from __future__ import annotations

import random

_TEXT = '''\
from elman import cell
from elman.ops import {f}, {g}, sigmoid, split


@cell(input="x[I]", state="h[H], c[H]", weights="W[3H, I], R[3H, H], b[3H], p[H]")
def unseen(x, h, c, W, R, b, p):
    """A cell drawn at random."""
    u, v, w = split(W @ x + R @ h + b, 3)
    u = sigmoid({k[0]} * u + p * c)
    c = u * c + (1 - u) * {f}({k[1]} * v)
    return sigmoid({k[2]} * w) * {g}(c), c
'''
_CURVES = ("cos", "erf", "relu", "silu", "sin", "softplus", "tanh")


def unseen_cell(source: random.Random) -> str:
    """Python text of a cell called ``unseen``; two draws never give the same kernel."""
    f, g = source.sample(_CURVES, 2)
    return _TEXT.format(f=f, g=g, k=[f"{source.uniform(0.5, 1.5):.9f}" for _ in range(3)])
