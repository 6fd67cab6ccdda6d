"""elman in 200 lines: a formula is traced, its adjoint derived, a tape chosen, C written and run.

The parts stand for frontend, autodiff, plan, engines/c and nn. Left out: gates in one product,
products before the loop, threads, and the minimum cut, in whose place one rule decides.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


# 1. Trace: values are nodes of a graph; operators make them; equal ones are made once.
class Value:
    def __init__(self, op: str, args: tuple[Any, ...], dim: str, data: Any) -> None:
        self.op, self.args, self.dim, self.data = op, args, dim, data  # dim: "H", "H I"; "": number
        self.number = make.cache_info().currsize  # arguments have smaller ones

    def __add__(self, other: Any) -> "Value":
        return pointwise("+", self, other)

    def __sub__(self, other: Any) -> "Value":
        return pointwise("-", self, other)

    def __rsub__(self, other: Any) -> "Value":
        return pointwise("-", other, self)

    def __mul__(self, other: Any) -> "Value":
        return pointwise("*", self, other)

    def __matmul__(self, v: "Value") -> "Value":
        return make("W @ v", (self, v), self.dim.split()[0])


@cache
def make(op: str, args: tuple[Any, ...], dim: str, data: Any = None) -> Value:
    return Value(op, args, dim, data)


def pointwise(op: str, *args: Any) -> Value:
    values = tuple(a if isinstance(a, Value) else make("number", (), "", float(a)) for a in args)
    return make(op, values, max(value.dim for value in values))


sigmoid, tanh = partial(pointwise, "sigmoid"), partial(pointwise, "tanh")


def walk(roots: list[Value], stop: Any = ()) -> list[Value]:
    """Every value that roots need, arguments first; those in stop are not entered."""
    found, left = set(), list(roots)
    while left:
        found.add(value := left.pop())
        left += [arg for arg in value.args if arg not in found and value not in stop]
    return sorted(found, key=lambda value: value.number)


# 2. Adjoint: each operation has one rule, by which its cotangent d goes to its arguments.
RULES: dict[str, Callable[[Value, Value], tuple[Value, ...]]] = {
    "+": lambda y, d: (d, d),
    "-": lambda y, d: (d, d * -1),
    "*": lambda y, d: (d * y.args[1], d * y.args[0]),
    "sigmoid": lambda y, d: (d * y * (1 - y),),
    "tanh": lambda y, d: (d * (1 - y * y),),
    "W @ v": lambda y, d: (
        pointwise("outer", d, y.args[1]),
        make("Wᵀ @ v", (y.args[0], d), y.args[1].dim),
    ),
}


def adjoint(after: Value) -> tuple[dict[Value, Value], list[tuple[Value, Value]]]:
    """The step backward in time: each value's cotangent, and what is summed for the weights."""
    found, sums = {after: make("d", (), "H", "d")}, []
    for y in reversed(walk([after])):
        for arg, part in zip(y.args, y.args and RULES[y.op](y, found[y]), strict=True):
            if arg.op == "weight":
                sums.append((arg, part))
            else:
                found[arg] = found[arg] + part if arg in found else part
    return found, sums


# 3. Tape: the backward reads values of the forward. What is cheap is computed again from others.
def taped(forward: list[Value], backward: list[Value]) -> list[Value]:
    dear = {value for value in forward if value.op in ("W @ v", "sigmoid", "tanh")}
    return [value for value in walk(backward, stop=dear) if value in dear]


# 4. C: pointwise code of one width shares a loop; a product needs its vector whole and opens one.
ROW = """int n = 0; n < B; n++) {{
double v[{n}][H > I ? H : I], *x = X + (t * B + n) * I, *h = S + (t * B + n) * H;
double *next = h + B * H, *kept = K + (t * B + n) * {kept} * H;"""


def steps(roots: list[Value], names: dict[Value, str]) -> Iterator[str]:
    """The C of a step, line by line; what has a name is there already, the rest gets one."""
    names |= {v: str(v.data) for v in walk(roots) if v.op == "number"}
    inside, width = set(), ""
    for value in [v for v in walk(roots, stop=set(names)) if v not in names]:
        product = value.op.endswith("@ v")
        if value.dim != width or (product and value.args[1] in inside):
            yield "}" * bool(width) + f"for (int i = 0; i < {value.dim}; i++) {{"
            width, inside = value.dim, set()
        names[value] = f"v[{len(names)}]"
        inside.add(value)
        args = [names[arg] + "[i]" * (bool(arg.dim) and not product) for arg in value.args]
        if product:
            n, at = value.args[1].dim, "i * {0} + k" if value.op == "W @ v" else "k * {1} + i"
            at = at.format(n, value.dim)
            yield f"{names[value]}[i] = 0; for (int k = 0; k < {n}; k++)"
            yield f"    {names[value]}[i] += {args[0]}[{at}] * {args[1]}[k];"
        else:
            text = f"{value.op}({args[0]})" if len(args) == 1 else f" {value.op} ".join(args)
            yield f"{names[value]}[i] = {text};"
    yield "}" * bool(width)


class Cell:
    """A formula of x, h and weights: ``Cell(rnn, {"H": 8, "I": 4}, W="H I", R="H H", b="H")``."""

    def __init__(self, formula: Callable[..., Value], sizes: dict[str, int], **dims: str) -> None:
        x, h = make("x", (), "I", "x"), make("h", (), "H", "h")
        weights = [make("weight", (), dims[name], name) for name in dims]
        after = formula(x, h, *weights)
        cotangents, sums = adjoint(after)
        roots = [cotangents[x], cotangents[h]]
        roots += [v for _, part in sums for v in (part.args if part.op == "outer" else [part])]
        self.tape = taped(walk([after]), roots)
        given = {v: str(v.data) for v in (x, h, *weights)}
        kept = {v: f"(kept + {n} * H)" for n, v in enumerate(self.tape)}
        row = ROW.format(n=len(walk([after, *roots])) + len(given), kept=len(kept))
        pointers = ", ".join(f"double *{name}" for name in ("X", "S", "K", *dims))
        text = ["#include <math.h>\ndouble sigmoid(double a) { return 1 / (1 + exp(-a)); }"]
        text += [f"enum {{ {name} = {size} }};" for name, size in sizes.items()]
        text += [f"void forward(int T, int B, {pointers}) {{"]
        text += [f"for (int t = 0; t < T; t++) for ({row}", *steps([after], names := dict(given))]
        text += [copy(to, names[v], "H") for v, to in {after: "next", **kept}.items()]
        pointers += "".join(f", double *{n}" for n in ("Y", "DX", "D", *(f"d_{d}" for d in dims)))
        text += [f"}}}}\nvoid backward(int T, int B, {pointers}) {{"]
        text += [f"for (int t = T - 1; t >= 0; t--) for ({row} double *d = D + n * H;"]
        text += [copy("d", "(Y + (t * B + n) * H)", "H", "+=")]
        text += steps(roots, names := {**given, **kept, make("d", (), "H", "d"): "d"})
        text += [added(f"d_{w.data}", part, names) for w, part in sums]
        text += [copy("(DX + (t * B + n) * I)", names[roots[0]], "I")]
        self.source = "\n".join([*text, copy("d", names[roots[1]], "H"), "}}"])
        folder = Path(tempfile.mkdtemp())
        (folder / "cell.c").write_text(self.source, encoding="utf-8")
        words = ["gcc", "-O3", "-shared", "-fPIC", "cell.c", "-o", "cell.so", "-lm"]
        subprocess.run(words, cwd=folder, check=True)
        self.library = ctypes.CDLL(str(folder / "cell.so"))

    def run(self, name: str, tensors: list[Tensor]) -> None:
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        self.library[name](*map(ctypes.c_int, tensors[0].shape[:2]), *pointers)


def copy(to: str, value: str, size: str, how: str = "=") -> str:
    return f"for (int i = 0; i < {size}; i++) {to}[i] {how} {value}[i];"


def added(to: str, part: Value, names: dict[Value, str]) -> str:
    if part.op != "outer":
        return copy(to, names[part], "H", "+=")
    d, v = (names[arg] for arg in part.args)
    n = part.args[1].dim
    loop = f"for (int i = 0; i < H; i++) for (int k = 0; k < {n}; k++)"
    return f"{loop} {to}[i * {n} + k] += {d}[i] * {v}[k];"


# 5. Run: both loops as one function of autograd, of x [T, B, I], h [B, H] and weights in float64.
class Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cell: Cell, x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        states = torch.cat([h[None], x.new_empty(len(x), *h.shape)])
        tape = x.new_empty(*x.shape[:2], len(cell.tape), h.shape[1])
        ctx.cell, ctx.tensors = cell, [v.contiguous() for v in (x, states, tape, *weights)]
        cell.run("forward", ctx.tensors)
        return states[1:].clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, states, _, *weights = ctx.tensors
        found = [torch.zeros_like(v) for v in (x, states[0], *weights)]
        ctx.cell.run("backward", [*ctx.tensors, dy.contiguous(), *found])
        return None, *found


def gru(x: Any, h: Any, Wr: Any, Wz: Any, Wn: Any, Rr: Any, Rz: Any, Rn: Any, *b: Any) -> Any:
    r = sigmoid(Wr @ x + Rr @ h + b[0])
    z = sigmoid(Wz @ x + Rz @ h + b[1])
    n = tanh(Wn @ x + b[2] + r * (Rn @ h + b[3]))
    return (1 - z) * n + z * h
