"""How Sphinx builds the site: `make docs`. What it shows of the code is written by pages.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

_SHAPE = re.compile(r"^(\s+)(\w+) (\[[^:]*\]\)?):")
_RESULT = re.compile(r"\s+\w+( \([^:]*\))?: ")  # one of several, by its name
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent)]  # benchmarks, for their rows

import pages  # noqa: E402  # beside this file

import elman  # noqa: E402

project = "elman"
author = "The elman authors"
copyright = author
release = version = elman.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
suppress_warnings = ["myst.header"]

myst_enable_extensions = ["attrs_block", "attrs_inline"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Returns", "params_style")]  # several results, each with a name
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "elman"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

pages.write(HERE / "_built")


def shapes(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """``x [T, B, I]: text`` of a docstring, as napoleon reads it: ``x ([T, B, I]): text``; a result
    without a name as one text, not as a name for each of its lines."""
    lines[:] = [_SHAPE.sub(r"\1\2 (\3):", line) for line in lines]
    if "Returns:" not in lines:
        return
    first = lines.index("Returns:") + 1
    last = next((k for k in range(first, len(lines)) if not lines[k].startswith(" ")), len(lines))
    if first < last and not _RESULT.match(lines[first]):
        text = " ".join(line.strip() for line in lines[first:last])
        lines[first - 1 : last] = [f":returns: {text}"]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", shapes, priority=100)  # before napoleon
