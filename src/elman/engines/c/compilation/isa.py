"""Vector instruction sets: width, registers, compiler flags; detection of this machine's."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from elman.errors import EngineError


@dataclass(frozen=True)
class Isa:
    """One target of generated C.

    Attributes:
        name: name in prints and in the environment variable ELMAN_ISA.
        vector_bytes: width of one vector (bytes); 0: numbers, not vectors.
        registers: number of vector registers.
        flags: flags for the compiler.
        pairs: whether products multiply pairs of bfloat16 numbers, and add them up in float32.
    """

    name: str
    vector_bytes: int
    registers: int
    flags: tuple[str, ...]
    pairs: bool = False

    def lanes(self, dtype: str) -> int:
        """Elements per vector; one without vectors."""
        return max(1, self.vector_bytes // (8 if dtype == "float64" else 4))

    def without(self, optimizations: Collection[str]) -> Isa:
        """The set without some of ``plan.spec.OPTIMIZATIONS``, by compiler flags."""
        isa = self
        if "simd" in optimizations:  # vectors of 0 bytes have one lane: the text stays the same
            flags = (*isa.flags, "-fno-tree-vectorize", "-fno-tree-slp-vectorize")
            isa = replace(isa, name=f"{isa.name} without vectors", vector_bytes=0, flags=flags)
        if "specialization" in optimizations:
            flags = (*isa.flags, "-DELMAN_LIBM")
            isa = replace(isa, name=f"{isa.name} with libm", flags=flags)
        return isa

    def with_pairs(self) -> Isa:
        """The set with products of bfloat16, by float32's instructions if the machine has none for
        them (:func:`lacks_pairs`)."""
        flags = self.flags if lacks_pairs() else (*self.flags, _PAIRS[detect().name].flag)
        return replace(self, name=f"{self.name} bf16", flags=flags, pairs=True)

    def with_integers(self) -> Isa:
        """The set with instructions that multiply and add 16-bit integers, if the machine has
        them."""
        if self.name != "avx512" or "avx512_vnni" not in cpu_flags():
            return self
        return replace(self, name=f"{self.name} vnni", flags=(*self.flags, "-mavx512vnni"))

    @property
    def accumulators(self) -> int:
        """Registers for the sums of a product's tile; the rest are for operands."""
        return 24 if self.registers == 32 else 12


AVX512 = Isa("avx512", 64, 32, ("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma"))
AVX2 = Isa("avx2", 32, 16, ("-mavx2", "-mfma"))
NEON = Isa("neon", 16, 32, ())
SCALAR = Isa("scalar", 16, 16, ())  # generic vectors, lowered by the compiler to what there is
ISAS = {isa.name: isa for isa in (AVX512, AVX2, NEON, SCALAR)}


class _Pairs(NamedTuple):
    """Instructions for products of bfloat16: the processor's feature, the compiler's flag."""

    feature: str
    flag: str


_PAIRS = {
    "avx512": _Pairs("avx512_bf16", "-mavx512bf16"),
    "neon": _Pairs("bf16", "-march=armv8.2-a+bf16"),
}
_NEEDED = {
    "avx512": {"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma"},
    "avx2": {"avx2", "fma"},
}


@cache
def cpu_flags() -> frozenset[str]:
    """Feature flags of the first processor, as Linux lists them; empty where they cannot be
    read."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def detect() -> Isa:
    """The widest instruction set of this machine; ELMAN_ISA names a narrower one.

    Raises:
        EngineError: ELMAN_ISA names none, or one that this machine does not have.
    """
    machine = platform.machine().lower()
    flags = cpu_flags()
    able = [SCALAR]
    if machine in ("x86_64", "amd64"):
        able = [ISAS[name] for name, needed in _NEEDED.items() if needed <= flags] + able
    elif machine in ("aarch64", "arm64"):
        able = [NEON, SCALAR]
    name_wanted = os.environ.get("ELMAN_ISA")
    if not name_wanted:
        return able[0]
    if name_wanted not in ISAS:
        raise EngineError(f"ELMAN_ISA={name_wanted!r}; there are {', '.join(ISAS)}")
    if ISAS[name_wanted] not in able:
        names = ", ".join(isa.name for isa in able)
        raise EngineError(f"ELMAN_ISA={name_wanted!r}, but this machine has {names}")
    return ISAS[name_wanted]


def lacks_pairs() -> str | None:
    """Why this machine, or ELMAN_ISA, has no instruction for products of bfloat16; None if it
    has."""
    isa = detect()
    pairs = _PAIRS.get(isa.name)
    if pairs is None:
        return f"instruction set {isa.name} has no products of bfloat16"
    if pairs.feature not in cpu_flags():
        return f"this processor has no products of bfloat16 ({pairs.feature})"
    return None
