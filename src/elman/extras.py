"""Packages that only a part of elman needs: the extra that brings each, and what is said without.

`pip install elman` brings what models and kernels need; all else is imported where it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from elman.errors import MissingPackageError

EXTRAS = {  # a package, as it is imported -> the extra that brings it
    "aeon": "data",
    "datasets": "data",
    "jinja2": "train",
    "lightning_fabric": "train",
    "markupsafe": "train",
    "matplotlib": "train",
    "onnx": "export",
    "onnxscript": "export",
    "rich": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "typer": "train",
    "ziglang": "compiler",
}


def require(module: str, purpose: str) -> Any:
    """Import a module of a package that an extra brings.

    Args:
        module: as `import` has it.
        purpose: what needs it, as the message begins.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = missing_package(error, purpose)
        if missing is None:
            raise
        raise missing from error


def missing_package(error: ModuleNotFoundError, purpose: str) -> MissingPackageError | None:
    """Build the error that names the extra; None where no extra brings the package."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    name = package.replace("_", "-")
    text = f"{purpose} needs the package {name}: {install_line(EXTRAS[package])}"
    return MissingPackageError(text, name=package)


def install_line(extra: str) -> str:
    """The command that installs an extra."""
    return f'pip install "elman[{extra}]"'
