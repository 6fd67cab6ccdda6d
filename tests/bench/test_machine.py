"""What stands beside a number: machine, commit, peak."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import torch

from elman.bench.machine import commit, digest, facts
from elman.bench.peak import CHAINS, peak_gflops, peak_text
from elman.engines.c.build import Compiler, find_compiler
from elman.engines.c.isa import ISAS


def test_facts():
    """All that a number depends on, JSON-able."""
    found = facts()
    assert json.loads(json.dumps(found)) == found
    for name in ("cpu", "cores", "threads", "torch", "blas", "kernel_isa", "compiler", "load"):
        assert name in found
    assert found["threads"] == torch.get_num_threads()


def test_commit(tmp_path):
    """The commit of the sources' own repository, marked if they differ from it."""
    package = tmp_path / "src" / "elman"
    package.mkdir(parents=True)
    (package / "a.py").write_text("a = 1\n")
    assert commit.__wrapped__(package) == "unknown"

    if shutil.which("git") is None:
        pytest.skip("no git on the PATH")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        ran = subprocess.run(["git", "-C", str(tmp_path), *words], capture_output=True)
        if ran.returncode:
            pytest.skip(f"git {words[0]} failed")
    head = commit.__wrapped__(package)
    assert len(head) == 12
    (package / "a.py").write_text("a = 2\n")
    assert commit.__wrapped__(package) == f"{head}+"

    inside = package / "src" / "other"
    inside.mkdir(parents=True)
    assert commit.__wrapped__(inside) == "unknown"


def test_digest_of_sources(tmp_path):
    """It changes with what is measured, and not with how it is shown."""
    for name in ("nn", "cli"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("a = 1\n")
    first = digest.__wrapped__(tmp_path)
    (tmp_path / "cli" / "a.py").write_text("a = 2\n")
    assert digest.__wrapped__(tmp_path) == first
    (tmp_path / "nn" / "a.py").write_text("a = 2\n")
    assert digest.__wrapped__(tmp_path) != first


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.name)
def test_peak_text(isa):
    """Independent chains of one multiplication and one addition, in vectors of the ISA."""
    text = peak_text(isa)
    assert f"vector_size({isa.vector_bytes})" in text
    assert text.count("* m + a;") == CHAINS


@pytest.mark.slow
def test_peak():
    """It compiles, runs on every number of threads, and gives a speed that a processor can have."""
    if not isinstance(find_compiler(), Compiler):
        pytest.skip(str(find_compiler()))
    found = peak_gflops((1,))
    assert "1" in found
    assert all(0.1 < gflops < 1e6 for gflops in found.values())
