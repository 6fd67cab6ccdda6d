"""The peak of a machine in float32: independent fused multiply-adds in registers."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from elman.engines.c.compilation.build import build, load
from elman.engines.c.compilation.isa import Isa, detect
from elman.tuning.machine import cores

CHAINS = 12  # more than latency (4) times units (2) asks for, and they fit in 16 registers
TRIES = 7
TRY_S = 0.05

_TEXT = """\
typedef float vector __attribute__((vector_size({bytes})));

__attribute__((visibility("default")))
float peak(long rounds, float by, float add) {{
    vector zero = {{0}}, m = zero + by, a = zero + add;
    vector {declared};
    for (long k = 0; k < rounds; k++) {{
        {steps}
    }}
    vector all = {total};
    float sum = 0;
    for (int k = 0; k < {lanes}; k++) sum += all[k];
    return sum;
}}
"""


def peak_text(isa: Isa) -> str:
    """C text of the loop for one instruction set."""
    names = [f"s{k}" for k in range(CHAINS)]
    return _TEXT.format(
        bytes=isa.vector_bytes,
        lanes=isa.lanes("float32"),
        declared=", ".join(f"{name} = zero + {k}.0f" for k, name in enumerate(names)),
        steps=" ".join(f"{name} = {name} * m + a;" for name in names),
        total=" + ".join(names),
    )


def peak_gflops(threads: tuple[int, ...]) -> dict[str, float]:
    """fp32 GFLOP/s by number of threads, the best of some tries. Raises BuildError: there is no C
    compiler, or it refuses the loop."""
    isa = detect()
    loop = load(build(peak_text(isa), isa)).peak
    loop.argtypes, loop.restype = [ctypes.c_long, ctypes.c_float, ctypes.c_float], ctypes.c_float
    flop = 2 * CHAINS * isa.lanes("float32")  # per round
    rounds = 1 << 16
    while _seconds(loop, rounds, 1) < TRY_S:
        rounds *= 2
    counts = sorted({*threads, cores()})
    best = {count: min(_seconds(loop, rounds, count) for _ in range(TRIES)) for count in counts}
    return {str(count): round(count * rounds * flop / best[count] / 1e9, 1) for count in counts}


def _seconds(loop: Callable[[int, float, float], float], rounds: int, threads: int) -> float:
    """Time of so many threads that each run the loop (s); ctypes lets them run at once."""
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.001] * threads))  # all threads are up
        start = time.perf_counter()
        list(pool.map(lambda _: loop(rounds, 0.999, 0.001), range(threads)))
        return time.perf_counter() - start
