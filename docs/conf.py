"""How Sphinx builds the site: `make docs`. What it shows of the code is written by pages.py."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

_SHAPE = re.compile(r"^(\s+)(\w+) (\[[^:]*\]\)?):")
_RESULT = re.compile(r"\s+\w+( \([^:]*\))?: ")  # one of several, by its name
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent)]  # benchmarks, for their rows

import pages  # noqa: E402  # beside this file
from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import elman  # noqa: E402

project = "elman"
author = "The elman authors"
copyright = author
release = version = elman.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
extensions.append("mathml")  # beside this file
source_suffix = {".md": "markdown"}
root_doc = "index"
suppress_warnings = ["myst.header"]

myst_enable_extensions = ["attrs_block", "attrs_inline", "dollarmath"]
myst_dmath_double_inline = True
myst_update_mathjax = False
html_math_renderer = "mathml"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
toc_object_entries = False  # each has a heading
python_maximum_signature_line_length = 88
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_use_rtype = False
napoleon_custom_sections = [("Returns", "params_style")]  # several results, each with a name
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"elman {version}"
html_logo = html_favicon = "pictures/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

pages.write(HERE / "_built")
_analyze = ModuleAnalyzer.analyze


def without_overloads(self: ModuleAnalyzer) -> None:
    """Overloads of torch's constructors lack the options that elman's classes add."""
    _analyze(self)
    self.overloads.clear()


ModuleAnalyzer.analyze = without_overloads  # type: ignore[method-assign]
_OPTIONS = re.compile(r"^( +)options: of :class:`([\w.]+)`")


def options(app: Any, what: str, name: str, thing: Any, opts: Any, lines: list[str]) -> None:
    """``options: of :class:`X` `` of a docstring becomes a parameter for each attribute of X."""
    first = next((k for k, line in enumerate(lines) if _OPTIONS.match(line)), None)
    if first is None:
        return
    margin, path = _OPTIONS.match(lines[first]).groups()  # type: ignore[union-attr]
    last = first + 1
    while last < len(lines) and lines[last].startswith(margin + " "):
        last += 1
    module, _, owner = path.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(module), owner)) or ""
    listed = text.partition("Attributes:\n")[2].partition("\n\n")[0].splitlines()
    lines[first:last] = [margin + line.removeprefix("    ") for line in listed]


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
    app.connect("autodoc-process-docstring", options, priority=50)
    app.connect("autodoc-process-docstring", shapes, priority=100)  # before napoleon
