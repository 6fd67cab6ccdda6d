"""What is published has all files of the package, and no other; its README reads elsewhere, too."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import elman
from scripts import module_of

ROOT = Path(__file__).parents[1]
BESIDE = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff")
OWN = {"PKG-INFO", "setup.cfg"}  # that setuptools adds to a sdist
DATA = {".py", ".h", ".c", ".html", ".js", ".typed"}


def package(root: Path) -> set[str]:
    """The files of the package below a folder, as ``elman/…``, and its command's entry point."""
    paths = [*(root / "elman").rglob("*"), root / "elman_command.py"]
    files = (p for p in paths if p.is_file() and "__pycache__" not in p.parts)
    return {path.relative_to(root).as_posix() for path in files}


def build(kind: str, tree: Path, target: Path) -> Path:
    """A sdist or wheel of a tree by its build backend, without a network."""
    target.mkdir(exist_ok=True)
    text = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, str(target)],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A sdist, and the wheel that is built from it."""
    pytest.importorskip("setuptools", minversion="77.0.3")
    folder = tmp_path_factory.mktemp("dist")
    tree = folder / "tree"
    for name in ("src", "tests", "docs", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "_built")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in BESIDE:
        shutil.copy(ROOT / name, tree / name)
    sdist = build("sdist", tree, folder / "sdist")
    with tarfile.open(sdist) as file:
        file.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return sdist, build("wheel", unpacked, folder / "wheel")


@pytest.mark.slow
def test_the_wheel_has_the_package_alone(made):
    """Headers and templates too, which nothing imports; and nothing that is no part of it."""
    names = zipfile.ZipFile(made[1]).namelist()
    meta = f"elman-{elman.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(meta)} == package(ROOT / "src")
    assert {Path(name).suffix for name in package(ROOT / "src")} == DATA
    assert f"{meta}licenses/LICENSE" in names


@pytest.mark.slow
def test_the_sdist_builds_and_cites(made):
    """No tests, benchmarks or pages, of which a part would be of no use."""
    with tarfile.open(made[0]) as file:
        names = [member.name.partition("/")[2] for member in file if member.isfile()]
    outside = {name for name in names if not name.startswith("src/")}
    assert outside == {*BESIDE, *OWN}
    inside = {name for name in names if name.startswith(("src/elman/", "src/elman_"))}
    assert inside == {f"src/{name}" for name in package(ROOT / "src")}


@pytest.mark.slow
def test_metadata(made):
    """The version, the licence, the Pythons, and a README."""
    file = zipfile.ZipFile(made[1])
    (name,) = [name for name in file.namelist() if name.endswith("/METADATA")]
    told = Parser().parsestr(file.read(name).decode())
    assert told["Version"] == elman.__version__
    assert told["License-Expression"] == "Apache-2.0"
    assert told["Requires-Python"] == ">=3.11"
    assert "# elman" in str(told.get_payload())
    needed = [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"[<>=]", line)[0] for line in needed) == [
        *("filelock", "numpy", "platformdirs", "torch")
    ]
    assert {"train", "data", "export", "compiler"} <= set(told.get_all("Provides-Extra", []))


def test_the_published_readme_has_no_link_that_leads_nowhere():
    """Relative ones are made absolute, or text; others stay."""
    dist = module_of(ROOT / "release" / "dist.py")
    readme = (ROOT / "README.md").read_text("utf-8") + "[a](https://b.c/d) [e](#f)"
    relative = re.findall(r"\]\((docs/[^)]*)\)", readme)
    assert relative
    for base in ("", "https://there/blob", "https://there/blob/"):
        text = dist.published(readme, base)
        assert re.findall(r"\]\((?!https:|#)", text) == []
        assert "[a](https://b.c/d) [e](#f)" in text
        led = [f"(https://there/blob/{link})" if base else f"(`{link}`)" for link in relative]
        assert all(link in text for link in led)
        images = re.findall(r'(?:src|srcset)="([^"]*)"', text)
        assert all(image.startswith("https://there/blob/docs/pictures/") for image in images)
        assert bool(images) == bool(base)
