"""Each script of benchmarks and release, called as its docstring says: a folder on the path that
only tests have would hide an import that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import elman

ROOT = Path(__file__).parents[2]
HUNTS = {  # tiny campaigns
    "hostile_files": ("--out", "hostile", "--count", "2"),
    "kills": ("--out", "kills", "--kills", "1", "--only", "write", "--started-by", "alone"),
    "random_arguments": ("--count", "4", "--workers", "1"),
    "random_cells": ("--seeds", "0:1", "--formulas", "2"),
    "random_matrix_cells": ("--seeds", "0:2"),
    "random_options": ("--seeds", "0:2"),
    "random_steps": ("--seeds", "0:2"),
}
FILES = ("benchmarks/gpu.py", "release/dist.py")  # called by their path
SCRIPTS = (  # modules; tests beside this one run their cases in tiny, in this process
    *(
        "accuracies",
        "authors_layers",
        "averages",
        "bf16",
        "examples",
        "fla_layers",
        "integers",
        "language_cells",
    ),
    "merged_steps",
    *("never_slower", "perplexity", "scaling", "speakers", "time_shards", "transformers_models"),
    *("few_rows", "rivals", "transformers_rules", "transformers_runtimes", "transformers_uses"),
)
MODULES = ("benchmarks", *(f"benchmarks.scripts.{name}" for name in SCRIPTS))
ELSEWHERE = {  # where their whole work is done by tests, or why it is by none
    "benchmarks/worker.py": "test_running: the suites' own processes",
    "benchmarks/peers/remote.py": "test_contestants",
    "benchmarks/measures/first_step.py": "test_starting",
    "benchmarks/measures/memory.py": "test_memory",
    "benchmarks/robustness/killed_run.py": "what kills.py starts",
    "benchmarks/unmodified/measure.py": "test_unmodified_script",
    "benchmarks/steps/calls.py": "test_steps_script",
    "benchmarks/steps/measure.py": "test_steps_script",
    "benchmarks/steps/reports.py": "test_steps_script",
    "benchmarks/readme.py": "test_readme_table: it takes no words, and rewrites pages",
    "release/arm64.py": "it installs an emulation, as root",
    "release/tried.py": "it runs in an environment of its own",
}


def finish(tmp_path: Path, *words: str) -> str:
    """Run Python in the checkout's root, without the folders that pytest adds to the path."""
    env = os.environ | {"PYTHONPATH": str(Path(elman.__path__[0]).parent)}
    env |= {"ELMAN_CACHE": str(tmp_path / "cache"), "ELMAN_CFLAGS": "-O0"}
    (tmp_path / "cache").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_script_has_a_case() -> None:
    """A new one has a row above."""
    files = [path for folder in ("benchmarks", "release") for path in (ROOT / folder).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    modules = {f"{name.replace('.', '/')}.py" for name in MODULES[1:]} | {"benchmarks/__main__.py"}
    hunts = {f"benchmarks/robustness/{name}.py" for name in HUNTS}
    assert found == {*FILES} | hunts | modules | {*ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("name", HUNTS)
def test_hunts(name: str, tmp_path: Path) -> None:
    """A kill, and a few files, cells and calls: processes that compile and train."""
    words = [str(tmp_path / word) if word == name.split("_")[0] else word for word in HUNTS[name]]
    assert finish(tmp_path, f"benchmarks/robustness/{name}.py", *words)


@pytest.mark.slow
@pytest.mark.parametrize("words", [*((file,) for file in FILES), *(("-m", m) for m in MODULES)])
def test_all_that_a_script_imports_is_there(words: tuple[str, ...], tmp_path: Path) -> None:
    """As it is called; it says which words it takes."""
    assert "usage" in finish(tmp_path, *words, "--help").lower()
