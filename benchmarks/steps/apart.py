"""A row that a process of its own measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row
from benchmarks.steps.agreement import LONGEST


def apart(
    words: Sequence[str], threads: int, limit: float, environment: Mapping[str, Any] | None = None
) -> Row | str:
    """Run ``python -m`` with words, and take the row that it prints.

    Args:
        words: the module, and what it is told.
        threads: of it.
        limit: seconds.
        environment: variables that it has, too.

    Returns:
        the row, or why there is none.
    """
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), **(environment or {})}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            timeout=limit,
            env=variables,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {limit} s"
    for text in reversed(done.stdout.splitlines()):
        if text.startswith('{"case"'):
            return json.loads(text)
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"exit status {done.returncode}: {last}"[:LONGEST]
