"""Write what pages show of the committed results: python -m benchmarks.readme.

`benchmarks/results/README.md` has tables of suites; README.md and pages of the documentation have
figures, each by its name in :data:`FIGURES`, between the same markers; pictures are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from benchmarks import studied
from benchmarks.cases import OURS
from benchmarks.claims import Rows
from benchmarks.contestants import CHECKPOINT, TRAIN
from benchmarks.pages import markdown, names_in, rewritten
from benchmarks.pictures import PROJECTS, RESULTS, Bar, pictures, rows_of, times
from benchmarks.rows import read_rows
from benchmarks.suites import SUITES
from benchmarks.suites.cells import times_as_fast
from elman import cells
from elman.errors import ElmanError, InputError

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGES = (
    *("README.md", "benchmarks/results/README.md", "docs/projects.md", "docs/when_it_helps.md"),
    *("docs/language_models.md", "docs/long_sequences.md", "docs/classification.md"),
    *("docs/matrix_states.md", "docs/transformers.md", "docs/troubleshooting.md"),
    *("docs/index.md", "docs/precision.md", "docs/programs.md"),
    *("docs/gpus.md", "docs/how_it_works.md", "docs/workers.md", "docs/integers.md"),
    "paper/paper.md",
)
LAYERS = ("loop", "torch", OURS, "elman-c")  # of suite ecornn
SMALL_RUN = 30_200 * 20 * 20  # words of 13 epochs of the Penn Treebank: steps, rows, segments
LONG = "gru 100000,1,32 every {}"
POINTS = (
    *("1 lstm 35,20,200", "1 lstm 35,64,200", "1 lstm 35,128,200", "2 lstm 35,20,200"),
    *("2 lstm 35,64,200", "2 lstm 35,128,200", "1 lstm 35,20,512", "1 lstm 35,64,512"),
    *("2 lstm 35,20,512", "2 lstm 35,64,512", "1 lstm 35,128,512", "2 lstm 35,20,650"),
    *("1 lstm 35,32,1024", "2 gru 35,20,200"),
)


def rounded(value: float) -> str:
    """Three digits, thousands apart."""
    digits = max(0, len(f"{value:.0f}") - 3)
    return f"{round(value, -digits):,.0f}".replace(",", " ")


def words_per_second(rows: Rows, case: str, contestant: str) -> float:
    """Words per second of a training step of T x B words."""
    sizes = rows[case]["asked"]
    return sizes["T"] * sizes["B"] / rows.seconds(case, contestant)


def layers() -> str:
    """A table of suite ecornn: each way to run the layers."""
    rows = rows_of("ecornn")
    lines = [
        "| layers | torch.nn, words/s | elman, words/s | elman | engine c | loop |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case in POINTS:
        count, cell, sizes = case.split()
        _, B, H = sizes.split(",")
        speeds = [
            rounded(words_per_second(rows, case, contestant)) for contestant in ("torch", OURS)
        ]
        ratios = [
            f"{rows.faster(case, contestant, 'torch'):.2f}x"
            for contestant in (OURS, "elman-c", "loop")
        ]
        name = f"{cell.upper()} {count} x {H}, {B} rows"
        lines.append(f"| {' | '.join([name, *speeds, *ratios])} |")
    return "\n".join(lines)


def model(cell: str) -> str:
    """Speed-up of training a whole model over one on torch.nn's layers."""
    return f"{rows_of('ecornn').faster(f'model 2 {cell} 35,20,200', OURS, 'torch'):.2f}"


def model_speed() -> float:
    """Words a second of the whole model with LSTM."""
    return words_per_second(rows_of("ecornn"), "model 2 lstm 35,20,200", OURS)


def perplexities() -> str:
    """Final perplexities of both models."""
    curves = rows_of("ecornn")["perplexities 35,20,200"]["perplexities"]
    return " and ".join(f"{curves[contestant][-1]:.2f}" for contestant in (OURS, "torch"))


def products() -> str:
    """Shares of the time: engine c's, and the loop's."""
    rows = rows_of("ecornn")
    phases = rows["phases 35,64,512"]["phases"]
    of_engine = sum(v for k, v in phases.items() if k.endswith(("products", "weight gradients")))
    seconds = rows["operators 35,64,512"]["operators"]["loop"]["seconds"]
    share = seconds["products"] / sum(seconds.values())
    return f"{of_engine:.0%} of engine c's time ({share:.0%} of the loop's)".replace("%", " %")


def launches() -> str:
    """Cost of operators where nothing is computed."""
    rows = rows_of("ecornn")
    counts = {k: v["operators"] for k, v in rows["operators 35,64,512"]["operators"].items()}
    times = rows.faster("launches 35,1,1", "torch", "loop")
    loop, torch = counts["loop"], counts["torch"]
    return f"{loop} operators a step cost {times:.0f} times what torch.nn's {torch} do"


def megabytes(cell: str, contestant: str) -> str:
    """The peak of a training step."""
    return f"{rows_of('memory')[f'{cell} 500,16,128']['memory'][contestant]['peak'] / 1e6:.0f}"


def checkpointed() -> str:
    """The least and the most times as long that steps with kept states take, at usual spans."""
    rows = rows_of("memory")
    cases = [case.name for case in SUITES["memory"].cases if CHECKPOINT in case.contestants]
    usual = [case for case in cases if "every" not in case]
    times = [rows.faster(case, OURS, CHECKPOINT) for case in usual]
    return f"{min(times):.1f} to {max(times):.1f}"


def spans(interval: int) -> str:
    """Slowdown of a very long sequence that keeps one state in so many steps."""
    return f"{rows_of('memory').faster(LONG.format(interval), 'elman-c', CHECKPOINT):.1f}"


def step_us(contestant: str) -> str:
    """A step of one sample of a GRU of 64 units (µs)."""
    return f"{rows_of('foundation').seconds('gru 1000,1,64', contestant) / 1000 * 1e6:.2g}"


def span(speedups: Iterable[float]) -> str:
    """The least and the greatest of several speed-ups: 2.16 to 108x."""
    low, *_, high = sorted(speedups)
    return f"{times(low)[:-1]} to {times(high)}"


def gains(cell: str, baseline: str, *suites: str) -> str:
    """The span of elman's speed-ups of training steps over a baseline.

    Args:
        cell: of the cases; "" takes those of all cells.
        baseline: a contestant; only sequences (T >= 10) that are compared with it count.
        suites: whose rows.
    """
    return span(
        rows_of(suite).faster(case.name, OURS, baseline)
        for suite in suites
        for case in SUITES[suite].cases
        if case.measure is TRAIN
        and case.T >= 10
        and case.baseline == baseline
        and cell in ("", case.cell)
    )


def small_layers() -> str:
    """The span of speed-ups of GRUs over torch's at four samples or fewer."""
    cases = [
        case.name
        for case in SUITES["foundation"].cases
        if case.measure is TRAIN and case.cell == "gru" and case.T >= 10 and case.B <= 4
    ]
    return span(rows_of("foundation").faster(case, OURS, "torch") for case in cases)


def first_steps() -> str:
    """Times of a first training step, with an empty cache and with a full one."""
    rows = rows_of("foundation")
    cold, warm = (rows.seconds(f"first step, {kind} cache", OURS) for kind in ("cold", "warm"))
    return f"{cold:.1f} s with an empty cache and {warm:.2f} s with a full one"


def packed() -> str:
    """The span of speed-ups over torch's layers on packed sequences."""
    cases = [case.name for case in SUITES["layers"].cases if "packed" in case.name.split()]
    return span(rows_of("layers").faster(case, OURS, "torch") for case in cases)


def library() -> str:
    """The span of speed-ups of library cells over their loops."""
    speedups = [times_as_fast(rows_of("cells"), cell) for cell in cells.ALL]
    return span(speedup for speedup in speedups if speedup)


def projects() -> str:
    """A table of suite users: times of a training step in the project's loop and as one layer."""
    lines = ["| project | loop | elman | speed-up |", "|---|---:|---:|---:|"]
    for bar in PROJECTS.bars:
        rows = rows_of(bar.suite)
        seconds = [rows.seconds(bar.case, name) for name in (bar.baseline, OURS)]
        texts = map(studied.duration, seconds)
        lines.append(f"| {' | '.join([bar.label, *texts, times(bar.speedup)])} |")
    return "\n".join(lines)


FIGURES: dict[str, Callable[[], str]] = {
    "gains of gru": lambda: gains("gru", "torch", "foundation", "cpu"),
    "gains of lstm": lambda: gains("lstm", "torch", "foundation", "cpu"),
    "gains of formulas": lambda: gains("", "loop", "foundation", "cpu"),
    "gains of resets": lambda: span(bar.speedup for bar in PROJECTS.bars if "resets" in bar.label),
    "gains of cells": library,
    "gains of packed": packed,
    "gains of transformers": lambda: span(studied.gains_of_transformers()),
    "gains of projects": lambda: span(bar.speedup for bar in PROJECTS.bars),
    "projects": projects,
    "large lstm": lambda: times(Bar("", "cpu", "lstm 10,1000,1000").speedup),
    "whole update": lambda: times(Bar("", "users", "cleanrl-ppo lstm 128,8,128", "loop").speedup),
    "one call, forward": lambda: times(Bar("", "foundation", "call forward").speedup),
    "one call, train": lambda: times(Bar("", "foundation", "call train").speedup),
    "layers of words": layers,
    "model of lstm": lambda: model("lstm"),
    "model of gru": lambda: model("gru"),
    "model of wikitext": lambda: model("lstm wikitext"),
    "words a second": lambda: rounded(model_speed()),
    "minutes of small": lambda: f"{SMALL_RUN / model_speed() / 60:.0f}",
    "the speed of small": lambda: rounded(model_speed()),
    "perplexities": perplexities,
    "products": products,
    "launches": launches,
    "peak of gru": lambda: megabytes("gru", OURS),
    "peak of gru, torch": lambda: megabytes("gru", "torch"),
    "peak of lstm": lambda: megabytes("lstm", OURS),
    "peak of lstm, torch": lambda: megabytes("lstm", "torch"),
    "time of kept states": checkpointed,
    "time of short spans": lambda: spans(32),
    "time of long spans": lambda: spans(3162),
    "first steps": first_steps,
    "gains of small layers": small_layers,
    "number of cells": lambda: str(len(cells.ALL)),
    "engines of long sequences": studied.engines,
    "chances of long sequences": studied.chances,
    "differences of losses": studied.differences,
    "deer of long sequences": studied.deer,
    "accuracies": studied.accuracies,
    "rivals": studied.rivals,
    "scaling": studied.scaling,
    "bits of deep stacks": studied.depth,
    "learning in bf16": studied.learning_in_bf16,
    "time shards": studied.time_shards,
    "epochs of words": studied.epochs,
    "test of words": studied.tested,
    "training of matrices": studied.matrices,
    "stream of matrices": studied.stream,
    "bf16": partial(studied.bf16, "cases"),
    "bf16 of others": partial(studied.bf16, "others"),
    "bf16 of users": partial(studied.bf16, "users"),
    "bf16 without instruction": partial(studied.bf16, "portable"),
    "language cells": studied.language_cells,
    "language cells of words": partial(studied.language_cells, "ptb"),
    "merged steps": studied.merged_steps,
    "layers of authors": studied.authors_layers,
    "times of authors' layers": studied.times_of_authors_layers,
    "rules of transformers": studied.transformers_rules,
    "models of transformers": studied.transformers_models,
    "ten steps": studied.ten_steps,
    "averages": studied.averages,
    "integers learned": studied.integers_learned,
    "integers run": studied.integers_run,
    "integers on a core": studied.integers_on_core,
    "programs": studied.programs,
    "published models of transformers": studied.published_models,
    "sizes of models of transformers": studied.sizes_of_models,
    "runtimes of models of transformers": studied.runtimes_of_models,
    "tokens of models of transformers": studied.tokens_of_runtimes,
    "gpu": studied.gpu,
    "recognisers": studied.recognisers,
    "fields": studied.fields,
    "turned images": studied.turned,
    "two bodies": studied.bodies,
    "gains of gpu": studied.gains_of_gpu,
    "product on gpu": studied.product_on_gpu,
    "pipeline on gpu": studied.pipeline_on_gpu,
    "deer on gpu": studied.deer_on_gpu,
    "barriers": studied.barriers,
    "products by minibatch": studied.minibatches,
    "products by layout": studied.layouts,
    "strong scaling": studied.strong_scaling,
    "scaling on gpus": studied.scaling_on_gpus,
    "step": lambda: step_us(OURS),
    "step, torch": lambda: step_us("torch"),
}


def content(name: str) -> str:
    """The text behind a marker.

    Raises:
        InputError: it is neither a suite nor a figure.
        RunError: the rows of a suite make no table.
    """
    if name in FIGURES:
        return FIGURES[name]()
    if name not in SUITES:
        raise InputError(f"bench:{name} is neither a suite nor a figure of benchmarks/readme.py")
    return markdown(SUITES[name], read_rows(RESULTS / f"{name}.jsonl"))


def main() -> None:
    """Rewrite everything that a page has markers for."""
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for name in names_in(text):
            text = rewritten(text, name, content(name))
            print(f"{page}: {name}")
        path.write_text(text, encoding="utf-8", newline="\n")
    for name, svg in pictures().items():
        (PICTURES / name).write_text(svg, encoding="utf-8", newline="\n")
        print(f"docs/pictures/{name}")


if __name__ == "__main__":
    try:
        main()
    except (ElmanError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
