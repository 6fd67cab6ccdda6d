"""What stands beside a number: machine, commit, peak."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
import torch

from benchmarks.machine import commit, digest, facts


def test_facts():
    """All that a number depends on, JSON-able."""
    result = facts()
    assert json.loads(json.dumps(result)) == result
    for name in ("cpu", "cores", "threads", "torch", "blas", "kernel_isa", "compiler", "load"):
        assert name in result
    assert result["threads"] == torch.get_num_threads()


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
    """It changes with what is measured and what measures, and not with how it is shown."""
    folders = (tmp_path / "elman", tmp_path / "benchmarks")
    files = {room: folder / room / "a.py" for folder, room in zip(folders, ("nn", "peers"))}
    files["cli"] = folders[0] / "cli" / "a.py"
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.write_text("a = 1\n")
    digests = [digest.__wrapped__(folders)]
    for room in ("cli", "nn", "peers"):
        files[room].write_text("a = 2\n")
        digests.append(digest.__wrapped__(folders))
    assert digests[0] == digests[1]
    assert len({*digests}) == 3
