"""A run as one HTML page that needs no network and no other file."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from elman.errors import RunError
from elman.files import write_atomically
from elman.report.charts import (
    Curves,
    Level,
    Pairs,
    Quartiles,
    Scale,
    draw_charts,
    draw_predictions,
)

PAGES = Environment(
    loader=PackageLoader("elman.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
SORTING = (files("elman.report") / "templates" / "sorting.js").read_text(encoding="utf-8")
# What a page may do: run this one script, and look as it says.
# Texts of a run that somebody has sent are escaped; should one slip through, it runs nothing.
POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'sha256-{b64encode(sha256(SORTING.encode()).digest()).decode()}'",
        "style-src 'unsafe-inline'",  # plots have a style at each line
        "base-uri 'none'",
        "form-action 'none'",
    )
)
PAGES.globals |= {"script": Markup(SORTING), "policy": POLICY}


@dataclass(frozen=True)
class RunPage:
    """Contents of a run's page.

    Attributes:
        name: the title: what was trained, and how well.
        headlines: (number, words), a tile each, the most important first.
        notes: lines of text below the title.
        curves: columns of metrics.csv, and `valid_score`.
        baseline: a line in the plots of loss and score.
        items: name of the counted items.
        loss, score: labels and formats of both.
        speeds: items/s by name, measured interleaved.
        sample: generated text; empty if there is none.
        shown: predictions beside their targets.
        tables: by title, names and values.
        folded: by the same titles, further names and values that a click unfolds.
        engine_headers, engines: a table of the recurrent layers and their engines.
        next_steps: commands to go on with.
    """

    name: str
    headlines: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    curves: Curves
    baseline: Level | None
    items: str
    loss: Scale
    score: Scale
    speeds: Mapping[str, Quartiles]
    sample: str
    tables: Mapping[str, Mapping[str, Any]]
    folded: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    engine_headers: tuple[str, ...] = ()
    engines: tuple[tuple[str, ...], ...] = ()
    next_steps: tuple[str, ...] = ()
    shown: tuple[Pairs, ...] = ()


def write_report(path: Path, page: RunPage) -> Path:
    """Write a page to a file. Raises RunError: the disk does not take it."""
    charts = draw_charts(page.curves, page.baseline, page.speeds, page.items, page.loss, page.score)
    drawings = [draw_predictions(part) for part in page.shown]
    return write_page(
        path, PAGES.get_template("run.html"), page=page, charts=charts, shown=drawings
    )


def write_page(path: Path, template: Template, **values: Any) -> Path:
    """Fill a template and put the page in the place of an older one, whole or not at all. Raises
    RunError: the disk does not take it."""
    text = template.render(**values)
    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise RunError("the report cannot be written", path=path, error=error.strerror) from error
    return path
