"""Python text in a process of its own, for what one process does once or does not survive."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parent


def run_script(text: str, tmp_path: Path, timeout: float = 120, **env: str) -> str:
    """Run Python text in a process of its own that can import the tests' helpers."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    made = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout
