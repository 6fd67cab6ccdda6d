"""What how_we_test.md counts: as many as pytest and hypothesis run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from scripts import TESTS

ROOT = TESTS.parent
FILE = """
import pathlib
import pytest
from hypothesis import given, settings, strategies as st
from products import every

pytestmark = [pytest.mark.skipif(False, reason="none")]
numbers = st.integers(0, 10**9)
MANY = 30
TOLD = pathlib.Path(__file__).with_name("told")

def tell(of):
    with TOLD.open("a") as lines:
        lines.write(f"{of.__name__}\\n")

@given(numbers)
def test_usual(n):
    tell(test_usual)

@settings(max_examples=4)
@given(numbers)
def test_few(n):
    tell(test_few)

@pytest.mark.long
@settings(max_examples=max(2, settings().max_examples // 10, MANY))
@given(numbers)
def test_long(n):
    tell(test_long)

def test_inside():
    @settings(max_examples=max(2, settings().max_examples // 10))
    @given(numbers)
    def holds(n):
        tell(test_inside)
    holds()

@pytest.mark.parametrize("seed", range(40, 70))
def test_parameters(seed):
    tell(test_parameters)

@pytest.mark.parametrize("first", every(2, range(0, 80, 20)))
def test_loops(first):
    count = 20
    for seed in range(first, first + count):
        tell(test_loops)

class TestClass:
    def test_none(self):
        assert [str(seed) for seed in range(MANY)]
"""


@pytest.fixture(scope="module")
def tested() -> ModuleType:
    """docs/tested.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module("tested")


@pytest.mark.slow
@pytest.mark.parametrize("tier, marks", [("make test", "not long"), ("make test-long", "")])
def test_counts_are_those_of_a_run(tested, tier, marks, tmp_path):
    """Each case of a file of tests writes a line."""
    conftest = (TESTS / "conftest.py").read_text("utf-8")
    profiles = re.findall(r'settings\.register_profile\("(\w+)", max_examples=(\d+)', conftest)
    lines = ["import sys", "from hypothesis import settings", f"sys.path.append({str(TESTS)!r})"]
    lines += [f'settings.register_profile("{name}", max_examples={n})' for name, n in profiles]
    (tmp_path / "conftest.py").write_text("\n".join(lines))
    (tmp_path / "test_file.py").write_text(FILE)
    words = ["-m", marks, f"--hypothesis-profile={tested.TIERS[tier]}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words, str(tmp_path), f"--rootdir={tmp_path}"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = {test.name: test for test in tested.functions(tmp_path) if tier in test.tiers}
    counts = {name: test.examples[tier] + len(test.seeds[tier]) for name, test in found.items()}
    assert counts.pop("test_none") == 0
    assert counts == Counter((tmp_path / "told").read_text().split())


@pytest.mark.slow
def test_every_test_of_this_run_is_counted(tested, request):
    """By its file and name, with what marks the whole function; all of them appear on the page."""
    counted = {(test.file, test.name): test for test in tested.functions(TESTS)}
    for item in request.session.items:
        test = counted[Path(item.path).relative_to(TESTS).as_posix(), item.originalname]
        marks = {mark.name for mark in item.iter_markers()}
        assert test.marks <= marks, item.nodeid
    page = tested.page()
    assert f"The tests are {len(counted):,} functions" in page
    folders = re.findall(r"`(tests[\w/]*)`[^|]*\| (?:<span[^>]*>)?(\d+)", page)
    assert sum(int(count) for _, count in folders) == len(counted)


def test_every_campaign_is_listed(tested):
    """But for killed_run.py, which kills.py starts."""
    scripts = (ROOT / "benchmarks" / "robustness").glob("*.py")
    found = {p.name for p in scripts if 'if __name__ == "__main__"' in p.read_text("utf-8")}
    assert set(re.findall(r"robustness/(\w+\.py)", tested.campaigns())) == found - {"killed_run.py"}


def test_numbers_as_spans(tested):
    assert tested._spans({3, 1, 2, 9}) == "1 to 3, 9"
