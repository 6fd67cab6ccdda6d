"""The program beside exported C: random inputs, and what the module made of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

_STEPS = 16


def check(
    name: str,
    names: Sequence[str],
    static: Collection[str],
    module: Any,
    array: Callable[[str, Tensor], str],
) -> str:
    """The text of a C program that compares what was exported with its module.

    Args:
        name: of the functions.
        names: of the inputs.
        static: those with one value per sequence.
        module: what was exported.
        array: name and values to the text of a C array.
    """
    inputs, out = _expected(names, static, module)
    arrays = "".join(array(f"given_{n}", v.reshape(-1)) for n, v in inputs.items())
    given = ", ".join(f"given_{n}" for n in inputs)
    return f"""/* Compare {name} with what the module computed when it was exported. */
#include <stdio.h>
#include "{name}.h"
{arrays}{array("expected", out.reshape(-1))}
static {name}_state memory;
static float y[{out.numel()}];

int main(void) {{
    double worst = 0, largest = 1e-30;
    {name}_init(&memory);
    {name}_run(&memory, {given}, y, {_STEPS});
    for (long i = 0; i < {out.numel()}; i++) {{
        double off = (double)y[i] - (double)expected[i], size = (double)expected[i];
        if (off < 0) off = -off;
        if (size < 0) size = -size;
        if (!(off <= worst)) worst = off;
        if (size > largest) largest = size;
    }}
    printf("largest error %.3g of values up to %.3g\\n", worst, largest);
    return !(worst <= 2e-5 * (largest > 1 ? largest : 1));
}}
"""


def _expected(
    names: Sequence[str], static: Collection[str], module: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """Random inputs [T, 1, n], and what the module makes of them, in float64."""
    source = torch.Generator().manual_seed(0)
    steps = _STEPS
    signature = module.parts.signature
    given_as = [((steps,), shape) for _, shape in signature.inputs]
    given_as += [((), shape) for _, shape in signature.static]
    inputs = {
        name: torch.randn(*lead, 1, *shape, generator=source, dtype=torch.float32)
        for name, (lead, shape) in zip(names, given_as, strict=True)
    }
    exact = copy.deepcopy(module).double().cpu().eval()
    exact.engine, exact.batch_first = "reference", False
    given = [value.double() for name, value in inputs.items() if name not in static]
    once = [value.double() for name, value in inputs.items() if name in static]
    several = len(static) > 1
    more: dict[str, Any] = {"static": tuple(once) if several else once[0]} if static else {}
    with torch.no_grad():
        out = exact(tuple(given) if len(given) > 1 else given[0], **more)[0]
    outputs = out if isinstance(out, tuple) else (out,)
    return inputs, torch.cat([value.reshape(steps, -1) for value in outputs], 1)
