"""Suites are data: complete, consistent, and as the project's aims say."""

from __future__ import annotations

import json

import pytest

from benchmarks.cases import Effort, packed, unpacked
from benchmarks.contestants import CONTESTANTS
from benchmarks.suites import SUITES, find_suite
from benchmarks.users import WAYS
from benchmarks.workloads.custom_cells import find_cell
from benchmarks.workloads.decoding import DECODERS
from benchmarks.workloads.fitting import FITTERS
from benchmarks.workloads.language import LANGUAGES
from benchmarks.workloads.layer_features import LAYERED
from benchmarks.workloads.products import PRODUCTS
from benchmarks.workloads.scans import SCANS
from elman.errors import InputError

ASKED = {  # (T, B, H) -> times as fast as torch; a table of its own, so that nobody lowers it
    ("gru", 1000, 1, 64): 30,
    ("gru", 1000, 1, 256): 7,
    ("gru", 100, 4, 128): 6,
    ("gru", 100, 32, 256): 2,
    ("gru", 50, 64, 512): 1.5,
    ("lstm", 100, 4, 128): 1,
    ("lstm_layernorm", 100, 4, 128): 20,
    ("lstm_peephole", 100, 4, 128): 20,
}


def test_foundation_asks_what_was_promised():
    """Ratios by shape, seconds by name; 2 threads, float32, input size = H."""
    cases = find_suite("foundation").cases
    steps = [case for case in cases if case.ratio is not None]
    assert {(c.cell, c.T, c.B, c.H): c.ratio for c in steps} == ASKED
    assert {(c.threads, c.dtype, c.measure.name) for c in steps} == {(2, "float32", "train")}
    assert all(case.input_size == case.H for case in steps)
    seconds = {case.name: case.seconds for case in cases if case.seconds is not None}
    assert seconds == {
        "first step, cold cache": 5.0,
        "first step, warm cache": 0.1,
        "import elman": 0.3,
    }


CPU_ASKED = {  # (T, B, H) -> GRU, RNN, LSTM
    (1000, 1, 64): (55, 45, 2),
    (1000, 1, 256): (14, 11, 1.6),
    (100, 4, 128): (11, 11, 1.3),
    (100, 1, 1024): (6.5, 4.5, 1.4),
    (100, 32, 256): (3.1, 3.2, 1.03),
    (50, 64, 512): (2.6, 2.6, 1),
    (25, 64, 1024): (2.5, 2.4, 1),
    (10, 1000, 1000): (2.4, 2.3, 1.05),
}


def test_cpu_asks_what_was_promised():
    """Ratios to torch's own layers by shape; a loop for cells that torch does not have."""
    cases = [case for case in find_suite("cpu").cases if case.ratio is not None]
    assert {(c.threads, c.dtype, c.measure.name) for c in cases} == {(2, "float32", "train")}
    for index, cell in enumerate(("gru", "rnn", "lstm")):
        ratios_by_shape = {(c.T, c.B, c.H): c.ratio for c in cases if c.cell == cell}
        assert ratios_by_shape == {shape: ratios[index] for shape, ratios in CPU_ASKED.items()}
    loops = [case for case in cases if case.baseline == "loop"]
    assert {(c.cell, c.ratio) for c in loops} == {
        ("lstm_layernorm", 30),
        ("lem", 30),
        ("leaky_memory", 30),
    }


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_suite_is_consistent(suite):
    """Names are unique and every name that a case uses exists."""
    names = [case.name for case in suite.cases]
    assert len(names) == len(set(names))
    assert SUITES[suite.name] is suite
    assert suite.question.endswith("?")
    for case in suite.cases:
        assert case.measure.name in ("users", "update") or find_cell(case.cell), case.name
        with_cell = case.measure.name == "variants"
        names = {name.partition(" ")[0] if with_cell else name for name in case.contestants}
        every = {*CONTESTANTS, *LAYERED, *FITTERS, *DECODERS, *PRODUCTS, *LANGUAGES, *WAYS, *SCANS}
        assert names <= every, case.name
        assert case.baseline in {"", *case.contestants}, case.name
        assert unpacked(packed(case)) == (case,)
        assert json.loads(json.dumps(case.to_json()))["measure"] == case.measure.name


def test_cases_are_selected_by_pattern():
    """Patterns choose by name, in the suite's order; without any, all or the quick ones."""
    suite = find_suite("foundation")
    assert suite.select() == suite.cases
    quick = suite.select(quick=True)
    assert 0 < len(quick) < len(suite.cases)
    chosen = suite.select(("lstm*", "gru 50*"))
    assert [case.name for case in chosen] == [
        "gru 50,64,512",
        "lstm 100,4,128",
        "lstm_layernorm 100,4,128",
        "lstm_peephole 100,4,128",
    ]
    with pytest.raises(InputError, match="has no case 'fly'"):
        suite.select(("fly",))


def test_effort():
    """`--quick` is less of everything; `--seconds` is the time alone."""
    usual, quick = Effort.of(False, None), Effort.of(True, None)
    assert quick.seconds < usual.seconds
    assert quick.starts < usual.starts
    assert Effort.of(False, 2.0) == Effort(2.0, usual.rounds, usual.starts)
    with pytest.raises(InputError, match="must be positive"):
        Effort.of(False, 0.0)
