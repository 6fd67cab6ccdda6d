"""Exported C in Python: compiled as the machine's own, loaded, and run over whole sequences."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elman.engines.c.compilation.compilers import find_compiler
from elman.errors import EngineError, InputError

_FLAGS = ("-O3", "-std=c99", "-ffp-contract=fast", "-fPIC", "-shared", "-march=native")
_TYPES = {"float": torch.float32} | {f"int{n}_t": getattr(torch, f"int{n}") for n in (8, 16, 32)}


def _library(folder: Path, name: str) -> Any:
    """Compile and load a project. Raises EngineError: there is no compiler, or it refuses."""
    compiler = find_compiler()
    if isinstance(compiler, str):
        raise EngineError(f"exported C needs a C compiler to run: {compiler}")
    with tempfile.TemporaryDirectory() as place:  # one that is loaded may be gone
        path = Path(place) / f"lib{name}.so"
        command = [*compiler.command, *_FLAGS, str(folder / f"{name}.c"), "-o", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(f"{name}.c does not compile: {done.stderr.strip()}")
        return ctypes.CDLL(str(path))


def run(
    folder: Path,
    name: str,
    sizes: Mapping[str, int],
    output: int,
    steps: int,
    exponents: Mapping[str, int],
    given: Sequence[Tensor],
) -> Tensor:
    """Run sequences [B, T, ..] by a project whose calls take so many steps; outputs [B, calls,
    output].

    Raises:
        EngineError: see :func:`_library`.
        InputError: there are other inputs than given, or of other sizes.
    """
    if len(given) != len(sizes) or any(x.dim() < 2 for x in given):
        wanted = ", ".join(f"{key} [B, T, ..]" for key in sizes)
        raise InputError(f"{name} takes {wanted}, not {[[*x.shape] for x in given]}")
    header = (folder / f"{name}.h").read_text(encoding="utf-8")
    types = re.findall(r"(\w+) \*\w+", header.partition(f"{name}_run(")[2].partition(";")[0])[1:]
    rows, calls = list[Tensor](), set[int]()
    for (key, size), x, kind in zip(sizes.items(), given, types):
        flat = x.detach().cpu().double().reshape(len(x), -1)
        calls.add(count := flat.shape[1] // size)
        if not count or x[0, 0].numel() * steps != size:
            raise InputError(
                f"{name} takes {key} [B, T, {size // steps}], at least {steps} steps, not "
                f"{[*x.shape]}"
            )
        if key in exponents:
            if flat.isnan().any():
                raise InputError(f"{key} has NaN, which no integer is: put a typical value there")
            limit = torch.iinfo(_TYPES[kind]).max
            flat = (flat * 2.0 ** -exponents[key]).round().clamp(-limit, limit)
        rows.append(flat[:, : count * size].to(_TYPES[kind]).contiguous())
    if len(calls) > 1 or len({len(x) for x in given}) > 1:
        raise InputError(f"the inputs of {name} are {[[*x.shape[:2]] for x in given]} [B, T]")
    (count,) = calls
    library = _library(folder, name)
    library_bytes = getattr(library, f"{name}_bytes")
    library_bytes.restype = ctypes.c_long
    state = torch.zeros(library_bytes() + 64, dtype=torch.uint8)
    at = ctypes.c_void_p(-(-state.data_ptr() // 64) * 64)
    y = torch.zeros(len(given[0]), count, output, dtype=_TYPES[types[-1]])
    for sample in range(len(y)):
        getattr(library, f"{name}_init")(at)
        addresses = [ctypes.c_void_p(x[sample].data_ptr()) for x in (*rows, y)]
        getattr(library, f"{name}_run")(at, *addresses, ctypes.c_long(count))
    return y.float() * 2.0 ** exponents.get("y", 0)
