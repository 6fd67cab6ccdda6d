"""Every suite to its end in tiny sizes: its rows, its table, claims and page."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import contestants, report, running, timing, worker
from benchmarks.cases import Case, Effort, Suite, unpacked
from benchmarks.claims import UNDECIDED, UNTRIED, Rows, judged
from benchmarks.measures import memory, starting
from benchmarks.peers import remote
from benchmarks.programs import Program
from benchmarks.rows import Row, read_rows
from benchmarks.studies import convergence, learning
from benchmarks.suites import SUITES, layers, matrices
from benchmarks.table import CASE, words
from benchmarks.users import ppo
from benchmarks.workloads import fitting, language, weight_residency
from scripts import run_program_forked

T = 12  # pixels of an image, 3 x 4
LEAST = Effort(1e-9, 1, 1)
QUIET = "repeat it on a quiet machine"
# Why a claim is not judged in tiny: a peer that is not there, and a step that is too small.
KNOWN = (
    *("a difference needs two seeds", "the paper's model sees"),
    *("did not run", "a process of its own", "no row has a step of 10 MiB", "not installed"),
    "neither JAX nor torch.compile was measured",  # both want a process of their own
)
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def tiny(case: Case) -> Case:
    """The same in sizes that take no time."""
    most = {"T": T, "B": 4, "I": 5, "layers": 2, "judged": T, "threads": 1}
    most |= {"heads": 2, "steps": 6, "checkpoint": 4}
    sizes = {k: min(getattr(case, k), size) for k, size in most.items() if hasattr(case, k)}
    sizes |= {"H": 8} if hasattr(case, "H") else {}  # of a grid of sizes, too
    return replace(case, **sizes)


_said: dict[tuple[str, ...], str] = {}


def run_forked(program: Program, limit_s: float) -> str:
    """The last line of a process that had torch imported, and compiles as tests do: of one for all
    that differ in their sizes alone."""
    name = unpacked(program.text)[1] if program.text else ""
    key = (*program.words[:2], name)
    if key not in _said:
        _said[key] = run_program_forked(program, limit_s)
    return _said[key]


_measured: dict[str, Row] = {}


def measure(case: Case, effort: Effort, cache: Path | None) -> Row:
    """A tiny case in this process, once for all that differ in name, size or cell alone."""
    del effort, cache
    kind = replace(case, name="", cell="", quick=False, ratio=None, seconds=None)
    key = json.dumps(tiny(kind).to_json())
    if key not in _measured:
        threads = torch.get_num_threads()
        row = worker.measure(tiny(case), LEAST)
        torch.set_num_threads(threads)
        _measured[key] = json.loads(json.dumps(row)) | {"waited": 0.0}  # whatever else runs
    return copy.deepcopy(_measured[key])


def absent(*_: Any) -> str:
    """Why some are left out."""
    return "it takes a process of its own"


@pytest.fixture
def in_tiny(monkeypatch, tmp_path, two_classes) -> None:
    """Suites measure tiny cases in this process, on data of two classes; what is always in a
    process of its own is forked from one that has torch."""
    monkeypatch.setattr(running, "_measured", measure)
    monkeypatch.setattr(remote, "remote", absent)
    monkeypatch.setattr(layers, "remote", lambda *words: layers.layered(*words[:2]))
    for known in (contestants.CONTESTANTS, fitting.FITTERS):
        monkeypatch.setitem(known, "compiled", absent)
    monkeypatch.setattr(matrices, "BACKEND", "aot_eager")  # a tenth of the time
    for module in (memory, starting):
        monkeypatch.setattr(module, "run_program", run_forked)
    monkeypatch.setattr(report, "_charts", lambda page: [])  # most of the time; see below
    monkeypatch.setattr(language, "WORDS", dict.fromkeys(language.WORDS, 11))
    for name, value in (("STEPS", 10), ("WORD_STEPS", 10), ("_TOKENS", 300), ("_WORDS", 300)):
        monkeypatch.setattr(learning, name, value)
    monkeypatch.setattr(learning, "_FEW", 300)
    monkeypatch.setattr(learning, "_MEAN", 2)
    monkeypatch.setattr(learning, "WINDOW", 8.0)
    monkeypatch.setattr(learning, "TARGET", 9.0)
    monkeypatch.setattr(weight_residency, "COLD_BYTES", 1 << 16)
    monkeypatch.setattr(convergence, "LENGTHS", (5, 20))
    monkeypatch.setitem(convergence.WEIGHTS, "trained", (1.0, 2))
    monkeypatch.setattr(ppo, "EPOCHS", 1)
    for name, least in (("WARM_UP", 1), ("SAMPLE_S", 0.0)):
        monkeypatch.setattr(timing, name, least)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k % 7} of {k % 5}\n" for k in range(900)))
    monkeypatch.setenv("ELMAN_BENCH_TEXT", str(text))


OF_COUNTS = ("depth", "minibatch")  # whose claims read no time


def shown(suite: Suite, path: Path) -> str:
    """The page of a suite, which has a line for each claim."""
    page = unescape(path.read_text())
    for claim in suite.claims:
        assert claim.says in page
    return page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # dynamo's
@pytest.mark.usefixtures("in_tiny")
@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_a_suite_runs_to_its_end(suite, benchmarks, tmp_path):
    """No row fails, each says something, each claim has its verdict, and the page has them; the
    same from the file alone. Measured on a busy machine, all is shown but the verdicts."""
    out = tmp_path / f"{suite.name}.jsonl"
    code, output, _ = benchmarks(suite.name, f"--out={out}")
    rows = read_rows(out)
    assert [row.get("failed") for row in rows.values()] == [None] * len(suite.cases)
    assert code == 0
    assert f"page: {out.with_suffix('.html')}" in output
    assert not [name for name, row in rows.items() if not words(row).keys() - {CASE}]
    lines = judged(suite.claims, Rows(rows.values()))
    unmeasured = [line[5] for line in lines if line[4] == UNTRIED]
    assert not [why for why in unmeasured if not any(known in why for known in KNOWN)]
    page = shown(suite, out.with_suffix(".html"))
    assert QUIET not in page
    code, again, _ = benchmarks(suite.name, f"--out={out}", "--report")
    assert (code, again.splitlines()[-2:]) == (0, output.splitlines()[-2:])

    out.write_text("".join(json.dumps(row | {"waited": 0.6}) + "\n" for row in rows.values()))
    code, output, _ = benchmarks(suite.name, f"--out={out}", "--report")
    assert code == 0
    assert QUIET in output
    page = shown(suite, out.with_suffix(".html"))
    assert QUIET in page
    assert page.count("busy (60%)") >= len(rows)
    lines = judged(suite.claims, Rows(read_rows(out).values()))
    verdicts = {line[4] for line in lines}
    assert not verdicts or UNDECIDED in verdicts or suite.name in OF_COUNTS


@pytest.mark.long
def test_committed_rows_are_shown(benchmarks, tmp_path):
    """All suites on one page with their charts, to its end."""
    rows = shutil.copytree(RESULTS, tmp_path / "rows")
    code, output, _ = benchmarks("all", f"--out={rows}", "--report")
    assert code == 0
    assert "page: " in output
    page = (rows / "report.html").read_text()
    assert all(f'id="benchmarks-{suite}"' in page for suite in SUITES)
