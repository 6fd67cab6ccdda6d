"""What users and readers see: the public names, their docstrings, the version, the repo's words."""

from __future__ import annotations

import inspect
import re
import subprocess
import tomllib
import types
from pathlib import Path

import pytest

import elman

ROOT = Path(__file__).parents[1]

# Spelled in halves, so that this file passes its own test.
FORBIDDEN = {
    "../" + "shared": "the repository stands alone: data arrive by --data, tests write their own",
    "/work" + "/": "no path of one machine",
    "pypi" + ".org": "packages come from pip's own configured index",
    "python" + "hosted.org": "packages come from pip's own configured index",
    "download." + "pytorch.org": "torch is installed with pip, by name and version",
    "anaconda" + ".org": "packages come from pip's own configured index",
    "registry." + "npmjs": "node comes with pyright's extra",
}
BINARY = {".png", ".jpg", ".gif", ".ico", ".pdf", ".pt", ".npz", ".npy", ".safetensors", ".gz"}


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {elman.__version__}\n" in text
    for field in ("cff-version: 1.2.0", "message:", "title:", "authors:", "license: Apache-2.0"):
        assert f"{field}" in text
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8")
    assert f"\n  version: {elman.__version__}\n" in recipe


def test_conda_asks_for_what_pip_asks_for():
    """Recipe and environment have the dependencies of pyproject.toml, at the same bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wanted = [re.split("(?=>=)", text) for text in project["dependencies"]]
    train = [re.split("(?=>=)", text) for text in project["optional-dependencies"]["train"]]
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8")
    environment = (ROOT / "environment.yml").read_text("utf-8")
    for name, bound in wanted:
        line = f"- {renamed.get(name, name)} {bound}\n"
        assert line in environment
        assert line in recipe
    for name, bound in train:
        assert f"- {renamed.get(name, name)} {bound}\n" in recipe


def repository_files() -> list[Path]:
    """List the files that are, or would be, committed; without git, all outside hidden folders."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        told = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        files = [ROOT / name for name in told.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        hidden = {".venv", ".git", ".cache", "runs", "build", "dist", "__pycache__"}
        files = [path for path in ROOT.rglob("*") if not hidden & set(path.parts)]
    return [path for path in files if path.is_file() and path.suffix not in BINARY]


def public_objects() -> dict[str, object]:
    """Name everything in ``elman.__all__``, and the public methods of its classes."""
    found = {}
    for name in elman.__all__:
        found[name] = getattr(elman, name)
        if inspect.isclass(found[name]) and found[name].__module__.startswith("elman"):
            for inner, value in vars(found[name]).items():
                if not inner.startswith("_") and inspect.isfunction(value):
                    found[f"{name}.{inner}"] = value
    return found


def test_all_is_what_is_exported():
    """``__all__`` has no name twice or missing, and nothing else public lies about in elman."""
    exported = {
        name
        for name, value in vars(elman).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    exported.discard("annotations")  # from __future__

    assert len(elman.__all__) == len(set(elman.__all__))
    assert not [name for name in elman.__all__ if not hasattr(elman, name)]
    assert exported <= set(elman.__all__)


@pytest.mark.parametrize("name", sorted(public_objects()))
def test_public_names_are_documented(name):
    """Every public name says what it computes; a constant is what it is called."""
    value = public_objects()[name]
    if not callable(value) and not isinstance(value, types.ModuleType):
        return
    text = inspect.getdoc(value) if "." in name else value.__doc__
    assert (text or "").strip(), f"elman.{name} has no docstring"


def test_every_module_says_what_it_is_for():
    """Each file of the package opens with a docstring."""
    bare = [
        path.relative_to(ROOT)
        for path in sorted((ROOT / "src").rglob("*.py"))
        if not path.read_text(encoding="utf-8").lstrip().startswith(('"""', 'r"""'))
    ]
    assert not bare


def test_version_is_told_once():
    """In elman.version, which the package's metadata read; the changelog begins with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert (
        project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "elman.version.__version__"
    )
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == elman.__version__


def test_repository_stands_alone():
    """No text of the repository names a place outside it."""
    found = []
    for path in repository_files():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            for word, reason in FORBIDDEN.items():
                if word in line:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {word!r}: {reason}")
    assert not found, "\n" + "\n".join(found)
