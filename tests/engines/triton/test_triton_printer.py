"""Texts of kernels: every name is defined before it is read, and an argument that is not read is no
argument."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from elman import cells, compiler
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.engine import ENGINE
from elman.engines.triton.loops.matrix_schedules import matrix_schedules
from elman.engines.triton.loops.sweeping import Sweeping
from elman.engines.triton.text.layout import TritonLayout
from elman.engines.triton.text.unitwise import Line, live
from elman.frontend.cell import Cell
from elman.plan.build import program
from elman.plan.spec import Spec
from helpers import job_of, random_case
from library_sizes import matrix_sizes
from products import some_of
from unseen import epilogue, holding, latents

GIVEN = {"tl", "lib", "triton", "float", "range"}  # to every kernel


def texts(cell: Cell, schedule: str, dtype: str, **options: bool) -> list[str]:
    """Of both directions."""
    dims = cell.bind(3, 6, **({"P": 2} if cell is epilogue else {}))
    wants = frozenset(leaf.name for leaf in (*cell.inputs, *cell.weights))
    job = compiler.job(cell, Spec(tuple(sorted(dims.items())), dtype, "cuda", wants))
    of = program(job.pair, job.spec)
    layout = TritonLayout(of)
    kept = (True,) * len(layout.state_widths)
    assert of.backward is not None
    sweeps = [
        Sweeping(layout, sweep, TritonSchedule.parse(schedule), kept, **options)
        for sweep in (of.forward, of.backward)
    ]
    rows = [text for sweep in sweeps for runner in sweep.runners for text in runner.texts]
    return [*rows, *(sweep.text for sweep in sweeps if sweep.loop is not None)]


def undefined(text: str) -> set[str]:
    """Names that a kernel reads before it defines them, in the order of its lines; and arguments
    that it does not read."""
    *functions, kernel = ast.parse(text).body
    assert isinstance(kernel, ast.FunctionDef)
    arguments = {arg.arg for arg in kernel.args.args}
    known = {*GIVEN, *arguments, *(f.name for f in functions if isinstance(f, ast.FunctionDef))}
    read: set[str] = set()
    wrong: set[str] = set()

    def visit(statements: list[Any]) -> None:
        for statement in statements:
            inner = [*getattr(statement, "body", []), *getattr(statement, "orelse", [])]
            ends = {id(part) for each in inner for part in ast.walk(each)}
            names = [part for part in ast.walk(statement) if isinstance(part, ast.Name)]
            names = [part for part in names if id(part) not in ends]
            loads = {part.id for part in names if isinstance(part.ctx, ast.Load)}
            stores = {part.id for part in names if isinstance(part.ctx, ast.Store)}
            if isinstance(statement, ast.AugAssign):
                loads |= stores
            wrong.update(loads - known)
            read.update(loads)
            known.update(stores)
            visit(inner)

    visit(kernel.body)
    options = {"N", "DT", "PRECISION", "INTERPRETED", "BARRIER"}
    numbers = {"T", "B", "i0", "i1", "g0"}
    return wrong | (arguments - read - options - numbers)


def taken_for_invariant(text: str) -> set[str]:
    """Names that Triton 3.6 takes for invariant in a loop, and are not: each is set to what another
    one was at the beginning of a step, and both were the same before the loop."""
    wrong: set[str] = set()

    def visit(statements: list[Any], values: dict[str, object]) -> None:
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Name(name)], value=ast.Name(other)):
                    values[name] = values.get(other, other)
                case ast.Assign(targets=[ast.Name(name)]):
                    values[name] = statement
                case ast.For(body=body):
                    before = dict(values)
                    look(body, before, set())
                    visit(body, before)
                case _:
                    visit(getattr(statement, "body", []), values)

    def look(body: list[Any], before: dict[str, object], changed: set[str]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(name)], value=ast.Name(other)):
                    same = before.get(name, name) is before.get(other, other)
                    wrong.update({name} if same and other not in changed else ())
                case _:
                    pass
            stores = (part for part in ast.walk(statement) if isinstance(part, ast.Name))
            changed |= {part.id for part in stores if isinstance(part.ctx, ast.Store)}

    visit(ast.parse(text).body, {})
    return wrong


@pytest.mark.parametrize(
    "cell, schedule, options",
    some_of(
        [cells.gru, cells.lstm_layernorm, cells.indrnn, latents, holding, epilogue],
        ["loop/16/4", "steps", "grid/16/2/3", "grid/2/2/3"],
        [{}, {"packed": True}, {"heads": True}],
    ),
)
def test_names(cell: Cell, schedule: str, options: dict[str, bool]) -> None:
    """In every schedule, of dense and packed rows, of heads."""
    for text in texts(cell, schedule, "bfloat16", **options):
        assert undefined(text) == set(), text
        assert taken_for_invariant(text) == set(), text


@pytest.mark.parametrize(
    "cell", [cells.gated_delta_net, cells.mlstm, cells.rwkv7, cells.ltc], ids=lambda cell: cell.name
)
@pytest.mark.parametrize("packed", [False, True])
def test_names_of_matrices(cell: Cell, packed: bool) -> None:
    """The same of matrices per sample, whole and in shares."""
    case = random_case(cell, matrix_sizes(cell, 2, 19))
    of = ENGINE._program(job_of(case))
    layout = TritonLayout(of)
    kept = tuple(k not in layout.matrices for k in range(len(layout.state_widths)))
    assert of.backward is not None
    for schedule in matrix_schedules(of):
        for sweep in (of.forward, of.backward):
            text = Sweeping(layout, sweep, schedule, kept, packed=packed).text
            assert undefined(text) == set(), text
            assert taken_for_invariant(text) == set(), text


def test_what_is_taken_for_invariant() -> None:
    """A state kept from before a step, that began as what it is kept of."""
    text = "def k(x):\n    a = load(x)\n    b = a\n    for i in range(x):\n"
    assert taken_for_invariant(f"{text}        b = a\n        a = a + 1\n") == {"b"}
    assert not taken_for_invariant(f"{text}        a = a + 1\n        b = a\n")


@pytest.mark.parametrize("cell", [cells.gru, cells.gru_before, cells.lem, latents, epilogue])
@pytest.mark.parametrize("schedule", ["loop/8/4", "steps", "grid/16/2/3"])
def test_a_barrier_stands_between_loads_and_stores_in_place(cell: Cell, schedule: str) -> None:
    """Threads that hold copies of an element all load it before one of them stores; two steps."""
    for text in texts(cell, schedule, "bfloat16"):
        before, loop, body = text.partition("    for i in")
        unordered: set[tuple[str, int]] = set()  # loads since the last barrier, and of which step
        for step, part in enumerate([before, body, body] if loop else [text]):
            for line in part.splitlines():
                if "debug_barrier" in line or "lib.wait" in line or "lib.arrive" in line:
                    unordered.clear()
                for address in re.findall(r"tl\.load\((.*), mask", line):
                    at = address.replace("_next", "")
                    unordered.add((at, step + (at != address)))
                for address in re.findall(r"lib\.put\((.*), tl\.broadcast_to", line):
                    assert (address.replace("now", ""), step) not in unordered, text


def test_undefined_names_are_noticed() -> None:
    """Behind a loop, in one, and in an assignment that adds."""
    text = "def k(x, y, z):\n    for i in steps(x):\n        a = b + i\n    c += a\n    y\n"
    assert undefined(text) == {"steps", "b", "c", "z"}


def test_dead_code() -> None:
    """What nothing reads goes, and what only that reads; what is read before is told."""
    lines = [Line("a", "1", ()), Line("b", "-a", ("a",)), Line("c", "a + h", ("a", "h"))]
    read: set[Any] = {"c"}
    assert live(lines, read) == ["a = 1", "c = a + h"]
    assert read == {"a", "c", "h"}
