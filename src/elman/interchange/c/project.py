"""The files of an exported module as text: header, code, weights and a check."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import Any, Protocol

import torch
from torch import Tensor

from elman.engines.c.text.units import file, groups
from elman.escaping import c_comment, c_names
from elman.interchange.c.step import MOST_LANES, LayerText, tile_matrix
from elman.ir.types import shape_size
from elman.plan.build import output_is_state

_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int
long register restrict return short signed sizeof static struct switch typedef union unsigned void
volatile while asm bool catch class compl const_cast constexpr delete explicit export false friend
mutable namespace new not operator or private protected public template this throw true try typeid
typename using virtual wchar_t and xor typeof
"""  # of C and of C++, which reads the header too
RESERVED = {
    "state",
    "all",
    "y",
    "steps",
    "row",
    "T",
    "LANES",
    *_KEYWORDS.split(),
}  # of the functions
CAPITALS = ("H", "Y")  # suffixes that the header defines: NAME_H, NAME_Y


def shared_texts() -> list[str]:
    """C texts that all projects share."""
    engine = [file("functions.h"), file("reductions.h"), groups()]
    return [read_text_file("portable.h"), read_text_file("mathematics.h"), *engine]


def read_text_file(name: str) -> str:
    """A file of C text beside this one."""
    return files("elman.interchange.c").joinpath(name).read_text(encoding="utf-8")


def _number(value: float) -> str:
    """A float32 as C text, exact."""
    text = f"{value:.9g}"
    return f"{text}f" if any(c in text for c in ".en") else f"{text}.0f"


def _array(name: str, values: Tensor) -> str:
    numbers = [_number(float(v)) for v in values.float().tolist()]
    lines = [", ".join(numbers[k : k + 8]) for k in range(0, len(numbers), 8)]
    return f"static const float {name}[{len(numbers)}] = {{\n" + ",\n".join(lines) + "\n};\n"


class Layer(Protocol):
    """A layer that a project prints."""

    name: str


def functions_of(name: str, layers: Sequence[Layer]) -> set[str]:
    """Names of functions and types that a project defines, which no input may have."""
    verbs = "bytes", "init", "step", "run", "state"
    return {layer.name for layer in layers} | {f"{name}_{verb}" for verb in verbs}


class Project:
    """All files of one module, as C text.

    Args:
        name: of all.
        layers: lowest first.
        residual: whether layers add their input to their output, from the second on.
        module: what the check compares with.
        outputs: names of the last layer's outputs, if there are several.
        names: of the inputs; none: those of the cell.
        about: what the header says of steps.
    """

    def __init__(
        self,
        name: str,
        layers: Sequence[LayerText],
        residual: bool,
        module: Any,
        outputs: Sequence[str],
        names: Sequence[str] = (),
        about: str = "",
    ) -> None:
        self.about = about
        self.name, self.layers, self.residual, self.module = name, layers, residual, module
        signature = module.runtime.signature
        entries = (*signature.inputs, *signature.static)
        macros = set(re.findall(r"#\s*define\s+(\w+)", "".join(shared_texts())))
        names = names or [entry for entry, _ in entries]
        functions = functions_of(name, layers)
        self.names = c_names(names, RESERVED | macros | functions, CAPITALS)
        self.heads = math.prod(module.runtime.head_axis)  # samples of each other, one state each
        self.of = "all" if self.heads > 1 else "state"  # name of an argument
        self.unit = f"{name}_head" if self.heads > 1 else f"{name}_state"
        widths = [self.heads * math.prod(sizes) for _, sizes in entries]
        self.inputs = dict(zip(self.names, widths, strict=True))
        self.takes = signature.takes
        self.learned: list[tuple[Tensor, ...]] = []  # [n] of each state of each layer, or none
        if initial := module._initial():
            self.learned = signature.form.rows(initial)
        self.static = set(self.names[len(signature.inputs) :])
        self.outputs = [layer.layout.output_width for layer in layers]
        values = layers[-1].job.graph.outputs
        widths = [math.prod(shape_size(v.shape, layers[-1].job.spec.sizes)) for v in values]
        parts = [f"{c_comment(output)} [{width}]" for output, width in zip(outputs, widths)]
        self.output = self.heads * self.outputs[-1]
        each = ": " + ", ".join(parts) + " of each head" * (self.heads > 1)
        self.y = f"y [{self.output}]" + bool(parts) * each

    def arrays(self) -> dict[str, Tensor]:
        """The constant arrays, by name."""
        arrays: dict[str, Tensor] = {}
        for layer in self.layers:
            arrays |= {name: tile_matrix(W) for name, W in layer.matrices.values()}
            vectors = layer.vectors()
            if len(vectors):
                arrays[f"{layer.name}_vec"] = vectors
            behind = len(layer.variables)
            constants = enumerate(layer.constants)
            arrays |= {f"{layer.name}_h{behind + k}": c.reshape(-1) for k, c in constants}
        for layer, values in zip(self.layers, self.learned):
            for k, value in enumerate(values):
                arrays[f"{layer.name}_i{k}"] = value.detach().reshape(-1)
        return arrays

    def members(self) -> list[list[tuple[str, int]]]:
        """Members of the caller's struct, per layer: name and size."""
        members: list[list[tuple[str, int]]] = []
        for index, layer in enumerate(self.layers):
            widths, held = layer.layout.state_widths, layer.layout.held
            fields = [
                (f"l{index}_h{k}", widths[k] if k in held else 2 * widths[k])
                for k in layer.variables
            ]
            sizes = {
                "chunk": layer.chunk,
                "scratch": layer.scratch,
                "sums": layer.sums_size,
                "sc": layer.scalars,
            }
            fields += [(f"l{index}_{part}", size) for part, size in sizes.items() if size]
            if index + 1 < len(self.layers):
                fields.append((f"l{index}_y", self.outputs[index]))
            members.append(fields)
        return members

    @property
    def weights(self) -> int:
        """How many numbers the arrays hold."""
        return sum(len(values) for values in self.arrays().values())

    @property
    def state(self) -> int:
        """How many numbers the caller's struct holds."""
        return self.heads * sum(size for fields in self.members() for _, size in fields)

    @property
    def exponents(self) -> dict[str, int]:
        """Of integers: none."""
        return {}

    def files(self) -> dict[str, str]:
        """Text by file name."""
        weights = "".join(_array(name, values) for name, values in self.arrays().items())
        return {
            f"{self.name}.h": self._header(),
            f"{self.name}.c": self._code(),
            f"{self.name}_weights.h": f"/* Weights of {self.name}. */\n{weights}",
            f"{self.name}_check.c": check_program(self.name, self.names, self.static, self.module),
            "Makefile": MAKEFILE.replace("NAME", self.name),
        }

    def _parameters(self) -> str:
        return ", ".join(f"const float *{name}" for name in self.names)

    def _header(self) -> str:
        name, upper = self.name, self.name.upper()
        sizes = [f"#define {upper}_{n.upper()} {size}" for n, size in self.inputs.items()]
        members: list[str] = []
        for layer, layer_members in zip(self.layers, self.members(), strict=True):
            states = list(dict.fromkeys(str(s.data[0]) for s in layer.job.pair.step.states))
            about = c_comment(f"{layer.job.name}: {', '.join(states)}")
            members.append(f"    /* {about}, those that change twice */")
            members += [f"    float {member}[{size}];" for member, size in layer_members]
        shapes = ", ".join(f"{n} [{size}]" for n, size in self.inputs.items())
        heads = f"typedef struct {{\n    {self.unit} head[{self.heads}];\n}} {name}_state;\n"
        return f"""/* {name}, written by elman: C99, float32, no library, no allocation. */
#ifndef {upper}_H
#define {upper}_H
#ifdef __cplusplus
extern "C" {{
#endif

/* numbers of a step's inputs and of its output */
{chr(10).join(sizes)}
#define {upper}_Y {self.output}

/* all memory that a sequence needs; one for each sequence that runs at the same time */
typedef struct {{
{chr(10).join(members)}
    int turn; /* which half of each state is the current one */
}} {self.unit};
{heads * (self.heads > 1)}
/* bytes of a {name}_state, for callers that do not read this header */
long {name}_bytes(void);
/* begin a sequence: all states {"as learned" if self.learned else "zero"} */
void {name}_init({name}_state *state);
/* one step: {shapes} -> {self.y}{f". {self.about}" * bool(self.about)} */
void {name}_step({name}_state *state, {self._parameters()}, float *y);
/* T steps, one behind another in memory{" (static inputs: one for all)" * bool(self.static)} */
void {name}_run({name}_state *state, {self._parameters()}, float *y, long steps);

#ifdef __cplusplus
}}
#endif
#endif
"""

    def _layer(self, index: int, layer: LayerText) -> str:
        names = {member.partition("_")[2] for member, _ in self.members()[index]}
        count = len(layer.layout.state_widths)
        input_numbers = range(len(self.takes[index]))
        inputs = ", ".join(f"const T *in{k}" for k in input_numbers)
        lines = []
        for k, width in enumerate(layer.layout.state_widths):
            at = f"state->l{index}_h{k}" if k in layer.variables else f"{layer.name}_h{k}"
            if k in layer.layout.held:
                lines.append(f"const T *const h{k} = {at};")
                continue
            lines.append(f"const T *const h{k} = {at} + (state->turn ? {width} : 0);")
            lines.append(f"T *const n{k} = {at} + (state->turn ? 0 : {width});")
        for part in ("chunk", "scratch", "sums", "sc"):
            if part in names:
                lines.append(f"T *const {part} = state->l{index}_{part};")
        if len(layer.vectors()):
            lines.append(f"const T *const vec = {layer.name}_vec;")
        unused = [*(f"h{k}" for k in range(count)), *(f"in{k}" for k in input_numbers)]
        lines.append(" ".join(f"(void){variable};" for variable in unused))
        lines += layer.lines
        if output_is_state(layer.job.pair):
            width, last = self.outputs[index], "h0" if 0 in layer.layout.held else "n0"
            lines.append(f"for (long u = 0; u < {width}; u++) y[u] = {last}[u];")
        body = "\n".join("    " + line for line in lines)
        head = f"static void {layer.name}({self.unit} *state, {inputs}, T *y) {{"
        return f"/* {c_comment(layer.job.name)} */\n{head}\n{body}\n}}\n"

    def _each_head(self, lines: Sequence[str]) -> list[str]:
        """Lines for the state of each head."""
        if self.heads > 1:
            states = f"{self.unit} *state = all->head; state < all->head + {self.heads}; state++"
            lines = [f"for ({states}) {{", *(f"    {line}" for line in lines), "}"]
        return [f"    {line}" for line in lines]

    def _code(self) -> str:
        name = self.name
        steps: list[str] = []
        below = self.names[0]
        for index, layer in enumerate(self.layers):
            last = index + 1 == len(self.layers)
            out = "y" if last else f"state->l{index}_y"
            arguments = [below, *(self.names[k] for k in self.takes[index][1:])]
            steps.append(f"{layer.name}(state, {', '.join(arguments)}, {out});")
            if self.residual and index:  # of first outputs, which have one size in all layers
                width = self.module.output_size // self.heads
                steps.append(f"for (long u = 0; u < {width}; u++) {out}[u] += {below}[u];")
            below = out
        initialisation = [
            f"for (long u = 0; u < {width}; u++) state->l{index}_h{k}[u] = "
            + (f"{layer.name}_i{k}[u];" if self.learned else "0;")
            for index, layer in enumerate(self.layers)
            for k, width in zip(layer.variables, layer.layout.state_widths)
        ]
        row_pointers = ", ".join(
            n if n in self.static else f"{n} + row * {size}" for n, size in self.inputs.items()
        )
        rows = [*self.inputs.items(), ("y", self.output)] if self.heads > 1 else []
        moves = [f"{row} += {size // self.heads};" for row, size in rows]
        matrices = any(layer.job.graph.has_matrices for layer in self.layers)
        parts = [
            f"/* {name}: written by elman. See {name}.h. */",
            "#include <stdint.h>",
            f'#include "{name}.h"',
            f'#include "{name}_weights.h"',
            _LANES,
            "typedef float T;",
            read_text_file("portable.h"),
            file("functions.h"),
            read_text_file("mathematics.h"),
            file("reductions.h"),
            groups(),
            *([file("matrices.h"), read_text_file("multiply.h")] if matrices else []),
            *(self._layer(index, layer) for index, layer in enumerate(self.layers)),
            f"long {name}_bytes(void) {{ return (long)sizeof({name}_state); }}",
            f"void {name}_init({name}_state *{self.of}) {{",
            *self._each_head([*initialisation, "state->turn = 0;"]),
            "}",
            f"void {name}_step({name}_state *{self.of}, {self._parameters()}, float *y) {{",
            *self._each_head([*steps, "state->turn = !state->turn;", *moves]),
            "}",
            f"void {name}_run({name}_state *state, {self._parameters()}, float *y, long steps) {{",
            f"    for (long row = 0; row < steps; row++) {name}_step(state, {row_pointers},"
            f" y + row * {self.output});",
            "}",
            "",
        ]
        return "\n".join(parts)


_STEPS = 16


def check_program(
    name: str,
    names: Sequence[str],
    static: Collection[str],
    module: Any,
) -> str:
    """The text of a C program that compares what was exported with its module: it may be as far off
    as float32's rounding, or 16 times as far as the module in float32 where that is more.

    Args:
        name: of the functions.
        names: of the inputs.
        static: those with one value per sequence.
        module: what was exported.
    """
    inputs, out, rounded = _expected_results(names, static, module)
    error = float((rounded - out).abs().max())
    limit = max(
        2e-5 * max(1.0, float(out.abs().max())), 16 * error if math.isfinite(error) else 0.0
    )
    arrays = "".join(_array(f"given_{n}", v.reshape(-1)) for n, v in inputs.items())
    arguments = ", ".join(f"given_{n}" for n in inputs)
    return f"""/* Compare {name} with what the module computed when it was exported. */
#include <stdio.h>
#include "{name}.h"
{arrays}{_array("expected", out.reshape(-1))}
static {name}_state memory;
static float y[{out.numel()}];

int main(void) {{
    double worst = 0, largest = 1e-30;
    {name}_init(&memory);
    {name}_run(&memory, {arguments}, y, {_STEPS});
    for (long i = 0; i < {out.numel()}; i++) {{
        double off = (double)y[i] - (double)expected[i], size = (double)expected[i];
        if (off < 0) off = -off;
        if (size < 0) size = -size;
        if (!(off <= worst)) worst = off;
        if (size > largest) largest = size;
    }}
    printf("largest error %.3g of values up to %.3g\\n", worst, largest);
    return !(worst <= {limit:.3g});
}}
"""


def _expected_results(
    names: Sequence[str], static: Collection[str], module: Any
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Random inputs [T, 1, n], and the module's outputs for them in float64 and in float32."""
    source = torch.Generator().manual_seed(0)
    runtime = module.runtime
    shapes = [((_STEPS,), shape) for shape in runtime.input_sizes]
    shapes += [((), shape) for shape in runtime.static_sizes]
    inputs = {
        name: torch.randn(*lead, 1, *shape, generator=source, dtype=torch.float32)
        for name, (lead, shape) in zip(names, shapes, strict=True)
    }
    results: list[Tensor] = []
    for dtype in (torch.float64, torch.float32):
        net = copy.deepcopy(module).to("cpu", dtype).eval()
        net.engine, net.batch_first = "reference", False
        steps = [v.to(dtype) for name, v in inputs.items() if name not in static]
        fixed = [v.to(dtype) for name, v in inputs.items() if name in static]
        options: dict[str, Any] = {"static": fixed[0] if len(fixed) == 1 else tuple(fixed)}
        with torch.no_grad():
            x = tuple(steps) if len(steps) > 1 else steps[0]
            out = net(x, **(options if fixed else {}))[0]
        outputs = out if isinstance(out, tuple) else (out,)
        rows = [value.reshape(_STEPS, math.prod(runtime.head_axis), -1) for value in outputs]
        results.append(torch.cat(rows, 2).flatten(1).double())
    return inputs, results[0], results[1]


_LANES = f"""
#ifndef LANES /* numbers per vector: 1, 4, 8 or {MOST_LANES} */
#if !defined(__GNUC__)
#define LANES 1
#elif defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#elif defined(__SSE__) || defined(__ARM_NEON)
#define LANES 4
#else
#define LANES 1
#endif
#endif
"""

MAKEFILE = """# make          the library        make check    compare with the module
# make ARCH=    for any processor of this kind
# make libNAME.a ARCH="-mcpu=cortex-m4 -mthumb" CC=arm-none-eabi-gcc AR=arm-none-eabi-ar
CC ?= cc
ARCH ?= -march=native
CFLAGS ?= -O3 -std=c99 -Wall -Wextra -Werror -ffreestanding -ffp-contract=fast -fPIC

all: libNAME.a libNAME.so

NAME.o: NAME.c NAME.h NAME_weights.h
\t$(CC) $(CFLAGS) $(ARCH) -c NAME.c -o $@

libNAME.a: NAME.o
\t$(AR) rcs $@ $^

libNAME.so: NAME.o
\t$(CC) -shared $^ -o $@

check: NAME_check
\t./NAME_check

NAME_check: NAME_check.c NAME.o
\t$(CC) -O1 -std=c99 $^ -o $@

clean:
\trm -f NAME.o libNAME.a libNAME.so NAME_check

.PHONY: all check clean
"""
