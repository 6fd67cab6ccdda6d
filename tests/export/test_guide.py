"""The program of docs/export.md, as a reader would compile it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import elman
from elman.export import to_c

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
CC = shutil.which("cc")


@pytest.mark.skipif(CC is None, reason="no C compiler")
def test_the_program_runs(tmp_path):
    """It prints what the module computes."""
    torch.manual_seed(0)
    net = elman.GRU(16, 32, num_layers=2)
    to_c(net, tmp_path, name="gru")
    (program,) = re.findall(r"^```c\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    (tmp_path / "main.c").write_text(program)
    subprocess.run([str(CC), "main.c", "gru.c"], cwd=tmp_path, check=True)
    told = subprocess.run([str(tmp_path / "a.out")], capture_output=True, text=True, check=True)
    x = torch.zeros(100, 1, 16)
    x[..., 0] = 1
    assert float(told.stdout) == pytest.approx(net(x)[0][-1, 0, 0].item(), abs=1e-5)
