"""What doctor offers to install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from elman.cli.doctor import OPTIONAL

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("package", OPTIONAL)
def test_an_extra_brings_what_it_is_offered_for(package):
    _, extra = OPTIONAL[package]
    names = PROJECT["project"]["optional-dependencies"][extra]
    assert package in [re.split(r"[^\w.-]|[<>=]", name)[0] for name in names]
