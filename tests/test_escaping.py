"""Names that end a comment, a string, a tag or a line where they are written as they are: in no
text that is generated from them, and none of these runs, breaks or misleads."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as Tree
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from rich.console import Console

import elman
from elman import compiler, ops
from elman.cli import main
from elman.cli._terminal import plain, say
from elman.engines.c.compilation.isa import AVX512
from elman.engines.c.engine import PRICES as C_PRICES
from elman.engines.c.text.emit import Emitter
from elman.escaping import c_comment, c_name, c_names, printable, xml_text
from elman.frontend.cell import Cell
from elman.plan.build import program
from elman.plan.spec import Spec
from products import every

NASTY = [
    "*/ int evil; /*",
    "*/*/",
    "/*",
    "line\nnext\\",
    "a\\\n*/",
    "??/\n*/",
    "quote\"s'`",
    "<script>alert(1)</script>",
    "</title></svg>]]>",
    "[red]marked[/red][/]",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eright to left",
    "Größe µ 漢字",
    "\x00\x08\x7f\x85\ud800",
    "%s {0} $(id) `id`",
]
ESCAPING = [
    (printable, "a[red]\x1b\n", "a[red]\\x1b\n"),
    (c_comment, "*/ ü /*\n", "* / \\xfc / *\\n"),
    (c_comment, "*/*/*", "* / * / *"),
    (c_name, "größe", "gru00f6u00dfe"),
    (c_name, "2x", "_2x"),
    (xml_text, "<a href=\"'&\x00>", "&lt;a href=&quot;&#x27;&amp;\\x00&gt;"),
]


@pytest.mark.parametrize("escape, text, wanted", ESCAPING)
def test_each_language(escape, text, wanted):
    """What stands in the text in the end."""
    assert escape(text) == wanted


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_comments_end_where_they_should(name):
    """One line of ASCII without the marks of a comment."""
    line = c_comment(name)
    assert line.isascii()
    assert line.isprintable()
    assert "*/" not in f"{line} */"[:-2]
    assert "/*" not in f"/* {line}"[2:]


def test_names_of_c():
    """No two that C, or a header's capitals, could take for one."""
    names = c_names(["int", "x", "X", "é", "u00e9", "h"], {"int"}, ["H"])
    assert names == ["int_", "x", "X_", "u00e9", "u00e9_", "h_"]


def cell_called(name: str, *inputs: str) -> Cell:
    """A cell with a name and a text that Python would not take, and inputs of some names."""
    first, second = inputs or ("größe", "double")
    space: dict[str, Any] = {"ops": ops}
    formula = f"ops.tanh(W @ {first} + {second} + R @ h)"
    text = f"def step({first}, {second}, h, W, R):\n    return {formula}"
    exec(compile(text, "cells.py", "exec"), space)
    function = space["step"]
    function.__name__, function.__doc__ = name, f"{name} formula."
    given = f"{first}[I], {second}[H]"
    return elman.cell(input=given, state="h[H]", weights="W[H, I], R[H, H]")(function)


def module_called(name: str, *inputs: str) -> elman.Recurrent:
    """A module of it."""
    return elman.Recurrent(cell_called(name, *inputs), 3, 4)


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_exported_c_has_the_code_that_it_had(tmp_path, name):
    """All but comments is the same, whatever the cell is called."""
    texts = []
    torch.manual_seed(0)
    module = module_called("plain")
    for called in ("plain", name):
        other = module_called(called)
        other.load_state_dict(module.state_dict())
        folder = elman.export.to_c(other, tmp_path / str(len(texts))).folder
        files = sorted(folder.iterdir())
        texts.append([re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.S) for file in files])
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    "inputs", [("größe", "double"), ("INLINE", "state"), ("x", "X"), ("T", "y")]
)
def test_exported_c_compiles(tmp_path, inputs):
    """With names of inputs that are words, macros or functions of C."""
    made = elman.export.to_c(module_called("*/ int evil; /*\n", *inputs), tmp_path)
    done = subprocess.run(["make", "-C", made.folder, "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_pictures(name):
    """XML that can be read, with the title as its text."""
    drawing = elman.draw(cell_called(name))
    tree = Tree.fromstring(drawing.svg)
    assert tree.findtext("{http://www.w3.org/2000/svg}title") == printable(name)
    assert not [tag for tag in tree.iter() if "script" in tag.tag]


def c_text(cell: Cell) -> str:
    """What engine c compiles for a training step."""
    return Emitter(program(compiler.pair_of(cell), spec_of(cell), C_PRICES), AVX512).text()


def spec_of(cell: Cell) -> Spec:
    """A training step of it."""
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights))
    return Spec((("H", 16), ("I", 16)), "float32", "cpu", wants)


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_engine_c(name):
    """Its text has no name at all."""
    assert c_text(cell_called(name)) == c_text(cell_called("plain", "x", "m"))


@pytest.mark.skipif(find_spec("onnxscript") is None, reason="onnxscript is not installed")
@pytest.mark.usefixtures("translations_read_once")
@pytest.mark.parametrize("name", every(4, NASTY), ids=ascii)
def test_onnx(tmp_path, name):
    """A model that can be checked, with a name on one line."""
    import onnx

    path = elman.export.to_onnx(module_called(name), tmp_path / "model.onnx").path
    assert onnx.load(path).graph.name == printable(name, "")


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_terminals(name, capsys):
    """Brackets are brackets; nothing that a terminal acts on."""
    console = Console(width=200)
    console.print(plain(name))
    say(console, name)
    said = capsys.readouterr().out
    assert said.isascii() or all(c.isprintable() for c in said.replace("\n", ""))
    assert said.startswith(printable(name, ""))


def test_errors(capsys, tmp_path):
    """What a command complains of has names in it too."""
    with pytest.raises(SystemExit):
        main(("sample", str(tmp_path / "\x1b[2J[red]")))
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "\\x1b[2J[red]" in said
