"""The import law: rooms look down only. The table is the law, DESIGN's drawing its commentary.

What is checked, for every file of ``src/elman``:

- a room imports only the rooms of its row, wherever in the file the import stands;
- torch, triton and numpy are imported only where the row names them, wherever the import stands;
- other third-party packages are imported at the top of a file only where the row names them
  (``*``: any); inside a function they are free, being optional there;
- relative imports are violations: a reader should see the room that is meant;
- a room without a row is a violation: give it one, on purpose;
- of some rooms the rooms inside have a law of the same kind (``INSIDE``);
- no two files import one another, over however many files, names for type checkers included.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SRC = Path(__file__).parents[1] / "src" / "elman"

LANGUAGE = "errors checks ir integers frontend autodiff passes plan lowered ops cells cell_files"
MIDDLE = f"{LANGUAGE} escaping extras files folders version engines engines.registry tuning"
MIDDLE = f"{MIDDLE} torch_internals torch numpy"
# no other engine
ENGINE = "errors checks files folders torch_internals ir autodiff plan lowered engines"
ENGINE = f"{ENGINE} torch numpy"

BELOW = {  # room -> what it may import besides itself; one row per room, lowest first
    "errors": "",
    "checks": "errors",  # arguments of one kind each
    "escaping": "",
    "extras": "errors",
    "files": "",
    "folders": "",
    "version": "",
    "torch_internals": "errors elman_command torch triton",  # what they do not promise to keep
    "ir": "errors",
    "integers": "errors ir",  # formulas on grids
    "frontend": "errors checks ir integers",
    "autodiff": "errors ir",
    "passes": "errors ir",
    "plan": "errors checks ir autodiff",
    "lowered": "errors ir plan",
    "ops": "errors ir frontend",  # what a cell author may call: names, no code
    "cells": "errors ir frontend ops",
    "cell_files": "errors checks frontend ops cells",  # by name, and of users' files
    # engines/base and the folder itself
    "engines": "errors checks torch_internals ir autodiff plan torch numpy",
    "engines.registry": "errors ir autodiff plan engines",
    "engines.reference": ENGINE,
    "engines.aten": f"{ENGINE} frontend passes",  # states torch's formulas, and their digests
    "engines.c": f"{ENGINE} filelock",
    "engines.triton": f"{ENGINE} triton",
    "engines.deer": f"{ENGINE} engines.registry",  # finds scans, and who falls back
    # the oracle judges all kernels, and shows where thresholds lie
    "tuning": "errors files folders version torch_internals ir autodiff passes plan engines"
    " engines.registry engines.reference torch numpy",
    "compiler": MIDDLE,
    "explaining": f"{MIDDLE} compiler",
    "drawing": f"{MIDDLE} compiler",
    # derivatives of any order end in torch ops
    "nn": f"{MIDDLE} engines.reference compiler explaining drawing",
    # with the calls of another library
    "functional": "errors checks torch_internals frontend ops cells engines.c nn torch",
    # steps in torch's operations: read by the frontend, run by layers
    "steps": "errors checks torch_internals ir frontend drawing nn torch",
    # published ones, around cells
    "layers": "errors checks frontend ops cells cell_files nn functional torch",
    "interchange": "",
    "interchange.weights": "errors checks extras files frontend ops cells nn torch numpy",
    "weights": "interchange.weights",
    "programs": "errors nn functional torch",  # whole processes, and trainers
    "train": f"{MIDDLE} compiler explaining drawing nn layers *",
    "report": f"{MIDDLE} compiler explaining drawing nn *",
    # models of whole sequences as one step: layers by their oracle
    "streamed": "errors torch_internals passes engines engines.reference compiler nn torch",
    # spells as engine c
    "interchange.c": f"{MIDDLE} engines.c compiler nn steps streamed",
    "interchange.onnx": "errors escaping extras checks nn torch",
    "export": "interchange.c interchange.onnx",
    "measuring": f"{MIDDLE} compiler nn steps",
    "__init__": f"{MIDDLE} compiler explaining drawing nn weights train measuring export"
    " layers engines.deer functional steps programs",
    "cli": f"{MIDDLE} engines.c compiler explaining drawing nn train report export measuring"
    " interchange.weights layers"
    " __init__ *",
    "__main__": "elman_command",
}
INSIDE = {  # room -> its own rooms (a folder, or a file), and what each may import of the others
    "torch_internals": {
        "lookup": "",
        "modes": "lookup",
        "transforms": "lookup",
        "autograd": "lookup modes",
        "memory": "lookup",
        "compiler": "lookup",
        "operations": "lookup",
        "__init__": "lookup modes transforms autograd memory compiler operations",
    },
    "nn": {
        "engine_choice": "",
        "autograd": "engine_choice",
        "layout": "autograd",  # how tensors of a call lie
        "options": "engine_choice autograd layout",
        "execute": "engine_choice autograd layout options",
        "compile": "autograd layout options execute",
        "call": "engine_choice autograd layout options execute compile",
        "modules": "engine_choice autograd layout options execute compile call",
        "records": "layout execute compile modules",
        "inspect": "engine_choice layout options execute call modules",
        "__init__": "engine_choice modules records",
    },
    "engines.c": {
        "process": "",  # its threads and memory
        "calls": "",  # argument blocks
        "compilation": "process",
        "spelling": "",
        "products": "compilation spelling",  # by instruction set
        "matrices": "spelling",
        "text": "calls compilation spelling products matrices",
        "run": "process calls compilation text",
        "kernels": "process calls compilation products text",
        "engine": "process calls compilation text run kernels",
        "__init__": "engine",
    },
    "engines.triton": {
        "library": "",  # what generated text imports
        "device": "",
        "text": "device",
        "loops": "device text",
        "all_steps": "device text",
        "run": "device text loops",
        "cross_entropy": "device",
        "occupancy": "device text",
        "engine": "device loops all_steps run cross_entropy occupancy",
        "__init__": "engine",
    },
    "steps": {
        "closure": "",  # what a step closes over
        "call": "",
        "order": "",
        "plain": "",
        "layer": "",
        "arrays": "",  # torch's tensors in a formula
        "operations": "arrays",
        "recording": "operations",
        "reading": "arrays operations recording",
        "running": "arrays layer reading recording",
        "judge": "call operations plain reading recording running",
        "tracing": "call closure judge reading recording running",
        "binding": "call closure plain recording running tracing",
        "compiling": "binding call",
        "api": "binding call order",
        "loop": "binding call layer order",
        "showing": "loop",
        "__init__": "",
    },
}
DEFERRED = {  # room -> what it may import inside a function only; the one place that does so
    "engines.registry": "engines.reference engines.aten engines.c engines.triton engines.deer"
}
POLICED = {"elman", "torch", "triton", "numpy", "benchmarks"}  # wherever in a file it stands


class Import(NamedTuple):
    line: int
    module: str  # with the imported name appended: "elman.engines.c", "torch.nn"
    inside: bool  # within a function, hence not run when the file is imported


def room_of(module: str) -> str:
    """Name the room of ``elman.<module>``: the longest prefix with a row, else its first word."""
    parts = module.split(".")
    for length in (2, 1):
        if ".".join(parts[:length]) in BELOW:
            return ".".join(parts[:length])
    return parts[0]


def imports_of(path: Path) -> Iterator[Import]:
    """List every import of a file, those by ``import_module("…")`` included."""
    text = path.read_text("utf-8")
    return imported(ast.parse(text), "import_module" in text or "__import__" in text)


def imported(tree: ast.AST, calls: bool, inside: bool = False) -> Iterator[Import]:
    """The imports below a node; of expressions, which are most of a file, only with ``calls``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            for alias in node.names:
                yield Import(node.lineno, f"{dots}{node.module or ''}.{alias.name}", inside)
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield Import(node.lineno, str(argument.value), inside)
        if isinstance(node, ast.expr) and not calls:
            continue
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imported(node, calls, inside or function)


def called(call: ast.Call) -> str:
    """Name the function of a call: ``import_module`` for ``importlib.import_module(…)``."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def target(module: str) -> str:
    """Name what is imported as the table does: a room, or a third-party package."""
    first, _, rest = module.partition(".")
    if first != "elman":
        return first
    return room_of(rest) if room_of(rest) in BELOW else "__init__"


def inner_violations(root: Path) -> list[str]:
    """Hold every file of rooms with a law of their own against it."""
    found = []
    for room, law in INSIDE.items():
        folder = root.joinpath(*room.split("."))
        for path in sorted(folder.rglob("*.py")):
            here = path.relative_to(folder).with_suffix("").parts[0]
            if here not in law:
                found.append(f"{room}: {here!r} has no row in the table")
                continue
            for line, module, _ in imports_of(path):
                if not f"{module}.".startswith(f"elman.{room}."):
                    continue
                name = module.removeprefix(f"elman.{room}.").partition(".")[0]
                there = name if name in law else "__init__"
                if there not in {here, *law[here].split()}:
                    place = path.relative_to(root)
                    found.append(f"{place}:{line}: {here!r} may not import {there!r}")
    return found


def circles(root: Path) -> list[set[str]]:
    """Files that import one another, names for type checkers included."""
    names = {
        ".".join(("elman", *path.relative_to(root).with_suffix("").parts)): path
        for path in root.rglob("*.py")
        if path.name != "__init__.py"
    }
    below = {
        name: {
            there
            for _, module, inside in imports_of(path)
            for there in (module, module.rpartition(".")[0])
            if there in names and there != name and not inside
        }
        for name, path in names.items()
    }
    reached = {name: set(files) for name, files in below.items()}
    for middle in reached:
        for files in reached.values():
            if middle in files:
                files |= reached[middle]
    found = [
        {other for other in files if name in reached[other]}
        for name, files in reached.items()
        if name in files
    ]
    return [circle for n, circle in enumerate(found) if circle not in found[:n]]


def violations(root: Path) -> list[str]:
    """Hold every file below `root`, a copy of the package, against the table."""
    found = []
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        here = room_of(".".join(inner.with_suffix("").parts))
        if here not in BELOW:
            found.append(f"{inner}:1: room {here!r} has no row in the table")
            continue
        top = {here, *BELOW[here].split()}
        deferred = top | set(DEFERRED.get(here, "").split())
        for line, module, inside in imports_of(path):
            if module.startswith("."):
                found.append(f"{inner}:{line}: relative import; spell the room: elman.…")
                continue
            there = target(module)
            policed = module.split(".")[0] in POLICED
            optional = not policed and ("*" in top or inside or there in sys.stdlib_module_names)
            if not optional and there not in (deferred if inside else top):
                found.append(f"{inner}:{line}: room {here!r} may not import {there!r}")
    return found


def test_imports_look_down():
    """No file of the package breaks the law."""
    assert not violations(SRC), "\n" + "\n".join(violations(SRC))


def test_inner_imports_look_down():
    """No file breaks the law of its room, and a row names only rows above it."""
    assert not inner_violations(SRC), "\n" + "\n".join(inner_violations(SRC))
    for law in INSIDE.values():
        rooms = list(law)
        for room, row in law.items():
            assert all(rooms.index(there) < rooms.index(room) for there in row.split()), room


def test_no_circles_of_files():
    """No file imports, for types either, what imports it."""
    assert not circles(SRC), "\n".join(map(str, map(sorted, circles(SRC))))


def test_rooms_know_only_lower_rows():
    """The table itself looks down: a row names only rows above it, so no cycle can be written."""
    rooms = list(BELOW)
    for room, row in BELOW.items():
        above = [there for there in row.split() if there in BELOW]
        assert all(rooms.index(there) < rooms.index(room) for there in above), room


def test_no_torch_below_the_engines():
    """The language is torch-free, also by what those modules import."""
    for room in LANGUAGE.split():
        row = BELOW[room].split()
        assert "torch" not in row, room
        assert set(row) <= set(LANGUAGE.split()), room


BROKEN = {  # a file of a made-up package -> what the law says about each of its lines
    "ir/graph.py": {
        "import torch": "room 'ir' may not import 'torch'",
        "from elman.plan import slots": "room 'ir' may not import 'plan'",
        "def share(): import torch.nn as nn": "room 'ir' may not import 'torch'",
        "from importlib import import_module": "",
        "import_module('elman.engines.c.text.emit')": "room 'ir' may not import 'engines.c'",
    },
    "cells/gru.py": {
        "from . import trace": "relative import; spell the room: elman.…",
        "from ..ir import graph": "relative import; spell the room: elman.…",
        "from elman import cell": "room 'cells' may not import '__init__'",
        "from elman.frontend import cell": "",
    },
    "engines/registry.py": {
        "from elman.engines import c": "room 'engines.registry' may not import 'engines.c'",
        "def find(): from elman.engines import c": "",
    },
    "tuning/decisions.py": {
        "import filelock": "room 'tuning' may not import 'filelock'",
        "def keep(): import filelock": "",
        "def load(): import elman.nn": "room 'tuning' may not import 'nn'",
        "def suites(): from benchmarks.suites import SUITES": "room 'tuning' may not import"
        " 'benchmarks'",
    },
    "utils.py": {"": "room 'utils' has no row in the table"},
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_law_is_enforced(name, tmp_path):
    """A line that breaks the law is found, and nothing else."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(BROKEN[name]), encoding="utf-8")
    numbered = enumerate(BROKEN[name].values(), 1)
    assert violations(tmp_path) == [f"{name}:{line}: {said}" for line, said in numbered if said]


def test_the_inner_law_is_enforced(tmp_path):
    """An import that looks up inside of a room is found, names for type checkers too."""
    (tmp_path / "nn" / "options").mkdir(parents=True)
    text = "if TYPE_CHECKING:\n    from elman.nn.call.plan import CallPlan\n"
    (tmp_path / "nn" / "options" / "mask.py").write_text(text, encoding="utf-8")
    (tmp_path / "nn" / "other.py").write_text("", encoding="utf-8")
    assert inner_violations(tmp_path) == [
        "nn/options/mask.py:2: 'options' may not import 'call'",
        "nn: 'other' has no row in the table",
    ]


def test_circles_are_found(tmp_path):
    """Of three files; none where one looks only down."""
    for name, there in {"a": "b", "b": "c", "c": "a", "d": "a"}.items():
        (tmp_path / f"{name}.py").write_text(f"from elman.{there} import x\n", encoding="utf-8")
    assert circles(tmp_path) == [{"elman.a", "elman.b", "elman.c"}]


def test_the_law_allows_what_it_should(tmp_path):
    """Downward imports, the standard library and optional packages inside functions pass."""
    text = "import ast\nimport torch\nfrom elman.ir.graph import Graph\nfrom elman import ops\n"
    (tmp_path / "nn").mkdir()
    (tmp_path / "nn" / "function.py").write_text(text, encoding="utf-8")
    (tmp_path / "train.py").write_text("import rich\nfrom lightning_fabric import Fabric\n")

    assert not violations(tmp_path)
