"""Suites are data: complete, consistent, and as the project's aims say."""

from __future__ import annotations

import json

import pytest

from benchmarks.cases import Effort, packed, unpacked
from benchmarks.contestants import CONTESTANTS
from benchmarks.measures.limits import LimitedCase
from benchmarks.measures.operators import LAYER, MOVING, POINTWISE, PRODUCTS, REST, by_kind
from benchmarks.suites import SUITES, find_suite
from benchmarks.suites.deer import BATCH, LENGTHS, UNITS, cell_of_grid
from benchmarks.suites.layers import LAYERED
from benchmarks.suites.matrices import FORMS_IN_TORCH
from benchmarks.suites.scan import SCANS
from benchmarks.users import PROJECTS, WAYS
from benchmarks.workloads.custom_cells import find_cell
from benchmarks.workloads.decoding import DECODERS
from benchmarks.workloads.fitting import FITTERS
from benchmarks.workloads.language import LANGUAGES
from benchmarks.workloads.products import PRODUCTS as LAYOUTS
from elman.errors import InputError

TORCHS = ("gru", "rnn", "lstm")
CPU = {
    "1000,1,64": (55, 45, 2),
    "1000,1,256": (14, 11, 1.6),
    "100,4,128": (11, 11, 1.3),
    "100,1,1024": (6.5, 4.5, 1.4),
    "100,32,256": (3.1, 3.2, 1.03),
    "50,64,512": (2.6, 2.6, 1),
    "25,64,1024": (2.5, 2.4, 1),
    "10,1000,1000": (2.4, 2.3, 1.05),
}
ASKED = {  # case -> times as fast as its baseline; a table of its own, so that nobody lowers it
    "foundation": {
        "gru 1000,1,64": 30,
        "gru 1000,1,256": 7,
        "gru 100,4,128": 6,
        "gru 100,32,256": 2,
        "gru 50,64,512": 1.5,
        "lstm 100,4,128": 1,
        **dict.fromkeys(("lstm_layernorm 100,4,128", "lstm_peephole 100,4,128"), 20),
    },
    "cpu": {
        **{f"{c} {shape}": r for shape, ratios in CPU.items() for c, r in zip(TORCHS, ratios)},
        **{f"{cell} 1000,1,64": 30 for cell in ("lstm_layernorm", "lem", "leaky_memory")},
    },
    "users": {
        "cleanrl-ppo lstm 128,8,128": 3,
        "cleanrl lstm 128,2,128": 10,
        "sb3 lstm 128,8,256": 5,
        "torchrl gru 128,256,512": 5,
        "speechbrain ligru 500,16,512": 6,
        "ncps cfc 200,32,64": 20,
        "snntorch leaky 100,128,1000": 5,
        "snntorch rleaky 100,128,1000": 5,
        "neuralhydrology ealstm 365,256,256": 2,
        "dreamer gru 64,16,512": 5,
        "haste lstm 100,32,256": 3,
    },
}


@pytest.mark.parametrize("suite", ASKED)
def test_suites_ask_what_was_promised(suite):
    """Ratios by name, beside torch's own layers or loops; 2 threads, float32."""
    cases = [case for case in find_suite(suite).cases if case.ratio is not None]
    assert {case.name: case.ratio for case in cases} == ASKED[suite]
    assert {(case.threads, case.dtype) for case in cases} == {(2, "float32")}
    loops = suite == "users"
    assert loops or {case.measure.name for case in cases} == {"train"}
    for case in cases:
        assert case.baseline == ("torch" if case.cell in TORCHS and not loops else "loop")


def test_starts_take_what_was_promised():
    """Seconds at most."""
    seconds = {c.name: c.seconds for c in find_suite("foundation").cases if c.seconds is not None}
    assert seconds == {
        "first step, cold cache": 5.0,
        "first step, warm cache": 0.1,
        "import elman": 0.3,
    }


def test_every_cell_of_a_grid_has_a_case():
    """Of the paper's lengths and sizes none is left out, and each has a limit; each project is
    measured."""
    cases = {case.name: case for case in find_suite("deer").cases}
    for n in UNITS:
        for T in LENGTHS:
            case = cases[cell_of_grid(n, T)]
            assert (T, BATCH, n) == (case.T, case.B, case.H)
            assert isinstance(case, LimitedCase)
    cases = [case for suite in SUITES.values() for case in suite.cases]
    models = [case for case in cases if case.measure.name in ("users", "forecast")]
    assert {case.kind for case in models} == PROJECTS.keys()


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
        contestants = {
            *CONTESTANTS,
            *LAYERED,
            *FITTERS,
            *DECODERS,
            *LAYOUTS,
            *LANGUAGES,
            *WAYS,
            *SCANS,
            *FORMS_IN_TORCH,
        }
        assert names <= contestants, case.name
        assert case.baseline in {"", *case.contestants}, case.name
        assert unpacked(packed(case)) == (case,)
        assert json.loads(json.dumps(case.to_json()))["measure"] == case.measure.name


def test_cases_are_selected_by_pattern():
    """Patterns choose by name, in the suite's order; without any, all or the quick ones."""
    suite = find_suite("foundation")
    assert suite.select() == suite.cases
    quick = suite.select(quick=True)
    assert 0 < len(quick) < len(suite.cases)
    selected = [case.name for case in suite.select(("lstm*", "gru 50*"))]
    assert selected == [name for name in ASKED["foundation"] if name.startswith(("lstm", "gru 50"))]
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


def test_operators_are_sorted_by_kind():
    """Own times per call, by kind; views and nodes of autograd are the rest, and not operators."""
    events = [
        *(("aten::addmm", 5e6, 10), ("aten::mm", 5e6, 5), ("aten::tanh_backward", 1e6, 5)),
        *(("aten::mkldnn_rnn_layer", 2e6, 5), ("aten::cat", 3e6, 5), ("aten::t", 4e6, 5)),
        ("AddmmBackward0", 6e6, 5),
    ]
    result = by_kind(events)
    seconds = {PRODUCTS: 2.0, POINTWISE: 0.2, LAYER: 0.4, MOVING: 0.6, REST: 2.0}
    assert result["seconds"] == pytest.approx(seconds)
    assert result["operators"] == 7
