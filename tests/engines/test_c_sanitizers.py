"""Generated C without a warning, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import TESTS, begin_anew

GCC = shutil.which("gcc")
SCRIPT = """
import os, sys
import hypothesis, torch
from hypothesis import HealthCheck, given, settings

import elman
from elman import cells
from elman.engines.c.compilation import build
from elman.engines.c.process import memory
from elman.engines.c.process.threads import oversubscription
from elman.errors import EngineError, InputError, ShapeError
from kernels import cell_from
from random_cells import drawn_cells, reusing_cells

examples = int(sys.argv[1])
sanitized = ("-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=undefined")
build.FLAGS = tuple("-O0" if flag == "-O2" else flag for flag in build.FLAGS) + sanitized
torch.set_num_threads(2)

def learn(cell, sizes, **options):
    net = elman.Recurrent(cell, *sizes, engine="c", **options)
    for T, B in ((1, 1), (9, 17)):
        x = torch.randn(T, B, sizes[0], requires_grad=True)
        more = [torch.randn(T, B, *map(int, own)) for _, own in net.runtime.signature.inputs[1:]]
        y, _ = net((x, *more) if more else x)
        y.square().sum().backward()

def tried(drawn):
    cell = cell_from(drawn.text)
    more = {"P": drawn.P} if "P" in drawn.text.split("def ")[0] else {}
    try:
        learn(cell, (drawn.I, drawn.H), **more)
    except (ShapeError, InputError) as error:
        hypothesis.reject()

with oversubscription.ignored():
    for name in ("lstm_layernorm", "rlif", "gru")[: 2 + examples]:
        learn(getattr(cells, name), (5, 33))
    for name in ("gru", "rlif")[: 1 + examples]:
        learn(getattr(cells, name), (5, 33), precision="bf16")
    for strategy in (drawn_cells(), reusing_cells()) if examples else ():
        patient = settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                           suppress_health_check=list(HealthCheck))
        patient(given(strategy)(tried))()
    print("nothing to report", flush=True)
    memory.release()
    take = memory.Supply.take  # workspaces that are too small for their kernels
    memory.Supply.take = lambda self, spare, count: take(self, spare, max(1, count - 64))
    learn(cells.lstm_layernorm, (5, 33))
"""


def check_sanitized(folder: Path, examples: int, patience_s: float = 150) -> None:
    """Run the script with kernels that report what they must not do: nothing, and then a workspace
    that is too small."""
    if GCC is None or sys.platform != "linux":
        pytest.skip("gcc's sanitizers are tried on Linux")
    library = subprocess.run([GCC, "-print-file-name=libasan.so"], capture_output=True, text=True)
    preloaded = Path(library.stdout.strip())
    if not preloaded.is_absolute():
        pytest.skip("gcc has no AddressSanitizer here")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = {
        "LD_PRELOAD": str(preloaded.resolve()),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "ELMAN_CACHE": str(folder / "cache"),
        "ELMAN_CFLAGS": "",
        "CC": GCC,
        "PYTHONPATH": f"{TESTS}:{':'.join(sys.path)}",
    }
    (folder / "cache").mkdir(mode=0o700)
    process = begin_anew("-W", "ignore", str(script), str(examples), **environment)
    said = "".join(process.communicate(timeout=patience_s))
    assert "nothing to report" in said, said
    assert process.returncode != 0
    assert "heap-buffer-overflow" in said.partition("nothing to report")[2]


@pytest.mark.slow
def test_cells_of_several_kinds(tmp_path):
    """Two of the library, and one with rounded products."""
    check_sanitized(tmp_path, 0)


@pytest.mark.long
def test_many_random_cells(tmp_path):
    """Two hundred cells."""
    check_sanitized(tmp_path, 100, patience_s=3600)
