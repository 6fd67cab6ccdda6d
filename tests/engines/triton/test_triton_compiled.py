"""Kernels compiled without a GPU: they fit, nothing spills, weights are loaded outside the loop."""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from elman import cells, compiler
from elman.engines.triton.device.limits import PROCESSORS
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.device.source import function
from elman.engines.triton.engine import ENGINE
from elman.engines.triton.loops.matrix_schedules import matrix_schedules
from elman.engines.triton.loops.sweeping import Sweeping
from elman.engines.triton.occupancy import grids, loops
from elman.engines.triton.text.layout import TritonLayout
from elman.frontend.cell import Cell
from elman.plan.build import program
from elman.plan.program import Program
from elman.plan.spec import Spec
from offline import SHARED, Facts, facts
from products import some_of
from unseen import functions, grouped, latents

TYPES: dict[str, tuple[str, Any]] = {
    "float32": ("fp32", tl.float32),
    "bfloat16": ("bf16", tl.bfloat16),
    "float16": ("fp16", tl.float16),
}


def planned(cell: Cell, units: int, dtype: str) -> Program:
    dims = tuple(sorted(cell.bind(units, units).items()))
    wants = frozenset(leaf.name for leaf in (*cell.inputs, *cell.weights))
    job = compiler.job(cell, Spec(dims, dtype, "cuda", wants))
    return program(job.pair, job.spec)


def types_of(names: Any, dtype: str, *wide: str) -> dict[str, str]:
    """Arguments' types: strides and sizes are numbers, loop-invariant vectors are float32, so are
    some."""
    short = TYPES[dtype][0]
    sizes = ("T", "B", "count", "i0", "i1", "g0")
    return {
        name: "i32"
        if name in sizes or "_" in name
        else "*i32"
        if name == "bar"
        else "*i64"
        if name == "rows"
        else "*fp32"
        if name in ("vec", *wide) or name.startswith("pb")
        else f"*{short}"
        for name in names
    }


def loop_facts(
    cell: Cell,
    units: int,
    dtype: str,
    target: str,
    forward: bool,
    schedule: TritonSchedule,
    **options: bool,
) -> Facts:
    """What the time loop of a direction needs, all states kept; ``options`` as of Sweeping."""
    of = planned(cell, units, dtype)
    sweep = of.forward if forward else of.backward
    assert sweep is not None
    layout = TritonLayout(of)
    kept = (True,) * len(layout.state_widths)
    made = Sweeping(layout, sweep, schedule, kept, **options)
    assert made.loop is not None
    constants = {
        "N": schedule.samples,
        "DT": TYPES[dtype][1],
        "PRECISION": "tf32",
        "INTERPRETED": False,
        "BARRIER": True,
    }
    ends = [f"{name}{k}" for name in ("first", "last", "dlast", "dfirst") for k in range(3)]
    types = types_of(made.loop.arguments, dtype, *ends)
    return facts(made.kernel, types, constants, target, warps=schedule.warps)


# What the tables and "nothing spills" hold for. Triton 3.6, that of torch 2.11, takes up to twice
# the registers and half more barriers, or spills some words.
CURRENT = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
SPILLED = 0 if CURRENT else 32  # (bytes) of one thread


# cell, units, dtype, schedule, forward: registers at most, and per step: products on tensor
# cores, barriers, loads and stores of global memory. A change that raises one has to say why.
TABLE = {
    ("gru", 64, "bfloat16", "loop/8/4", True): (80, 12, 16, 3, 5),
    ("gru", 64, "bfloat16", "loop/8/4", False): (96, 12, 20, 6, 4),
    ("gru", 128, "bfloat16", "loop/8/4", True): (104, 48, 16, 3, 5),
    ("gru", 128, "bfloat16", "loop/8/8", False): (88, 24, 20, 6, 4),
    ("gru", 128, "bfloat16", "loop/16/8", True): (88, 24, 16, 3, 5),
    ("lstm", 64, "bfloat16", "loop/8/4", True): (96, 16, 20, 4, 6),
    ("lstm", 64, "bfloat16", "loop/8/4", False): (104, 16, 22, 7, 4),
    ("lstm", 128, "bfloat16", "loop/8/4", True): (128, 64, 20, 4, 6),
    ("gru", 64, "float32", "loop/8/4", True): (96, 24, 18, 3, 5),
    ("gru", 64, "float32", "loop/16/4", False): (160, 24, 21, 12, 8),
    ("lstm", 64, "float32", "loop/8/4", True): (128, 32, 22, 4, 6),
}


def fits(found: Facts, target: str) -> None:
    """Nothing spills, and what is shared has room."""
    assert found.spilled <= SPILLED
    assert found.shared <= SHARED[target]


def rows(table: dict[tuple[Any, ...], tuple[int, ...]], *usual: int) -> list[Any]:
    """Parameters of a table's rows: of other sizes than the usual ones they are ``long``."""
    return [
        pytest.param(key, id="-".join(map(str, key)), marks=() if at in usual else pytest.mark.long)
        for at, key in enumerate(table)
    ]


# cell, units, dtype, schedule, forward: as above, of units cut over programs. Loads ahead of their
# step take registers (a processor has one program); sums of several products share barriers, and
# what no other program waits for is stored after the arrival.
GRIDS = {
    ("gru", 1024, "bfloat16", "grid/16/4/8", True): (144, 96, 23, 20, 5),
    ("gru", 1024, "bfloat16", "grid/16/4/8", False): (128, 96, 31, 55, 4),
    ("gru", 512, "bfloat16", "grid/8/4/8", True): (80, 24, 17, 11, 5),
    ("gru", 512, "bfloat16", "grid/8/4/8", False): (80, 24, 19, 25, 4),
    ("lstm", 1024, "bfloat16", "grid/16/4/8", True): (152, 128, 27, 21, 6),
    ("lstm", 1024, "bfloat16", "grid/16/4/8", False): (128, 128, 36, 72, 4),
    ("rnn", 1152, "float32", "grid/8/8/16", True): (152, 18, 12, 14, 1),
    ("rnn", 1152, "float32", "grid/8/8/16", False): (152, 18, 12, 18, 1),
    ("gru", 1024, "float32", "grid/16/8/8", True): (176, 96, 17, 29, 5),
}


@pytest.mark.parametrize("key", [*rows(TABLE, 0, 3, 6, 9), *rows(GRIDS, 2, 3, 5, 6)])
def test_tables(key: tuple[Any, ...]) -> None:
    """The weights' loads are outside or a part of a step's, nothing spills, and the counts on sm_90
    are those of the table."""
    name, units, dtype, schedule, forward = key
    found = loop_facts(
        getattr(cells, name), units, dtype, "sm_90", forward, TritonSchedule.parse(schedule)
    )
    fits(found, "sm_90")
    registers, products, barriers, loads, stores = (TABLE | GRIDS)[key]
    assert 0 < found.loop["HMMA"] + found.loop["HGMMA"] <= products
    if CURRENT:
        assert found.registers <= registers
        assert found.loop["BAR"] <= barriers
    assert found.loop["LDG"] <= loads
    assert found.loop["STG"] <= stores
    if schedule.startswith("loop"):
        assert not found.loop["LDL"] + found.loop["STL"]


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "cell, units, dtype, batch",
    [
        (cells.lstm, 768, "bfloat16", 20),
        (cells.gru, 1024, "float32", 32),
        pytest.param(cells.lstm_layernorm, 96, "bfloat16", 4, marks=pytest.mark.long),
        (cells.gru, 127, "float32", 67),  # weights take 192 KiB of 227
    ],
    ids=lambda value: value.name if isinstance(value, Cell) else str(value),
)
def test_what_the_model_lets_pass_fits(
    cell: Cell, units: int, dtype: str, batch: int, every: bool
) -> None:
    """Schedules that are measured have room on the chip, and registers for each step: those of most
    samples in a loop, and of fewest units in a grid."""
    of = planned(cell, units, dtype)
    inside, across = loops(of, batch, 1), grids(of, batch, 1)
    found = [*inside, *across] if every else [*inside[-1:], *across[:1]]
    assert found
    for schedule in found:
        for forward in (True, False):
            own = loop_facts(cell, units, dtype, "sm_90", forward, schedule)
            assert own.shared <= SHARED["sm_90"], schedule.name
            local = own.spilled and own.loop["LDL"] + own.loop["STL"]
            assert not local, schedule.name


def test_places_that_half_precision_cannot_count() -> None:
    """The number of the largest of so many units goes through memory in a grid, not in a loop."""
    for units, dtype, fits in (
        (126, "bfloat16", True),  # 252 in both gate blocks
        (132, "bfloat16", False),
        (132, "float16", True),
        (132, "float32", True),
    ):
        assert bool(grids(planned(latents, units, dtype), 1, 1)) is fits, (units, dtype)


@given(batch=st.integers(1, 300), units=st.integers(1, 2000), heads=st.sampled_from([1, 2, 8]))
def test_all_programs_are_resident(batch: int, units: int, heads: int) -> None:
    """Whoever waits for a program finds it running: no grid has more of them than processors."""
    of = SMALL.setdefault(units, planned(cells.rnn, units, "bfloat16"))
    for schedule in grids(of, batch, heads):
        groups = -(-batch // schedule.samples)
        assert -(-units // schedule.units) * groups * heads <= PROCESSORS


SMALL: dict[int, Program] = {}


SMALL_LOOP = "loop/16/4"


@pytest.mark.parametrize(
    "of, schedule, target, dtype, forward",
    [
        # AMD's tensor cores take no fewer than sixteen units
        *some_of([(cells.gru, 512)], ["grid/16/8/8"], ["sm_80"], ["float16"], [True, False]),
        *some_of([(cells.gru, 512)], ["grid/16/8/16"], ["gfx942"], ["float16"], [True, False]),
        # older and other chips
        *some_of(
            [(cells.gru, 64)],
            [SMALL_LOOP],
            ["sm_80", "gfx942"],
            [*TYPES],
            [True, False],
            together=1,
        ),
        # doubles inside of a function are no reason to spill
        *some_of([(functions, 32)], [SMALL_LOOP], ["sm_90", "gfx942"], ["float32"], [True, False]),
        # every cell of the library in one direction, and half of them in each
        *some_of(
            [(cell, 32) for cell in cells.CORE],
            [SMALL_LOOP],
            ["sm_90"],
            ["bfloat16"],
            [True, False],
            together=1,
        ),
    ],
)
def test_compiles(
    of: tuple[Cell, int], schedule: str, target: str, dtype: str, forward: bool
) -> None:
    """Other chips, functions, and every cell."""
    fits(loop_facts(*of, dtype, target, forward, TritonSchedule.parse(schedule)), target)


@pytest.mark.parametrize(
    "of, forward, schedule",
    some_of(
        [(grouped, 24), (grouped, 32), (latents, 48)],
        [True, False],
        ["loop/16/4", "grid/16/8/16"],
        together=1,
    ),
)
def test_groups_of_units_compile(of: tuple[Cell, int], forward: bool, schedule: str) -> None:
    """Groups of a power of two of units, and of others, which are gathered."""
    cell, units = of
    found = loop_facts(cell, units, "bfloat16", "sm_90", forward, TritonSchedule.parse(schedule))
    assert found.shared <= SHARED["sm_90"]


@pytest.mark.parametrize("forward", [True, False])
def test_heads_compile(forward: bool) -> None:
    """Programs of several heads differ in where their arrays lie alone."""
    schedule = TritonSchedule("loop", 16, 4)
    found = loop_facts(cells.lstm, 64, "bfloat16", "sm_90", forward, schedule, heads=True)
    assert found.spilled <= SPILLED
    assert found.loop["LDG"] <= (4 if forward else 7)


@pytest.mark.parametrize(
    "of, forward", some_of([("loop/16/8", 128), ("grid/16/8/16", 512)], [True, False], together=1)
)
def test_packed_rows_compile(of: tuple[str, int], forward: bool) -> None:
    """Each sample's own number of steps costs a few loads of numbers, and no room."""
    name, units = of
    schedule = TritonSchedule.parse(name)
    found = loop_facts(cells.gru, units, "bfloat16", "sm_90", forward, schedule, packed=True)
    fits(found, "sm_90")
    plain = loop_facts(cells.gru, units, "bfloat16", "sm_90", forward, schedule)
    assert found.loop["LDG"] <= plain.loop["LDG"] + 8
    assert found.loop["BAR"] <= plain.loop["BAR"]


@pytest.mark.parametrize(
    "cell, sizes, schedule",
    [
        (cells.gated_delta_net, (64, 64), "loop/1/8"),
        (cells.gated_delta_net, (64, 64), "loop/1/1/16"),
        (cells.mlstm, (256, 512), "loop/1/1/4"),
    ],
    ids=lambda of: getattr(of, "name", of),
)
@pytest.mark.parametrize("forward", [True, False])
def test_matrices_compile(cell: Cell, sizes: tuple[int, int], schedule: str, forward: bool) -> None:
    """The matrix of a sample stays in registers, and a share of it needs few sums between threads:
    the rows of a vector do not lie over all of them."""
    dims = tuple(zip("KV", sizes, strict=True))
    wants = frozenset(leaf.name for leaf in cell.inputs)
    job = compiler.job(cell, Spec(dims, "float32", "cuda", wants))
    of = ENGINE._program(job)
    assert schedule in [each.name for each in matrix_schedules(of)]
    sweep = of.forward if forward else of.backward
    assert sweep is not None
    made = Sweeping(TritonLayout(of), sweep, TritonSchedule.parse(schedule), (False,) * 3)
    assert made.loop is not None
    constants = dict.fromkeys(("INTERPRETED", "BARRIER"), False) | {"N": 1, "DT": tl.float32}
    types = types_of(made.loop.arguments, "float32")
    found = facts(
        made.kernel, types, constants | {"PRECISION": "tf32"}, "sm_90", warps=made.schedule.warps
    )
    fits(found, "sm_90")
    assert found.loop["SHFL"] < 64


@pytest.mark.parametrize(
    "cell", [cells.lstm_layernorm, pytest.param(cells.gru_before, marks=pytest.mark.long)]
)
def test_steps_compile(cell: Cell) -> None:
    """Kernels between products: of steps, and of all rows at once."""
    of = planned(cell, 32, "bfloat16")
    layout = TritonLayout(of)
    assert of.backward is not None
    for sweep in (of.forward, of.backward):
        for runner in Sweeping(layout, sweep, TritonSchedule("steps"), (True, True)).runners:
            for text, segment in zip(runner.texts, runner.segments):
                if segment.kernel is None:
                    continue
                made = function("rows", text)
                names = [name for name in made.arg_names if name != "N"]
                types = types_of(names, "bfloat16", "sc", "sr", "tape", "ch", "ca", "cn")
                found = facts(made, types, {"N": segment.block}, "sm_90")
                assert found.spilled <= SPILLED
