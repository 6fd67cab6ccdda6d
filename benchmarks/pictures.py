"""Pictures of the committed rows for pages: bars of speed-ups, on light and on dark ground."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.cases import OURS
from benchmarks.claims import Rows
from benchmarks.rows import read_rows
from benchmarks.suites.ecornn import MODELS, model_name
from benchmarks.workloads.language import WORDS
from elman.report.charts import NO_METADATA, STYLE

WIDTH = 6.4  # inches
NARROW = 4.8  # of bars with their labels: a telephone, 3.5 inches wide, leaves them legible
PIXELS = 100  # of a page, for an inch
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Bar:
    """One speed-up of a training step.

    Attributes:
        label: text at its left.
        suite, case: the row.
        baseline: the contestant that elman is compared with.
    """

    label: str
    suite: str
    case: str
    baseline: str = "torch"

    @property
    def speedup(self) -> float:
        """Median speed-up of elman over the baseline."""
        return rows_of(self.suite).faster(self.case, OURS, self.baseline)


@dataclass(frozen=True)
class Group:
    """Bars below one title."""

    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Ground:
    """Colours (CSS) of a picture on a page of one scheme."""

    text: str
    muted: str
    bar: str
    accent: str


GROUNDS = {
    "light": Ground(text="#1f2328", muted="#59636e", bar="#1f5fa8", accent="#b3541e"),
    "dark": Ground(text="#f0f6fc", muted="#9198a1", bar="#58a6ff", accent="#f0883e"),
}

LAYERS = Group(
    "Layers of torch.nn",
    (
        Bar("GRU, 64 units, batch 1", "foundation", "gru 1000,1,64"),
        Bar("GRU, 128 units, batch 4", "foundation", "gru 100,4,128"),
        Bar("GRU, 256, batch 32, packed", "layers", "gru packed 100,32,256"),
        Bar("GRU, 256 units, batch 32", "foundation", "gru 100,32,256"),
        Bar("LSTM, 64 units, batch 1", "cpu", "lstm 1000,1,64"),
        Bar("LSTM, 256 units, batch 32", "cpu", "lstm 100,32,256"),
        Bar("LSTM, 1000 units, batch 1000", "cpu", "lstm 10,1000,1000"),
    ),
)
PROJECTS = Group(
    "Loops of published models",
    (
        Bar("CleanRL, LSTM with resets", "users", "cleanrl lstm 128,2,128", "loop"),
        Bar("snnTorch, leaky neurons", "users", "snntorch leaky 100,128,1000", "loop"),
        Bar("sb3, LSTM with resets", "users", "sb3 lstm 128,8,256", "loop"),
        Bar("ncps, CfC", "users", "ncps cfc 200,32,64", "loop"),
        Bar("SpeechBrain, LiGRU", "users", "speechbrain ligru 500,16,512", "loop"),
        Bar("DreamerV3, layer-norm GRU", "users", "dreamer gru 64,16,512", "loop"),
        Bar("haste, layer-norm LSTM", "users", "haste lstm 100,32,256", "loop"),
        Bar("NeuralHydrology, EA-LSTM", "users", "neuralhydrology ealstm 365,256,256", "loop"),
        Bar("TorchRL, GRU with resets", "users", "torchrl gru 128,256,512", "loop"),
    ),
)
TEXTS = ("Penn Treebank, 10 000 words", "WikiText-2, 33 278 words")
LABELS = {"loop": "a loop over torch's operators", "torch": "torch.nn.LSTM", OURS: "elman"}
PICTURES = {"gains": (LAYERS, PROJECTS), "projects": (PROJECTS,)}


def rows_of(suite: str) -> Rows:
    """The committed rows of a suite."""
    return Rows(read_rows(RESULTS / f"{suite}.jsonl").values())


def times(speedup: float) -> str:
    """A speed-up in words of three digits at most: 108x, 16.4x, 1.45x."""
    return f"{speedup:.0f}x" if speedup >= 99.5 else f"{speedup:.3g}x"


def draw_gains(groups: Iterable[Group], ground: Ground) -> str:
    """Horizontal bars of speed-ups on a logarithmic axis (SVG text, transparent ground)."""
    groups = list(groups)
    heights = [len(group.bars) + 1.2 for group in groups]
    with _style(ground):
        figure = Figure(figsize=(NARROW, 0.25 * sum(heights) + 0.1), layout="constrained")
        panels = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights, sharex=True)
        for axes, group in zip(panels[:, 0], groups, strict=True):
            _draw_group(axes, group, ground)
        return _svg(figure)


def _draw_group(axes: Axes, group: Group, ground: Ground) -> None:
    """Labels at the left, a figure at the end of each bar, no axis."""
    figures = [bar.speedup for bar in group.bars]
    places = range(len(figures))
    axes.barh(places, [figure - 1 for figure in figures], left=1, height=0.68, color=ground.bar)
    for place, figure in zip(places, figures, strict=True):
        axes.text(
            figure * 1.04, place, times(figure), va="center", color=ground.text, weight="bold"
        )
    axes.set_yticks(places, [bar.label for bar in group.bars], color=ground.text)
    axes.set(xscale="log", xlim=(1, 200), ylim=(len(figures) - 0.4, -0.6), xticks=[])
    axes.set_title(group.title, loc="left", fontsize=10.5, color=ground.accent, weight="bold")
    axes.minorticks_off()
    axes.tick_params(left=False)
    axes.spines[["bottom"]].set_visible(False)


def draw_words(ground: Ground) -> str:
    """Bars of words a second of whole word models, over those of the loop: figure 4 of EcoRNN."""
    rows, measured = rows_of("ecornn"), dict(zip(WORDS, TEXTS, strict=True))
    colours = {"loop": "none", "torch": ground.muted, OURS: ground.bar}
    with _style(ground):
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        for axes, (text, title) in zip(
            figure.subplots(2, 1, sharex=True), measured.items(), strict=True
        ):
            cases = [model_name(point, text) for point in MODELS]
            for place, (name, colour) in enumerate(colours.items()):
                faster = [rows.faster(case, name, "loop") if place else 1.0 for case in cases]
                left = [k + 0.27 * (place - 1) for k in range(len(cases))]
                bars = axes.bar(
                    left, faster, 0.25, color=colour, edgecolor=ground.muted, label=LABELS[name]
                )
                axes.bar_label(bars, fmt="{:.1f}", color=ground.text, fontsize=7)
            axes.set_xticks(
                range(len(cases)), [f"{H} units\n{B} rows" for _, B, H in MODELS], color=ground.text
            )
            axes.set_title(title, loc="left", fontsize=10.5, color=ground.accent, weight="bold")
            axes.set(yticks=[], ylim=(0, 1.15 * axes.get_ylim()[1]))
            axes.tick_params(bottom=False)
            axes.spines[["left"]].set_visible(False)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3, labelcolor=ground.text)
        return _svg(figure)


def _style(ground: Ground) -> AbstractContextManager[None]:
    colours: dict[Any, Any] = {
        "axes.edgecolor": ground.muted,
        "axes.grid": False,
        "text.color": ground.text,
    }
    return mpl.rc_context(STYLE | colours)


def _svg(figure: Figure) -> str:
    """A figure that is at most as wide as its page (by the style of the page)."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=NO_METADATA, transparent=True)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    width = f'width="{PIXELS * figure.get_figwidth():.0f}"'
    return re.sub(r'width="[^"]*pt" height="[^"]*pt"', width, text, count=1)


def pictures() -> dict[str, str]:
    """Every picture by its file name."""
    draw: dict[str, Callable[[Ground], str]] = {
        name: partial(draw_gains, groups) for name, groups in PICTURES.items()
    }
    draw["words"] = draw_words
    return {
        f"{name}-{scheme}.svg": picture(ground)
        for name, picture in draw.items()
        for scheme, ground in GROUNDS.items()
    }
