"""Kernels compiled for a GPU that need not be there, and what the machine code says of them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (Triton's compiler has no types)

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "gfx942": 64 << 10}  # (bytes) of one program
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Facts:
    """What a compiled kernel needs.

    Attributes:
        registers: of one thread.
        spilled: bytes of local memory of one thread.
        shared: bytes of shared memory of one program.
        cubin: the machine code of NVIDIA's; empty for other chips.
    """

    registers: int
    spilled: int
    shared: int
    cubin: bytes = b""

    @cached_property
    def loop(self) -> Counter[str]:
        """Instructions of the hottest loop by name; empty where none can be told."""
        return _loop(_dumped(self.cubin, "-sass")) if self.cubin else Counter()


def facts(
    function: Any,
    types: dict[str, str],
    constants: dict[str, Any],
    target: str,
    *,
    warps: int = 4,
    stages: int = 2,
) -> Facts:
    """Compile a function for a target.

    Args:
        function: of ``source.function``.
        types: of its arguments: ``*bf16``, ``i32``; pointers and sizes are taken as aligned to 16.
        constants: values of its constexpr arguments.
        target: a key of :data:`TARGETS`.
        warps, stages: as of a launch.
    """
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    order = [name for name in function.arg_names if name in signature]
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(order)
        if name in types and name not in ("T", "B", "count")
    }
    source = ASTSource(
        function,
        signature={name: signature[name] for name in order},
        constexprs=constants,
        attrs=aligned,
    )
    compiled = triton.compile(
        source, target=TARGETS[target], options={"num_warps": warps, "num_stages": stages}
    )
    if target.startswith("sm"):
        return _of_cubin(compiled.asm["cubin"], compiled.metadata.shared)
    text = compiled.asm["amdgcn"]

    def fact(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        return int(match[1]) if match else 0

    return Facts(fact("vgpr_count"), 4 * fact("vgpr_spill_count"), compiled.metadata.shared)


def _of_cubin(cubin: bytes, shared: int) -> Facts:
    usage = _dumped(cubin, "--dump-resource-usage")
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert match is not None, usage
    stack = int(match[2])  # may also be there for calls
    if stack and not re.search(r"\b(LDL|STL)\b", _dumped(cubin, "-sass")):
        stack = 0
    return Facts(int(match[1]), stack, shared, cubin)


@cache
def _dumped(cubin: bytes, option: str) -> str:
    """What a tool says of machine code: half a second for instructions, whatever their number."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        return subprocess.run(
            [_TOOLS / "cuobjdump", option, file], capture_output=True, text=True, check=True
        ).stdout


def _loop(code: str) -> Counter[str]:
    """Instructions of the largest loop that has no loop inside but is jumped back to."""
    lines: list[tuple[int, str]] = []
    for line in code.splitlines():
        match = re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line)
        if match:
            lines.append((int(match[1], 16), match[2]))
    best: Counter[str] = Counter()
    for at, text in lines:
        match = re.search(r"BRA(?:\.\w+)*\s+.*?(0x[0-9a-f]+)", text)
        if match is None or int(match[1], 16) >= at:
            continue
        inside = [body for place, body in lines if int(match[1], 16) <= place <= at]
        names = [re.sub(r"^@!?U?P\w+\s+", "", body) for body in inside]
        counts = Counter(re.split(r"[ .]", name)[0] for name in names)
        if counts.total() > best.total():
            best = counts
    return best
