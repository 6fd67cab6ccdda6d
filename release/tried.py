"""Try an installed elman as a newcomer would, in an empty folder: one row of what works.

    some-environment/bin/python release/tried.py [release/tried.jsonl]

Needs nothing but the package with its extra `train`: the first example of the README comes from
its metadata. The rows make the table of docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE = 600.0  # (s) for one check
FACTS = """
import json, torch
from elman.engines.c.compilation.compilers import Compiler, find_compiler
from elman.engines.c.compilation.isa import detect
found = find_compiler()
name = found.version if isinstance(found, Compiler) else "none"
print(json.dumps({"compiler": name, "isa": detect().name, "torch": torch.__version__}))
"""
SWAPPED = """
import copy, torch, elman
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(16, 32, num_layers=2), nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.rnn(x)[0])

theirs = Tagger()
ours = elman.accelerate(copy.deepcopy(theirs))
x = torch.randn(20, 3, 16)
for model in (theirs, ours):
    model(x).square().sum().backward()
torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
"""
EXPORTED = """
import elman
elman.export.to_c(elman.Recurrent(elman.cells.mgu, 8, 16), "net_c")
"""


def main() -> None:
    """Print the row, and add it to a file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="?", type=Path, help="a file of rows to add this one to")
    asked = parser.parse_args()
    rows = asked.rows.resolve() if asked.rows else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["ELMAN_CACHE"] = str(Path(folder, "cache"))
        row = {**facts(), "checks": checks()}
        os.chdir("/")
    text = json.dumps(row)
    print(text)
    if rows is not None:
        with rows.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    raise SystemExit(any(told != "ok" for told in row["checks"].values()))


def facts() -> dict[str, str]:
    """The environment: versions, compiler, instruction set, system."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "none"
    names, libc = platform.freedesktop_os_release(), "-".join(platform.libc_ver())
    return {
        "date": time.strftime("%Y-%m-%d"),
        "elman": metadata.version("elman"),
        "python": platform.python_version(),
        "triton": triton,
        "system": f"{names['PRETTY_NAME']}, {libc}, {platform.machine()}",
        **json.loads(script(FACTS)),
    }


def checks() -> dict[str, str]:
    """By name: ok, or the last line of what went wrong."""
    tried: dict[str, Callable[[], str]] = {
        "example": lambda: script(example()),
        "doctor": lambda: command("doctor"),
        "train": trained,
        "accelerate": lambda: script(SWAPPED),
        "export": exported,
    }
    return {name: told(check) for name, check in tried.items()}


def told(check: Callable[[], str]) -> str:
    """What became of a check."""
    try:
        check()
    except Exception as error:
        return str(error).strip().splitlines()[-1]
    return "ok"


def example() -> str:
    """The README's first example."""
    text = metadata.metadata("elman").get_payload()
    found = BLOCK.search(str(text))
    if found is None:
        raise LookupError("the package's README has no example")
    return found[1]


def trained() -> str:
    """A character model for some seconds; its run must leave a report."""
    text = command("train", "--minutes", "0.1")
    if not list(Path("runs").glob("*/report.html")):
        raise LookupError("the run left no report")
    return text


def exported() -> str:
    """Portable C; compiled and compared where there is a compiler."""
    written = script(EXPORTED)
    there = compiler()
    return call(["make", "-C", "net_c", "check", f"CC={there}"]) if there else written


def compiler() -> str:
    """The compiler's command; nothing if there is none."""
    return os.environ.get("CC", "") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")


def command(*words: str) -> str:
    """Run `elman …`."""
    return call([str(Path(sys.executable).parent / "elman"), *words])


def script(text: str) -> str:
    """Run Python text from a file, since a cell has a source."""
    Path("script.py").write_text(text, encoding="utf-8")
    return call([sys.executable, "script.py"])


def call(words: list[str]) -> str:
    """What a command prints; raise with its errors if it fails."""
    made = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if made.returncode:
        raise RuntimeError(f"{made.stdout}\n{made.stderr}\nstatus {made.returncode}")
    return made.stdout


if __name__ == "__main__":
    main()
