"""The documentation as a site: built without a warning, and every block of code in it runs."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import typer

from elman.cli.app import commands, load
from helpers import need_engine

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^ *print[^\n]*\n```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = {"tour.md", "projects.md"}  # prints of the code (test_docs.py), and excerpts of examples


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind in kinds]


def _can_run(text: str) -> bool:
    """Whether one process runs a block, with the packages that it needs."""
    runs = "import onnxruntime" in text
    writes = "to_onnx" in text or "torch.onnx" in text
    if "init_process_group" in text:
        return False  # by several processes: engines/test_time_shards.py
    if "import opacus" in text and not find_spec("opacus"):
        return False
    needs = ["onnx", "onnxscript"] * (runs or writes) + ["onnxruntime"] * runs
    return all(find_spec(name) for name in needs)


WITH_CODE = [page for page in PAGES if blocks(page, "python") and page.name not in SHOWN]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # its exporter's
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")  # the same
@pytest.mark.filterwarnings("ignore:(?s).*is deprecated:DeprecationWarning")  # script, torch.ao
@pytest.mark.filterwarnings("ignore:(?s).*quantize_per_tensor:UserWarning")  # torch.ao's own
@pytest.mark.parametrize("page", WITH_CODE)
def test_code_runs(page, tmp_path, monkeypatch, request):
    """The blocks of a page one after another, as a reader would type them, in an empty folder; and
    they print what the page says they print."""
    need_engine("c")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(DOCS)  # the miniature
    torch.manual_seed(0)
    script = tmp_path / f"{page.stem}_blocks.py"  # in a file, since a cell has a source
    texts = [text for text in blocks(page, "python") if _can_run(text)]
    if any("onnx" in text for text in texts):
        request.getfixturevalue("translations_read_once")
    script.write_text("\n\n".join(texts), encoding="utf-8")
    names = {"__name__": "__main__", "__file__": str(script)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(script.read_text(), str(script), "exec"), names)
    lines = [line.strip() for line in printed.getvalue().splitlines()]
    for text in PRINTED.findall(page.read_text("utf-8")):
        for line in filter(None, map(str.strip, text.splitlines())):
            assert line in lines


def told(page: Path) -> list[str]:
    """Every command line of elman's in a page: in blocks, and between backticks."""
    texts = [text.replace("\\\n", " ") for text in blocks(page, "sh", "bash")]
    lines = [line for text in texts for line in text.splitlines()]
    lines += re.findall(r"`(elman [^`]+)`", page.read_text("utf-8"))
    found = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return [line for line in found if line.startswith("elman ")]


COMMANDS = sorted({line for page in PAGES for line in told(page)})


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_there(line):
    """The command, and every option that it is given."""
    words = [word for word in shlex.split(line)[1:] if word not in ("…", "...", "|")]
    name = words[0].partition("|")[0]
    assert name in commands()
    app = typer.Typer()
    command = load(name)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name)(command)
        app.command("other")(lambda: None)
    found = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    if getattr(found, "commands", None) and len(words) > 1 and words[1] in found.commands:
        found = found.commands[words[1]]
    known = {option for parameter in found.params for option in parameter.opts}
    known |= {option for parameter in found.params for option in parameter.secondary_opts}
    every = {o for c in getattr(found, "commands", {}).values() for p in c.params for o in p.opts}
    given = {word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2}
    assert given <= known | every | {"--help"}
