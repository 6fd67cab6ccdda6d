"""A layer of integers as C: the canonical step, value by value, in whole numbers of 32 bits.

The formula is the one that runs in float32 (:mod:`elman.integers.rewrite`). Formats are read off it
again: each value is a whole number times a power of two that is known here, so that adding is
adding, and rounding is shifting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from elman.engines.base import Job
from elman.engines.weights import WeightRate
from elman.errors import InputError
from elman.integers.formats import Format, aligned, number, result, union
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size, shape_size

_MOST = 1 << 30  # of a value: rounding adds half a unit
_FINEST = -60
_BLOCK = 16  # units


def c_type(of: Format) -> str:
    """The smallest type that holds the numbers."""
    for bits in (8, 16):
        if of.most < 1 << (bits - 1):
            return f"int{bits}_t"
    return "int32_t"


def whole_numbers(values: Tensor) -> tuple[Tensor, int]:
    """Numbers as n · 2^exponent, with the largest exponent for which all n are whole."""
    exponent = 0
    exact = values.double()
    while exponent > _FINEST and bool((exact.ldexp(torch.tensor(-exponent)).frac() != 0).any()):
        exponent -= 1
    n = exact.ldexp(torch.tensor(-exponent))
    while exponent < -_FINEST and bool((n != 0).any()) and bool((n / 2).frac().eq(0).all()):
        n, exponent = n / 2, exponent + 1
    return n.long(), exponent


def on_grid(values: Tensor, of: Format) -> Tensor:
    """The whole numbers of a format that are nearest to some values."""
    return (values * 2.0**-of.exponent).round().clamp(of.low, of.high).long()


@dataclass(eq=False)
class IntegerLayer:
    """The step of one layer.

    Args:
        name: of what is defined in C: ``model_l0``.
        job: of one layer in inference.
        weights: in declared order, on their grids, in float32, as an engine has them.
        inputs: formats of the inputs, by name.
        states: formats of the states, by name.

    Attributes:
        constants: C type and numbers of arrays, by name.
        memory: C type and size of arrays of the caller's struct, by name.
        lines: of the function's body.
        output: format of all outputs.
    """

    name: str
    job: Job
    weights: Sequence[Tensor]
    inputs: Mapping[str, Format]
    states: Mapping[str, Format]
    constants: dict[str, tuple[str, Tensor]] = field(default_factory=dict)
    memory: dict[str, tuple[str, int]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes = dict(self.job.spec.dims)
        self.step = self.job.pair.step
        self._rate = WeightRate(self.job)
        self._formats: dict[Node, Format] = {}
        self._order = [v for v in self.step.walk() if not loop_invariant(v)]
        for leaf in self.step.inputs:
            self._formats[leaf] = self.inputs[leaf.name]
        for leaf in self.step.states:
            self._formats[leaf] = self.states[leaf.name]
        for value in self._order:
            if value not in self._formats:
                self._formats[value] = self._format(value)
        self._sources: dict[Node, Node] = {}  # of values that are other whole numbers as they are
        for value in self._order:
            source = self._same(value)
            if source is not None:
                self._sources[value] = self._source(source)
        self._local: dict[Node, str] = {}
        self._arrays: dict[Node, str] = {}
        self._copies: dict[Node, str] = {}  # of states that have changed
        self.output = union([self.format(value) for value in self.step.outputs])
        self._print()

    def size(self, value: Node) -> int:
        """Numbers of a value."""
        return math.prod(shape_size(value.shape, self.sizes))

    # ---- formats

    def _value(self, value: Node) -> Tensor:
        return self._rate.values(self.weights, (value,))[value]

    def format(self, value: Node) -> Format:
        """The format of a value."""
        if not loop_invariant(value):
            return self._formats[value]
        n, exponent = whole_numbers(self._value(value))
        return Format(exponent, int(n.min()), int(n.max()))

    def _format(self, value: Node) -> Format:
        if value.op == "matmul":
            n, exponents = self._rows(value)
            of = self.format(value.args[-1])
            finest = min(exponents)
            sums = n.abs().sum(1).tolist()
            most = max((s << (e - finest)) * of.most for s, e in zip(sums, exponents, strict=True))
            found: Format | None = Format(finest + of.exponent, -most, most)
        elif value.op == "sum":
            parts = aligned([self.format(arg) for arg in value.args])
            count = sum(map(self.size, value.args)) // self.size(value)
            low, high = min(0, *[p.low for p in parts]), max(0, *[p.high for p in parts])
            found = Format(parts[0].exponent, low * count, high * count)
        else:
            found = result(value, [self.format(v) for v in value.args])
        if found is None or found.most > _MOST:
            no_form = found is None
            raise self._refused(value, "has no form" if no_form else "needs more than 32 bits")
        return found

    def _refused(self, value: Node, reason: str) -> InputError:
        message = f"{self.job.name} in integers: {value.op} {reason}"
        return InputError(message, at=value.where or None)

    def _rows(self, product: Node) -> tuple[Tensor, list[int]]:
        """The matrix of a product as whole numbers [N, K], and the exponent of each row."""
        W = self._value(product.args[0])
        rows = [whole_numbers(row) for row in (W.T if product.transposed else W)]
        exponents = [exponent if bool(n.any()) else None for n, exponent in rows]
        finest = min((e for e in exponents if e is not None), default=0)
        return torch.stack([n for n, _ in rows]), [finest if e is None else e for e in exponents]

    def _same(self, value: Node) -> Node | None:
        """The argument whose whole numbers a value has, if it computes nothing."""
        args, of = value.args, self.format(value)
        if value.op == "lin" and len(args) == 1 and not value.bias:
            coef = number(value.coefs[0])
            is_same = coef is not None and coef.low == 1 and self._fits(value, args[0])
            return args[0] if is_same else None
        if value.op == "stop" or (value.op == "round" and self.format(args[0]).exponent == 0):
            return args[0]
        for found, other in zip(args, args[::-1]) if value.op in ("minimum", "maximum") else ():
            a, b = (self.format(arg).rounded(of.exponent) for arg in (found, other))
            is_chosen = a.high <= b.low if value.op == "minimum" else a.low >= b.high
            same_unit = self.format(found).exponent == of.exponent
            if is_chosen and same_unit and self._fits(value, found):
                return found
        return None

    def _fits(self, value: Node, arg: Node) -> bool:
        return not loop_invariant(arg) and self.size(arg) == self.size(value)

    def _source(self, value: Node) -> Node:
        return self._sources.get(value, value)

    def _args(self, value: Node) -> list[Node]:
        """The values that are read for one."""
        return [self._source(arg) for arg in value.args]

    # ---- text

    def _print(self) -> None:
        """Loops over units: values of one size whose arguments are at hand run in one loop; results
        are stored behind the last one."""
        stages: dict[Node, int] = {}  # after how many complete arrays a value can be computed
        loops: dict[tuple[int, int], list[Node]] = {}
        for value in self._needed():
            args = [arg for arg in self._args(value) if not loop_invariant(arg)]
            later = [stages[arg] + (not self._by_unit(value, arg)) for arg in args]
            stages[value] = max(later, default=0)
            if OPS[value.op].kind != "leaf":
                loops.setdefault((stages[value], self.size(value)), []).append(value)
        home = {value: key for key, values in loops.items() for value in values}
        kept = {*map(self._source, self.step.roots)} | {
            arg
            for value in home
            for arg in self._args(value)
            if home.get(arg) != home[value] or not self._by_unit(value, arg)
        }
        for (_, size), values in sorted(loops.items()):
            body, products = list[str](), list[str]()
            for value in values:
                self._local[value] = f"v{len(self._local)}"
                text = self._expression(value)
                if value.op == "matmul" and size > _BLOCK:
                    products.append(text)
                    text = f"p{len(products) - 1}[i - j]"
                body.append(f"const int32_t {self._local[value]} = {text};")
                if value in kept:
                    self._arrays[value] = f"a{len(self.memory)}"
                    self.memory[self._arrays[value]] = c_type(self.format(value)), size
                    body.append(
                        f"{self._arrays[value]}[i] = {self._cast(value)}{self._local[value]};"
                    )
            used: list[str] = []
            for line in reversed(body):
                used[:0] = [line] if _is_read(line, used) else []
            self._in_blocks(size, products, used)
            self._local.clear()
        at = 0
        for value in self.step.outputs:
            text = self._aligned(value, self.output.exponent, self.size(value))
            self._each(self.size(value), [f"y[{at} + i] = ({c_type(self.output)})({text});"])
            at += self.size(value)
        waiting = dict(zip(self.step.states, self.step.next_states, strict=True))
        waiting = {leaf: after for leaf, after in waiting.items() if leaf is not after}
        while waiting:  # a state changes once no other will become what it was
            read = {self._source(after) for after in waiting.values()}
            leaf = next((leaf for leaf in waiting if leaf not in read), None)
            if leaf is None:  # in a circle the others read a copy of one
                leaf = next(iter(waiting))
                copied = f"a{len(self.memory)}"
                self.memory[copied] = c_type(self.format(leaf)), self.size(leaf)
                self._each(self.size(leaf), [f"{copied}[i] = {self._name(leaf)}[i];"])
                self._copies[leaf] = copied
            after = waiting.pop(leaf)
            text = self._aligned(after, self.format(leaf).exponent, self.size(leaf))
            store = f"{self._state(leaf)}[i] = {self._cast(leaf)}({text});"
            self._each(self.size(leaf), [store])

    def _needed(self) -> list[Node]:
        """The values that results depend on, arguments first."""
        needed, waiting = set[Node](), [self._source(root) for root in self.step.roots]
        while waiting:
            value = waiting.pop()
            if value not in needed and not loop_invariant(value):
                needed.add(value)
                waiting += self._args(value)
        return [value for value in self._order if value in needed]

    def _by_unit(self, reader: Node, arg: Node) -> bool:
        """Whether a unit of the reader reads the same unit of an argument alone."""
        return OPS[reader.op].kind == "pointwise" and self.size(reader) == self.size(arg)

    def _each(self, size: int, body: Sequence[str]) -> None:
        lines = "\n".join(f"    {line}" for line in body)
        self.lines.append(f"for (long i = 0; i < {size}; i++) {{\n{lines}\n}}")

    def _in_blocks(self, size: int, products: Sequence[str], body: Sequence[str]) -> None:
        """Units in blocks, so that compilers vectorise what follows the products."""
        lines = "\n".join(f"        {line}" for line in body)
        read = {k: text for k, text in enumerate(products) if f" p{k}[i - j]" in lines}
        if not read:
            return self._each(size, body)
        names = ", ".join(f"p{k}[{_BLOCK}]" for k in read)
        stores = "\n".join(f"        p{k}[i - j] = {text};" for k, text in read.items())
        self.lines.append(
            f"""for (long j = 0; j < {size}; j += {_BLOCK}) {{
    const long end = j + {_BLOCK} < {size} ? j + {_BLOCK} : {size};
    int32_t {names};
    for (long i = j; i < end; i++) {{
{stores}
    }}
    for (long i = j; i < end; i++) {{
{lines}
    }}
}}"""
        )

    def _cast(self, value: Node) -> str:
        kind = c_type(self.format(value))
        return "" if kind == "int32_t" else f"({kind})"

    def _name(self, value: Node) -> str:
        """The array of a leaf, or of a value that was stored."""
        if value in self._copies:
            return self._copies[value]
        if OPS[value.op].kind == "leaf":
            is_state = value.op == "state"
            return self._state(value) if is_state else f"x_{value.name}{value.data[1]}"
        return self._arrays[value]

    def _state(self, leaf: Node) -> str:
        return f"h_{leaf.name}{leaf.data[1]}"

    def _constant(self, kind: str, numbers: Tensor) -> str:
        """The name of an array of constants."""
        name = f"{self.name}_c{len(self.constants)}"
        self.constants[name] = kind, numbers.reshape(-1)
        return name

    def _read(self, value: Node, size: int) -> str:
        """A value in a loop over so many units."""
        value = self._source(value)
        if value in self._local:
            return self._local[value]
        if loop_invariant(value):
            n, _ = whole_numbers(self._value(value))
            if n.numel() == 1:
                return f"{int(n)}" if int(n) >= 0 else f"({int(n)})"
            if value not in self._arrays:
                self._arrays[value] = self._constant(c_type(self.format(value)), n)
            return f"{self._arrays[value]}[i]"
        unit = "i" if self.size(value) == size else "0"
        return f"{self._name(value)}[{unit}]"

    def _aligned(self, value: Node, exponent: int, size: int) -> str:
        """A value in units of a power of two that is not larger than its own."""
        of, text = self.format(value), self._read(value, size)
        if not of.most:
            return "0"
        if of.rounded(exponent).most > _MOST:
            raise self._refused(value, "needs more than 32 bits")
        return text if of.exponent == exponent else f"{text} * {1 << (of.exponent - exponent)}"

    def _expression(self, value: Node) -> str:
        size = self.size(value)
        if value.op == "matmul":
            return self._product(value)
        if value.op == "lin":
            return self._sum(value)
        if value.op in ("round", "floor"):
            (arg,) = value.args
            shift = -self.format(arg).exponent
            if shift <= 0:
                return self._aligned(arg, 0, size)
            if shift > 31:
                return "0" if value.op == "round" else f"-({self._read(arg, size)} < 0)"
            name = "rounded" if value.op == "round" else "floored"
            return f"{name}({self._read(arg, size)}, {shift})"
        if value.op in ("mul", "abs", "relu", "sign"):
            return _PLAIN[value.op].format(*[self._read(arg, size) for arg in value.args])
        if value.op in ("sum", "amax"):
            return self._reduced(value)
        if value.op in ("cut", "place", "spread", "one_hot"):
            return self._moved(value)
        common = _COMMON.get(value.op)
        if common is None:
            raise self._refused(value, "has no text")
        chosen = value.args[1:] if value.op == "where" else value.args
        exponent = min(self.format(arg).exponent for arg in chosen)
        texts = [self._aligned(arg, exponent, size) for arg in chosen]
        if value.op == "where":
            texts.insert(0, self._read(value.args[0], size))
        return common.format(*texts)

    def _moved(self, value: Node) -> str:
        """Units of an array elsewhere."""
        arg = self._source(value.args[0])
        if loop_invariant(arg):
            raise self._refused(value, "of weights has no text")
        array, first = self._name(arg), dim_size(value.data, self.sizes)
        if value.op == "cut":
            return f"{array}[{first} + i]"
        if value.op == "place":
            return f"(i >= {first} && i < {first + self.size(arg)} ? {array}[i - {first}] : 0)"
        width = self.size(value) // self.size(arg)
        group = f"{array}[i / {width}]"
        if value.op == "spread":
            return group
        unit = 1 << max(0, -self.format(arg).exponent)
        return f"({group} == (int32_t)(i % {width} + {first}) * {unit})"

    def _reduced(self, value: Node) -> str:
        """A sum over units, or the largest of them."""
        exponent, texts = self.format(value).exponent, list[str]()
        for arg in value.args:
            source, of = self._source(arg), self.format(arg)
            if loop_invariant(source):
                raise self._refused(value, "of weights has no text")
            width = self.size(arg) // self.size(value)
            kind = c_type(self.format(source))[:-2]
            name = "total" if value.op == "sum" else "most"
            text = f"{name}_{kind}({self._name(source)} + i * {width}, {width})"
            shift = of.exponent - exponent
            texts.append(f"{text} * {1 << shift}" if shift else text)
        if value.op == "sum":
            return " + ".join(texts)
        return reduce(lambda a, b: f"largest({a}, {b})", texts)

    def _product(self, value: Node) -> str:
        n, exponents = self._rows(value)
        matrix, count = self._constant("int8_t", n), n.shape[1]
        vector = self._source(value.args[1])
        kind = c_type(self.format(vector))
        dot = f"dot_{kind[:-2]}({matrix} + i * {count}, {self._name(vector)}, {count})"
        shifts = torch.tensor(exponents) - min(exponents)
        if not bool(shifts.any()):
            return dot
        return f"{dot} * ((int32_t)1 << {self._constant('uint8_t', shifts)}[i])"

    def _sum(self, value: Node) -> str:
        """Terms in units of the finest one."""
        size, exponent = self.size(value), self.format(value).exponent
        terms: list[str] = []
        for coef, arg in zip(value.coefs, value.args, strict=True):
            of = number(coef)
            assert of is not None
            if not (of.most and self.format(arg).most):
                continue
            factor = of.low << (of.exponent + self.format(arg).exponent - exponent)
            text = self._read(arg, size)
            terms.append(
                text
                if factor == 1
                else f"{text} * {factor}"
                if factor > 0
                else f"{text} * ({factor})"
            )
        bias = number(value.bias)
        if bias is not None and bias.low:
            terms.append(f"({bias.low << (bias.exponent - exponent)})")
        return " + ".join(terms) or "0"


def _is_read(line: str, behind: Sequence[str]) -> bool:
    """Whether a line of a loop defines what later ones read, or stores it: of what is 0, or too
    fine to be seen, the parts are not read."""
    local = re.match(r"const int32_t (v\d+) = ", line)
    return local is None or any(re.search(rf"\b{local[1]}\b", other) for other in behind)


_PLAIN = {
    "mul": "{0} * {1}",
    "abs": "({0} < 0 ? -{0} : {0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "sign": "(({0} > 0) - ({0} < 0))",
}
_COMMON = {  # of values in one unit
    "minimum": "least({0}, {1})",
    "maximum": "largest({0}, {1})",
    "where": "({0} ? {1} : {2})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
}
