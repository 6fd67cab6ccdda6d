"""Integer C on a microcontroller: an emulated Cortex-M4 without a floating-point unit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import elman
from elman import cells
from elman.export import to_c
from random_models import random_model

GCC, NM, QEMU = (
    shutil.which(name) for name in ("arm-none-eabi-gcc", "arm-none-eabi-nm", "qemu-system-arm")
)
HERE = Path(__file__).parents[2] / "benchmarks" / "cortex_m"
pytestmark = pytest.mark.skipif(None in (GCC, NM, QEMU), reason="no compiler or emulator for ARM")
STRICT = "-O2 -std=c99 -Wall -Wextra -Werror -Wconversion -Wno-sign-conversion -ffreestanding"
LINKED = "--specs=nano.specs --specs=rdimon.specs -nostartfiles"


def run(*words: object) -> str:
    """Run a program; its output."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(folder: Path, core: str, board: str) -> None:
    """Build for a core, look for functions of floating-point numbers, and compare all numbers."""
    target = f"-mcpu={core} -mthumb -mfloat-abi=soft".split()
    run(GCC, *STRICT.split(), *target, "-c", folder / "m.c", "-o", folder / "m.o")
    names = run(NM, folder / "m.o").split()
    assert not [name for name in names if name.startswith(("__aeabi_f", "__aeabi_d"))]
    program = folder / "check.elf"
    sources = HERE / "start.c", folder / "m_check.c", folder / "m.o"
    script = HERE / "board.ld"
    run(GCC, "-O1", *target, *LINKED.split(), "-T", script, *sources, "-o", program)
    semihosting = "enable=on,target=native"
    words = "-M", board, "-nographic", "-semihosting-config", semihosting, "-kernel", program
    assert run(QEMU, *words).startswith("0 of ")


@pytest.mark.parametrize("core, board", [("cortex-m4", "mps2-an386"), ("cortex-m3", "mps2-an385")])
def test_layers(core, board, tmp_path):
    """With pairs of products in one instruction, and without; sizes that fill no pair."""
    torch.manual_seed(0)
    net = elman.Recurrent([cells.gru, cells.mingru], 11, [21, 18], quantize=8)
    to_c(net.calibrate(torch.randn(20, 3, 11)), tmp_path, "m")
    check(tmp_path, core, board)


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_whole_models(seed, tmp_path):
    """Convolutions, norms and recurrent layers."""
    model, x, _ = random_model(seed)
    source = torch.Generator().manual_seed(seed)
    example = torch.randn(2, 48, x.shape[-1], generator=source)
    to_c(model, tmp_path, "m", example=example, quantize=8)
    check(tmp_path, "cortex-m4", "mps2-an386")
