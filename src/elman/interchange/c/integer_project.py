"""The files of a module of integers as text: header, code, weights and a check of every number."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError
from elman.escaping import c_comment, c_names
from elman.integers.formats import Format
from elman.interchange.c.integers import IntegerLayer, c_type
from elman.interchange.c.project import CAPITALS, MAKEFILE, RESERVED, functions_of

_STEPS = 64  # of the check
_OWN = {
    "i",
    "four",
    "rounded",
    "floored",
    "least",
    "largest",
    "int8_t",
    "int16_t",
    "int32_t",
    "uint8_t",
}

_FUNCTIONS = """
/* n / 2^shift, rounded half to even; >> of a negative number is arithmetic, as in any compiler */
static inline int32_t rounded(int32_t n, int shift) {
    return (n + (((int32_t)1 << (shift - 1)) - 1) + ((n >> shift) & 1)) >> shift;
}
static inline int32_t floored(int32_t n, int shift) { return n >> shift; }
static inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t largest(int32_t a, int32_t b) { return a > b ? a : b; }
"""
_FOUR = """
/* four products, two in an instruction */
#ifdef __ARM_FEATURE_DSP
#include <arm_acle.h>
static inline int32_t four(const int8_t *w, const int8_t *v, int32_t sum) {
    uint32_t a, b;
    __builtin_memcpy(&a, w, 4);
    __builtin_memcpy(&b, v, 4);
    sum = __smlad(__sxtb16(a), __sxtb16(b), sum);
    return __smlad(__sxtb16(a >> 8 | a << 24), __sxtb16(b >> 8 | b << 24), sum);
}
#endif
"""
_IN_FOURS = """#ifdef __ARM_FEATURE_DSP
    for (; k + 4 <= n; k += 4) sum = four(w + k, v + k, sum);
#endif
"""
_OVER_UNITS = {
    "dot": """static inline int32_t dot_KIND(const int8_t *w, const KIND_t *v, long n) {
    int32_t sum = 0;
    long k = 0;
IN_FOURS    for (; k < n; k++) sum += (int32_t)w[k] * v[k];
    return sum;
}
""",
    "total": """static inline int32_t total_KIND(const KIND_t *v, long n) {
    int32_t sum = 0;
    for (long k = 0; k < n; k++) sum += v[k];
    return sum;
}
""",
    "most": """static inline int32_t most_KIND(const KIND_t *v, long n) {
    int32_t most = v[0];
    for (long k = 1; k < n; k++) most = v[k] > most ? v[k] : most;
    return most;
}
""",
}


def _array(name: str, kind: str, numbers: Tensor) -> str:
    texts = [str(n) for n in numbers.reshape(-1).tolist()]
    lines = [", ".join(texts[k : k + 16]) for k in range(0, len(texts), 16)]
    return f"static const {kind} {name}[{len(texts)}] = {{\n" + ",\n".join(lines) + "\n};\n"


class IntegerProject:
    """All files of one module, as C text.

    Args:
        name: of all.
        layers: lowest first.
        module: what the check compares with.
        inputs: formats of the inputs, by name.
        initial: whole numbers that the states begin with, by layer and name; none: zeros.
        names: of the inputs; none: those of the cell.
        about: what the header says of steps.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[IntegerLayer],
        module: Any,
        inputs: Sequence[Format],
        initial: Sequence[dict[str, Tensor]],
        names: Sequence[str] = (),
        about: str = "",
    ) -> None:
        self.name, self.layers, self.module, self.initial = name, layers, module, initial
        signature = module.runtime.signature
        entries = (*signature.inputs, *signature.static)
        names = names or [entry for entry, _ in entries]
        functions = functions_of(name, layers)
        powers = {f"{entry}_exponent" for entry in (*names, "y")}  # the header defines them
        self.names = c_names(names, RESERVED | _OWN | functions | powers, CAPITALS)
        self.sizes = [math.prod(sizes) for _, sizes in entries]
        self.formats = list(inputs)
        self.inputs = dict(zip(self.names, self.sizes, strict=True))
        self.takes = signature.takes
        self.output = sum(layers[-1].size(value) for value in layers[-1].step.outputs)
        self.about = about

    @property
    def exponents(self) -> dict[str, int]:
        """Of the powers of two that whole numbers of inputs, and of y, are multiplied by."""
        of_inputs = {n: of.exponent for n, of in zip(self.names, self.formats, strict=True)}
        return {**of_inputs, "y": self.layers[-1].output.exponent}

    def files(self) -> dict[str, str]:
        """Text by file name."""
        arrays = [
            _array(name, kind, numbers)
            for layer in self.layers
            for name, (kind, numbers) in layer.constants.items()
        ]
        return {
            f"{self.name}.h": self._header(),
            f"{self.name}.c": self._code(),
            f"{self.name}_weights.h": f"/* Weights of {self.name}. */\n{''.join(arrays)}",
            f"{self.name}_check.c": self._check(),
            "Makefile": MAKEFILE.replace("NAME", self.name),
        }

    def members(self, index: int) -> list[tuple[str, str, int]]:
        """Members of the caller's struct: C type, name and size."""
        layer = self.layers[index]
        states = [
            (c_type(layer.format(leaf)), f"h_{leaf.name}{leaf.data[1]}", layer.size(leaf))
            for leaf in layer.step.states
        ]
        arrays = [(kind, name, size) for name, (kind, size) in layer.memory.items()]
        above = []
        if index + 1 < len(self.layers):
            size = sum(layer.size(value) for value in layer.step.outputs)
            above = [(c_type(layer.output), "y", size)]
        return [(kind, f"l{index}_{name}", size) for kind, name, size in (*states, *arrays, *above)]

    @property
    def weights(self) -> int:
        """How many numbers the arrays hold."""
        constants = [of for layer in self.layers for of in layer.constants.values()]
        return sum(numbers.numel() for _, numbers in constants)

    @property
    def state(self) -> int:
        """Bytes of the caller's struct, without padding."""
        width = {"int8_t": 1, "int16_t": 2, "int32_t": 4}
        of_layers = [self.members(index) for index in range(len(self.layers))]
        return sum(width[kind] * size for members in of_layers for kind, _, size in members)

    def _parameters(self) -> str:
        pairs = zip(self.names, self.formats, strict=True)
        return ", ".join(f"const {c_type(of)} *{name}" for name, of in pairs)

    def _header(self) -> str:
        name, upper = self.name, self.name.upper()
        sizes = [f"#define {upper}_{n.upper()} {size}" for n, size in self.inputs.items()]
        powers = [f"#define {upper}_{n.upper()}_EXPONENT ({e})" for n, e in self.exponents.items()]
        members: list[str] = []
        for index, layer in enumerate(self.layers):
            members.append(f"    /* {c_comment(layer.job.name)} */")
            members += [
                f"    {kind} {member}[{size}];" for kind, member, size in self.members(index)
            ]
        shapes = ", ".join(f"{n} [{size}]" for n, size in self.inputs.items())
        of_y = c_type(self.layers[-1].output)
        about = f". {c_comment(self.about)}" * bool(self.about)
        return f"""/* {name}, written by elman: C99, integers, no library, no allocation. */
#ifndef {upper}_H
#define {upper}_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {{
#endif

/* numbers of a step's inputs and of its output */
{chr(10).join(sizes)}
#define {upper}_Y {self.output}
/* a number n of theirs is n * 2^EXPONENT */
{chr(10).join(powers)}

/* all memory that a sequence needs; one for each sequence that runs at the same time */
typedef struct {{
{chr(10).join(members)}
}} {name}_state;

/* bytes of a {name}_state, for callers that do not read this header */
long {name}_bytes(void);
/* begin a sequence */
void {name}_init({name}_state *state);
/* one step: {shapes} -> y [{self.output}]{about} */
void {name}_step({name}_state *state, {self._parameters()}, {of_y} *y);
/* T steps, one behind another in memory */
void {name}_run({name}_state *state, {self._parameters()}, {of_y} *y, long steps);

#ifdef __cplusplus
}}
#endif
#endif
"""

    def _layer(self, index: int) -> str:
        layer = self.layers[index]
        taken = self.takes[index]
        lines = [
            f"{kind} *const {member.partition('_')[2]} = state->{member};"
            for kind, member, _ in self.members(index)
        ]
        lines = [line for line in lines if not line.split("*const ")[1].startswith("y ")]
        parameters: list[str] = []
        for k, (leaf_name, of) in enumerate(layer.inputs.items()):
            parameters.append(f"const {c_type(of)} *in{k}")
            at = 0
            for leaf in layer.step.inputs:
                if leaf.name == leaf_name:
                    lines.append(
                        f"const {c_type(of)} *const x_{leaf.name}{leaf.data[1]} = in{k} + {at};"
                    )
                    at += layer.size(leaf)
        assert len(parameters) == len(taken), "each input has a format"
        names = [line.split("*const ")[1].split(" ")[0] for line in lines]
        lines.append(" ".join(f"(void){name};" for name in names))
        lines += layer.lines
        body = "\n".join("    " + line for text in lines for line in text.split("\n"))
        arguments = ", ".join(parameters)
        head = f"static void {layer.name}({self.name}_state *state, {arguments}"
        head += f", {c_type(layer.output)} *y)"
        return f"/* {c_comment(layer.job.name)} */\n{head} {{\n{body}\n}}\n"

    def _code(self) -> str:
        name = self.name
        steps: list[str] = []
        below = self.names[0]
        for index, layer in enumerate(self.layers):
            out = "y" if index + 1 == len(self.layers) else f"state->l{index}_y"
            arguments = [below, *(self.names[k] for k in self.takes[index][1:])]
            steps.append(f"    {layer.name}(state, {', '.join(arguments)}, {out});")
            below = out
        start: list[str] = []
        for index, layer in enumerate(self.layers):
            for leaf in layer.step.states:
                member = f"state->l{index}_h_{leaf.name}{leaf.data[1]}"
                value = f"{layer.name}_i{leaf.name}{leaf.data[1]}[i]" if self.initial else "0"
                loop = f"for (long i = 0; i < {layer.size(leaf)}; i++)"
                start.append(f"    {loop} {member}[i] = {value};")
        rows = ", ".join(f"{n} + row * {size}" for n, size in self.inputs.items())
        of_y = c_type(self.layers[-1].output)
        layers = "\n".join(self._layer(index) for index in range(len(self.layers)))
        kinds = ["int8", "int16", "int32"]
        return "\n".join(
            [
                f"/* {name}: written by elman. See {name}.h. */",
                f'#include "{name}.h"',
                f'#include "{name}_weights.h"',
                _FUNCTIONS,
                *([_FOUR] if "dot_int8(" in layers else []),
                *(
                    text.replace("KIND", kind).replace("IN_FOURS", _IN_FOURS * (kind == "int8"))
                    for verb, text in _OVER_UNITS.items()
                    for kind in kinds
                    if f"{verb}_{kind}(" in layers
                ),
                *(_array(n, kind, v) for n, (kind, v) in self._starts().items()),
                layers,
                f"long {name}_bytes(void) {{ return (long)sizeof({name}_state); }}",
                f"void {name}_init({name}_state *state) {{",
                *start,
                "}",
                f"void {name}_step({name}_state *state, {self._parameters()}, {of_y} *y) {{",
                *steps,
                "}",
                f"void {name}_run({name}_state *state, {self._parameters()},"
                f" {of_y} *y, long steps) {{",
                f"    for (long row = 0; row < steps; row++) {name}_step(state, {rows},"
                f" y + row * {self.output});",
                "}",
                "",
            ]
        )

    def _starts(self) -> dict[str, tuple[str, Tensor]]:
        """Arrays of the initial states."""
        found: dict[str, tuple[str, Tensor]] = {}
        for layer, values in zip(self.layers, self.initial):
            for name in values:
                leaves = [leaf for leaf in layer.step.states if leaf.name == name]
                parts = values[name].reshape(-1).split([layer.size(leaf) for leaf in leaves])
                for leaf, part in zip(leaves, parts, strict=True):
                    kind = c_type(layer.format(leaf))
                    found[f"{layer.name}_i{leaf.name}{leaf.data[1]}"] = kind, part
        return found

    def _check(self) -> str:
        """The text of a C program that compares every number with the module's."""
        given, expected = self._expected()
        name, last = self.name, self.layers[-1].output
        arrays = [
            _array(f"given_{n}", c_type(of), values)
            for n, of, values in zip(self.names, self.formats, given, strict=True)
        ]
        arguments = ", ".join(f"given_{n}" for n in self.names)
        return f"""/* Compare {name} with what the module computed when it was exported. */
#include <stdio.h>
#include "{name}.h"
{"".join(arrays)}{_array("expected", c_type(last), expected)}
static {name}_state memory;
static {c_type(last)} y[{expected.numel()}];

int main(void) {{
    long wrong = 0;
    {name}_init(&memory);
    {name}_run(&memory, {arguments}, y, {_STEPS});
    for (long i = 0; i < {expected.numel()}; i++) wrong += y[i] != expected[i];
    printf("%ld of {expected.numel()} numbers differ\\n", wrong);
    return wrong != 0;
}}
"""

    @torch.no_grad()
    def _expected(self) -> tuple[list[Tensor], Tensor]:
        """Random whole numbers as inputs, and those of the module's outputs.

        Raises:
            InputError: an output is no whole number times its power of two.
        """
        source = torch.Generator().manual_seed(0)
        runtime = self.module.runtime
        given = [
            torch.randint(of.low, of.high + 1, (_STEPS, size), generator=source)
            for size, of in zip(self.sizes, self.formats, strict=True)
        ]
        net = copy.deepcopy(self.module).to("cpu", torch.float32).eval()
        net.engine, net.batch_first = "reference", False
        x = [
            (n.float() * 2.0**of.exponent).reshape(_STEPS, 1, *shape)
            for n, of, shape in zip(given, self.formats, runtime.input_sizes, strict=True)
        ]
        out = net(tuple(x) if len(x) > 1 else x[0])[0]
        outputs = out if isinstance(out, tuple) else (out,)
        y = torch.cat([value.reshape(_STEPS, -1) for value in outputs], 1)
        n = y.double() * 2.0 ** -self.layers[-1].output.exponent
        if bool((n != n.round()).any()):
            raise InputError(f"an output of {self.name} is not a whole number: export failed")
        return given, n.long()
