"""Python in processes of its own, for what one process does once or does not survive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import elman
from benchmarks import programs
from benchmarks.programs import Program
from forked import Forked

TESTS = Path(__file__).parent
PATIENCE_S = 150.0


def environment() -> dict[str, str]:
    """What a process needs that runs this very elman."""
    paths = [str(Path(elman.__path__[0]).parent), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def begin(*words: str, **more: str) -> Forked:
    """Start Python in a process of its own, with torch imported."""
    return Forked(words, environment() | more)


def begin_anew(*words: str, **more: str) -> subprocess.Popen[str]:
    """Start Python in a process that imports torch itself."""
    pipe = subprocess.PIPE
    command = [sys.executable, *words]
    return subprocess.Popen(command, env=environment() | more, stdout=pipe, stderr=pipe, text=True)


def finished(*processes: Any, status: int = 0, patience_s: float = PATIENCE_S) -> str:
    """Wait for processes; what they said. What does not end in time is ended, and says where it
    was."""
    try:
        said = ["".join(process.communicate(timeout=patience_s)) for process in processes]
    except subprocess.TimeoutExpired as error:
        said = []
        for process in processes:
            process.send_signal(signal.SIGABRT)
            said += process.communicate()
        raise AssertionError("\n".join([str(error), *said])) from None
    assert [process.returncode for process in processes] == [status] * len(said), "\n".join(said)
    return "".join(said)


def run_script(text: str, tmp_path: Path, patience_s: float = PATIENCE_S, **env: str) -> str:
    """Run Python text in a process of its own that can import the tests' helpers; what it prints.

    Torch is imported there before, unless the environment tells OpenMP something.
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), *sys.path])
    start: Any = begin_anew if any(name.startswith("OMP_") for name in env) else begin
    process = start("-W", "ignore", str(script), **env)
    try:
        return finished(process, patience_s=patience_s)
    finally:
        process.kill()


def module_of(path: Path) -> ModuleType:
    """A file that lies in no package as a module, which may import the files beside it."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def run_program_forked(program: Program, limit_s: float) -> str:
    """As ``run_program``, in a process that has torch imported and compiles as tests do."""
    first, script, *words = program.words
    if first == "-m":
        words = [script, *words]
        script = f"""
import io, runpy, sys
sys.argv, sys.stdin = {words!r}, io.StringIO({program.text!r})
runpy.run_module({script!r}, run_name="__main__")
"""
    env = programs.environment(program) | {"ELMAN_CFLAGS": "-O0"}
    return finished(Forked(("-c", script), env), patience_s=limit_s).strip().splitlines()[-1]
