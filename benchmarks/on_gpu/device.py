"""What a GPU can do at most: its peaks, and the meeting of all programs."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.on_gpu.cases import DTYPES, Case
from benchmarks.on_gpu.timers import Clock

MEETINGS = """@triton.jit
def meetings(counter, steps, programs):
    target = 0
    for _ in range(steps):
        target += programs
        lib.arrive(counter)
        lib.wait(counter, target)
"""


def peaks(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Peaks of the device: bytes copied (read and written) and FLOP of products per second."""
    source = torch.empty(1 << 28, device=device)
    target = torch.empty_like(source)
    rates = {"copy": 2 * source.nbytes / clock(lambda: target.copy_(source))}
    for name in (*DTYPES, "tf32"):
        dtype = getattr(torch, name.replace("tf32", "float32"))
        a = torch.randn(case.H, case.H, device=device, dtype=dtype)
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        rates[name] = 2 * case.H**3 / clock(lambda a=a: a @ a)
    torch.backends.cuda.matmul.allow_tf32 = False
    text = ", ".join(f"{name} {rate / 1e12:.1f}" for name, rate in rates.items())
    return {"peaks": rates, "text": f"TB/s and TFLOP/s: {text}"}


def barrier_time(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """The meeting of all programs alone, from 8 to all that are resident (s)."""
    from elman.engines.triton.device.source import function  # needs a GPU

    meetings = function("meetings", MEETINGS)
    most = torch.cuda.get_device_properties(device).multi_processor_count
    seconds_by_programs = {}
    for programs in sorted({8, 16, 32, 64, 128, most}):
        counter = torch.zeros(1, dtype=torch.int32, device=device)

        def run(counter: Any = counter, programs: int = programs) -> None:
            counter.zero_()
            meetings[(programs,)](counter, case.T, programs, launch_cooperative_grid=True)

        seconds_by_programs[str(programs)] = clock(run) / case.T
    text = ", ".join(
        f"{programs}: {seconds * 1e6:.2f}" for programs, seconds in seconds_by_programs.items()
    )
    return {"barrier": seconds_by_programs, "text": f"us by programs: {text}"}
