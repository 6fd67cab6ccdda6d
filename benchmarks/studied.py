"""Tables and figures of pages from studies: suite ``long``, and the rows that scripts write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any, Literal

from benchmarks.cases import OURS
from benchmarks.measures.phases import TEN
from benchmarks.pictures import RESULTS, rows_of
from benchmarks.rows import Row, read_rows
from benchmarks.scripts.bf16 import CASES, USERS
from benchmarks.scripts.scaling import above_floor, limited_by_steps, slopes
from benchmarks.suites.cmu import TEN_STEPS
from benchmarks.suites.depth import STEPS, name_of
from benchmarks.suites.ecornn import LAYOUTS, layout_name
from benchmarks.suites.long import AT_ONCE, GRU, HALF, HEADS, LEM, LOOP, ONE_HEAD
from benchmarks.suites.matrices import FORMS_IN_TORCH, MATRICES, STREAM, TRAIN
from benchmarks.table import machine_line
from benchmarks.workloads.products import COLUMNS, PANELS, ROWS

FOUR_SAMPLES = "persistent relu 64,4,1152 fp32"  # of the script of GPUs
MODELS = {  # of suite long, in the order of the page: name of a row, baseline and its name
    GRU: ("GRU, 17 984 samples of speech", "torch", "`torch.nn.GRU`"),
    LEM: ("LEM, 17 984 samples of speech", "loop", "a loop over torch ops"),
    HEADS: ("GRU in 8 heads, 1024 pixels", "torch", "`torch.nn.GRU` of one head"),
    ONE_HEAD: ("GRU in one head, 1024 pixels", "torch", "`torch.nn.GRU`"),
}
TASKS = {  # of scripts/accuracies.py: what a row of the page says
    "worms": "five kinds of worms by their motion, 180 steps of 5 values",
    "digits": "spoken digits from raw samples, 16 a step; new recordings of six speakers",
}
SAMPLES, UNITS = (1, 2, 4, 8, 16, 32, 64), (512, 1152)  # of suite persistent
LATENCY, BANDWIDTH = 5e-6, 7e9  # of a message (s); of an interconnect (bytes/s)
VARIANTS = {
    "strided {}": "the same, in four groups of units that read their state of 1, 2, 4 and 8 steps "
    "before",
    "bidirectional {}": "the same, half of the units from the end",
}
PERMUTED = {"permuted": "handwritten digits, a pixel a step in one fixed random order, 784 steps"}
EPOCHS = (1, 2, 3, 4, 5, 7, 9, 11, 13)  # of 13, that the page shows


def script_rows(name: str) -> dict[str, Row]:
    """The committed rows of a script, by case."""
    return read_rows(RESULTS / f"{name}.jsonl")


def duration(seconds: float) -> str:
    """A time of three digits, in milliseconds or seconds."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"


def engines() -> str:
    """A table of suite long: the accuracy, and the time of a step on each engine."""
    rows = rows_of("long")
    lines = [
        "| model and data | accuracy | engine `c` | `auto` | `scan-backward` | `deer` | baseline |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for case, (name, baseline, title) in MODELS.items():
        names = (LOOP, OURS, HALF, AT_ONCE, baseline)
        steps = [f"{rows.seconds(case, contestant):.3g}" for contestant in names]
        steps[-1] = f"{title} {steps[-1]}"
        lines.append(f"| {' | '.join([name, percent(rows[case]['accuracy']), *steps])} |")
    return "\n".join(lines)


def chances() -> str:
    """Accuracies by chance in suite long."""
    rows = rows_of("long")
    return (
        f"{percent(rows[GRU]['chance'])} for speech and {percent(rows[HEADS]['chance'])} for images"
    )


def differences() -> str:
    """The largest difference of a loss in suite long, relative to engine c in float64."""
    rows = rows_of("long")
    return f"{max(max(rows[case]['off'].values()) for case in MODELS):.0e}"


def deer() -> str:
    """Engine deer on long speech, beside torch's layer and the compiled loop."""
    rows = rows_of("long")
    gain, loss = rows.faster(GRU, AT_ONCE, "torch"), rows.faster(GRU, LOOP, AT_ONCE)
    slower = f"{loss:.0f} times slower than the compiled loop"
    return f"{gain:.1f} times as fast as torch's own layer and {slower}"


def accuracies() -> str:
    """A table of commands and the held-out accuracies of their seeds."""
    lines = ["| command | task | mean of 3 seeds | chance |", "|---|---|---:|---:|"]
    rows = script_rows("accuracies")
    shown: dict[str, str] = {}
    for case, task in TASKS.items():
        shown |= {case: task, **{name.format(case): text for name, text in VARIANTS.items()}}
    for case, task in (shown | PERMUTED).items():
        row = rows[case]
        cells = [f"`{row['command']}`", task, _seeds(row), percent(row["baseline"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seeds(row: Row) -> str:
    """The mean of a row's accuracies, and each."""
    scores = row["scores"]
    each = ", ".join(f"{100 * score:.1f}" for score in scores)
    return f"{percent(sum(scores) / len(scores))} ({each})"


def rivals() -> str:
    """A table of cells and their held-out accuracies by the same commands, the best first."""
    rows = script_rows("accuracies")
    compared = [case for case, row in rows.items() if row["command"].split()[-2] == "--cell"]
    cells = dict.fromkeys(case.split()[1] for case in compared)
    lines = ["| cell | worms | digits |", "|---|---:|---:|"]
    for cell in sorted(cells, key=lambda cell: -sum(rows[f"digits {cell}"]["scores"])):
        scores = (_seeds(rows[f"{task} {cell}"]) for task in TASKS)
        lines.append(f"| `{cell}` | {' | '.join(scores)} |")
    return "\n".join(lines)


def depth() -> str:
    """Bits per character of stacks of one layer, three and ten."""
    bits = {n: rows_of("depth")[name_of(n)]["bits"] for n in (1, 3, 10)}
    texts = {
        name: ", ".join(f"{mean(row[name]):.2f} at {n}" for n, row in bits.items())
        for name in ("plain", "norms")
    }
    return (
        f"after {STEPS} steps of a small GRU model {texts['norms']} layers (bits per character), "
        f"without it {texts['plain']}"
    )


def learning_in_bf16() -> str:
    """Accuracies of both tasks with products of bfloat16, and in float32."""
    rows = script_rows("accuracies")
    texts = [
        f"{task} {_seeds(rows[f'{task} bf16-mixed'])}, in float32 {_seeds(rows[task])}"
        for task in (*TASKS, *PERMUTED)
    ]
    return "; ".join(texts)


def scaling() -> str:
    """A table of bits per character by the number of training symbols, and slopes, by cell."""
    rows = script_rows("scaling").values()
    sizes = sorted({row["size"] for row in rows})
    titles = ["cell", *(f"{size:,}" for size in sizes), "slope over data", "over compute"]
    titles += ["floor, slope above it"]
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        mine = [row for row in rows if row["cell"] == cell]
        bits = {row["size"]: sum(row["bits"]) / len(row["bits"]) for row in mine}
        data, compute = slopes(mine)
        stars = {row["size"]: "*" * limited_by_steps(row) for row in mine}
        losses = [f"{bits[n]:.2f}{stars[n]}" if n in bits else "–" for n in sizes]
        texts = [f"`{cell}`", *losses, data, compute]
        fit = above_floor(mine)
        texts.append("–" if fit is None else f"{fit[0]:.2f}, {fit[1]:+.3f}")
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def epochs() -> str:
    """A table of perplexities by epoch, on elman's layers and on torch.nn's."""
    lines = [
        "| epoch | training: elman | torch.nn | validation: elman | torch.nn | "
        "processor time of a step: elman | torch.nn |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows = script_rows("perplexity")
    for epoch in EPOCHS:
        results = rows[f"epoch {epoch}"]["results"]
        pair = [results["elman"], results["torch.nn"]]
        cells = [f"{run[part]:.1f}" for part in ("train", "valid") for run in pair]
        cells += [f"{run['cpu_ms']:.0f} ms" for run in pair]
        lines.append(f"| {epoch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tested() -> str:
    """Perplexities of the test text after the last epoch."""
    results = script_rows("perplexity")[f"epoch {EPOCHS[-1]}"]["results"]
    elman, torch = (results[name]["test"] for name in ("elman", "torch.nn"))
    return f"{elman:.1f} with elman and {torch:.1f} with torch.nn"


def matrices() -> str:
    """A table of suite matrices: a training step of elman, and of each form in torch."""
    lines = [
        "| cell | T, B, rows, columns | elman | loop | chunks | compiled chunks |",
        "|---|---|---:|---:|---:|---:|",
    ]
    rows = rows_of("matrices")
    for case in MATRICES.cases:
        if case.measure is not TRAIN or case.quick:
            continue
        spread = rows[case.name]["seconds"]
        elman = spread[OURS]
        texts = [f"{duration(elman['median'])} ({duration(elman['q1'])}–{duration(elman['q3'])})"]
        for form in FORMS_IN_TORCH:
            slow = spread.get(form, {}).get("median")
            gain = f" ({slow / elman['median']:.1f}x)" if slow else ""
            texts.append(f"{duration(slow)}{gain}" if slow else "–")
        sizes = f"{case.T}, {case.B}, {case.input_size}, {case.H}"
        lines.append(f"| `{case.cell}` | {sizes} | {' | '.join(texts)} |")
    return "\n".join(lines)


def stream() -> str:
    """The time of a step of the stream of suite matrices."""
    (case,) = (case for case in MATRICES.cases if case.measure is STREAM)
    rows = rows_of("matrices")
    elman, loop = (duration(rows.seconds(case.name, name) / case.T) for name in (OURS, "loop"))
    return f"{elman} ({loop} in the loop)"


def language_cells(text: str = "python") -> str:
    """A table of layers in language models of about as many parameters: means over seeds."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in script_rows("language_cells").values():
        if row["data"] == text:
            runs.setdefault(row["cell"], []).append(row)
    level = next(iter(runs.values()))[0]["level"]
    unit = {"char": "bits per character", "word": "perplexity"}[level]
    parts = {
        "valid": f"{unit}, validation",
        "test": f"{unit}, test",
        "tokens_s": "tokens per second",
    }
    results = next(iter(runs.values()))[0]["results"]
    keys = [key for key in parts if key in results and (key, level) != ("tokens_s", "word")]
    lines = [
        f"| layer | units | parameters | {' | '.join(parts[key] for key in keys)} |",
        f"|---|---:|---:{'|---:' * len(keys)}|",
    ]
    for cell, rows in runs.items():
        first = rows[0]["results"]
        name, _, blocks = cell.partition(":")
        places = [
            f"`{name}`{' in residual blocks' * bool(blocks)}",
            str(first["units"]),
            f"{first['parameters'] / 1e6:.2f} million",
        ]
        for key in keys:
            values = [row["results"][key] for row in rows]
            speed = key == "tokens_s"
            places.append(f"{median(values):,.0f}" if speed else _spread(values, level))
        lines.append(f"| {' | '.join(places)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float], level: str) -> str:
    """A mean, and half the distance of the outermost values where there are several."""
    digits = 1 if level == "word" else 3
    text = f"{mean(values):.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ± {(max(values) - min(values)) / 2:.{digits}f}"


def merged_steps() -> str:
    """A table of single and merged steps of a cell with matrices, and what was chosen."""
    lines = [
        f"| K = V | T | {' | '.join(_STEPS.values())} | chosen | slower than the fastest |",
        f"|---:|---:|{'---:|' * len(_STEPS)}---|---:|",
    ]
    for row in script_rows("merged_steps").values():
        times = {_kind_of_steps(name): duration(s) for name, s in row["seconds"].items()}
        places = [str(row["size"]), str(row["steps"]), *(times.get(kind, "") for kind in _STEPS)]
        places += [_STEPS[_kind_of_steps(row["chosen"])], f"{row['off']:.0%}"]
        lines.append(f"| {' | '.join(places)} |")
    return "\n".join(lines)


_STEPS = {"": "single steps", "steps": "four merged"}


def _kind_of_steps(schedule: str) -> str:
    """Of ``_STEPS``."""
    return "steps" if "-steps/" in schedule else ""


def authors_layers() -> str:
    """A table of layers compared with their authors' implementations: largest relative errors."""
    errors = ("outputs", "gradients", "state")
    lines = [
        f"| layer | compared with | parameters | dtype | {' | '.join(errors)} |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for row in script_rows("authors_layers").values():
        place = f"`{row['layer']}` | {row['other']}; {row['package']} {row['version']}"
        size = f"{row['names']} | {row['dtype']}"
        found = " | ".join(f"{row[key]:.1e}" for key in errors)
        lines.append(f"| {place} | {size} | {found} |")
    return "\n".join(lines)


def times_of_authors_layers() -> str:
    """A table of training steps of those layers that are made of torch's operators, too."""
    lines = ["| layer | compared with | theirs | elman | faster |", "|---|---|---:|---:|---:|"]
    for row in script_rows("authors_layers").values():
        if "seconds" in row:
            theirs, ours = row["seconds"]["theirs"], row["seconds"]["elman"]
            times = f"{duration(theirs)} | {duration(ours)} | {theirs / ours:.1f}x"
            lines.append(f"| `{row['layer']}` | {row['other']} | {times} |")
    return "\n".join(lines)


def transformers_rules() -> str:
    """A table of functions beside those of transformers: times, and how many times as long."""
    lines = [
        "| a layer | torch's operations | elman | faster |",
        "|---|---:|---:|---:|",
    ]
    for case, row in script_rows("transformers_rules").items():
        torch_s, elman_s = row["seconds"]["torch"], row["seconds"]["elman"]
        times = f"{duration(torch_s)} | {duration(elman_s)}"
        lines.append(f"| {case} | {times} | {torch_s / elman_s:.1f}x |")
    return "\n".join(lines)


def gains_of_transformers() -> list[float]:
    """How many times as fast functions of sequences are as those of transformers, in training."""
    rows = script_rows("transformers_rules").values()
    times = [row["seconds"] for row in rows if row["training"]]
    return [seconds["torch"] / seconds["elman"] for seconds in times]


def transformers_models() -> str:
    """A table of models of transformers whose functions were replaced: relative errors, and how
    many times as fast they are; in parentheses what would be left if all but the products of the
    projections took no time, and in bfloat16 the gain over torch with products in bfloat16."""
    lines = [
        "| model type | logits | gradient | tokens | training | prompt | a token | in int8 "
        "| training in bf16 | prompt in bf16 |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    pair = "{:.2f}x ({:.2f})"
    cells = " | ".join([pair, pair, pair, "{:.2f}x", pair, pair])
    rows = script_rows("transformers_models")
    gains = [_gains_of_model(row["seconds"]) for row in rows.values()]
    for (case, row), factors in zip(rows.items(), gains, strict=True):
        same = "the same" if row["same text"] else "others"
        errors = f"{row['logits']:.1e} | {row['gradient']:.1e}"
        lines.append(f"| `{case}` | {errors} | {same} | {cells.format(*factors)} |")
    medians = map(median, zip(*gains, strict=True))
    lines.append(f"| median | | | | {cells.format(*medians)} |")
    return "\n".join(lines)


def _gains_of_model(seconds: Mapping[str, Mapping[str, float]]) -> list[float]:
    """How many times as fast a model of transformers is, in the order of the table's cells."""
    training, prompt, token = (seconds[phase] for phase in ("training", "prompt", "token"))
    gains = [
        of["torch"] / of[way] for of in (training, prompt, token) for way in (OURS, "products")
    ]
    gains.append(token["torch"] / token["int8"])
    for of in (training, prompt):
        gains += [of[before] / of["elman bf16"] for before in ("torch", "torch bf16")]
    return gains


def ten_steps() -> str:
    """A table of a training step by the steps of a report, whose shares of the time are next to
    ours."""
    ours = rows_of("cmu")[TEN_STEPS]["phases"]
    lines = ["| step | there | elman |", "|---|---:|---:|"]
    lines += [
        f"| {step} | {100 * there:.2f} % | {100 * ours[step]:.2f} % |"
        for step, there in TEN.items()
    ]
    return "\n".join(lines)


def averages() -> str:
    """A table of runs whose processes average weights every so many steps, seeds as mean and
    range."""
    lines = ["| steps between averages | bits per character | ms a step |", "|---|---:|---:|"]
    for case, row in script_rows("averages").items():
        every, bits = case.removeprefix("every "), row["bits"]
        name = f"{every} (gradients)" if every == "1" else every
        spread = f"{mean(bits):.3f} ({min(bits):.3f} to {max(bits):.3f})"
        lines.append(f"| {name} | {spread} | {1e3 * median(row['step_s']):.3g} |")
    return "\n".join(lines)


def programs() -> str:
    """A table of programs as they are, by python and by `elman run`."""
    lines = [
        "| program | losses differ by | python (ms) | `elman run` (ms) | faster | what ran |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for case, row in script_rows("programs").items():
        if "error" in row:
            lines.append(f"| {case} | {row['error']} | | | | |")
            continue
        before, after = (row["milliseconds"][side] for side in ("python", "elman run"))
        times = f"{before:.3g} | {after:.3g} | {before / after:.2f}x"
        lines.append(f"| {case} | {row['losses']:.0e} | {times} | {row['ran']} |")
    return "\n".join(lines)


def published_models() -> str:
    """A table of models of published sizes: relative errors of the logits in comparison with
    float64, how long a training step takes, and how many times as fast all is as with torch."""
    lines = [
        "| sizes of | tokens | threads | logits | torch's | training step | training | LoRA "
        "| prompt | a token | in int8 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    phases = ("training", "elman"), ("adapters", "elman"), ("prompt", "elman")
    phases += ("token", "elman"), ("token", "int8")
    for case, row in script_rows("transformers_published").items():
        seconds = row["seconds"]
        faster = [
            f"{seconds[phase]['torch'] / seconds[phase][side]:.3g}x" if phase in seconds else "–"
            for phase, side in phases
        ]
        sizes = f"{row['steps']} | {row['threads']}"
        errors = f"{sizes} | {row['logits']:.1e} | {row['torch']['logits']:.1e}"
        step = duration(seconds["training"]["elman"])
        lines.append(f"| {case} | {errors} | {step} | {' | '.join(faster)} |")
    return "\n".join(lines)


def sizes_of_models() -> str:
    """A table of models of transformers at other sizes: how many times as fast phases are, and in
    parentheses training and prompts with products in bfloat16 on both sides."""
    phases = ("training", "adapters", "prompt", "token")
    lines = [
        "| model | sequences | tokens | training | LoRA | prompt | a token | in int8 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, row in script_rows("transformers_sizes").items():
        cells = list[str]()
        for phase in phases:
            of = row["seconds"].get(phase)
            text = f"{of['torch'] / of['elman']:.3g}x" if of else "–"
            if of and "elman bf16" in of:
                text += f" ({of['torch bf16'] / of['elman bf16']:.3g})"
            cells.append(text)
        token = row["seconds"].get("token")
        cells.append(f"{token['torch'] / token['int8']:.3g}x" if token else "–")
        tokens = case.partition(",")[2].partition(",")[2] or row["steps"]
        sizes = f"{row['batch']} | {tokens}"
        lines.append(f"| {case.partition(' ')[0]} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def runtimes_of_models() -> str:
    """A table of prompts of models of transformers by other runtimes."""
    lines = [
        "| model type | torch | elman | OpenVINO | its export and compilation | elman, faster "
        "| llama.cpp | elman, faster | error of elman | of OpenVINO | of llama.cpp |",
        f"|---|{'---:|' * 10}",
    ]
    for case, row in script_rows("transformers_runtimes").items():
        seconds, errors = row["seconds"], row["errors"]
        before = duration(row["before"]["export"] + row["before"]["compile"])
        cells = [duration(seconds["torch"]), duration(seconds[OURS])]
        for name, more in (("openvino", [before]), ("llama", [])):
            if name in seconds:
                faster = f"{seconds[name] / seconds[OURS]:.2f}x"
                cells += [duration(seconds[name]), *more, faster]
            else:
                cells += ["–", "–"]
        cells += [f"{errors[n]:.1e}" if n in errors else "–" for n in (OURS, "openvino", "llama")]
        lines.append(f"| `{case}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def tokens_of_runtimes() -> str:
    """A table of single tokens of models of transformers, by elman and by llama.cpp."""
    pairs = (("float32", "llama float32"), ("int8", "llama q8_0"))
    lines = [
        "| model type | torch | elman, float32 | llama.cpp, F32 | elman, faster "
        "| elman, int8 | llama.cpp, Q8_0 | elman, faster | error of int8 | of Q8_0 |",
        f"|---|{'---:|' * 9}",
    ]
    for case, row in script_rows("transformers_runtimes").items():
        if "token" not in row:
            continue
        seconds, errors = row["token"]["seconds"], row["token"]["errors"]
        seconds["float32"] = min(seconds["float32"], seconds[OURS])  # as one would install it
        cells = [duration(seconds["torch"])]
        for ours, theirs in pairs:
            faster = f"{seconds[theirs] / seconds[ours]:.2f}x"
            cells += [duration(seconds[ours]), duration(seconds[theirs]), faster]
        cells += [f"{errors[name]:.1e}" for name in pairs[1]]
        lines.append(f"| `{case}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def integers_learned() -> str:
    """A table of cells on spoken digits: accuracies on the held-out half, mean, least and largest
    of the seeds."""
    kinds = ("float32", "further", "after", "trained")
    lines = [
        "| cell | float32 | trained further in float32 | integers after calibration "
        "| trained further with integers |",
        "|---|---:|---:|---:|---:|",
    ]
    for case, row in script_rows("integers").items():
        part, _, cell = case.partition(" ")
        if part != "digits":
            continue
        cells = [
            f"{percent(mean(scores))} ({100 * min(scores):.1f} to {100 * max(scores):.1f})"
            for scores in (row["scores"][kind] for kind in kinds)
        ]
        lines.append(f"| `{cell}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def integers_on_core() -> str:
    """A table of the exported C on an emulated Cortex-M4, in integers and in float32."""
    lines = [
        "| cell | units | instructions a step | in float32 | code and weights | in float32 "
        "| memory | in float32 | stack |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case, row in script_rows("integers").items():
        part, *place = case.split()
        if part != "cortex":
            continue
        whole, plain = (row["cortex-m4"][kind] for kind in ("int8", "float32"))
        values = [f"{of['instructions'] / 1000:.3g} thousand" for of in (whole, plain)]
        for key in ("code", "memory"):
            values += [_bytes(of[key]) for of in (whole, plain)]
        values.append(_bytes(whole["stack"]))
        lines.append(f"| `{place[0]}` | {place[1]} | {' | '.join(values)} |")
    return "\n".join(lines)


def _bytes(count: int) -> str:
    return f"{count / 1e3:.3g} kB" if count < 999_500 else f"{count / 1e6:.3g} MB"


def integers_run() -> str:
    """A table of what integers cost and save: a training step in comparison with float32, and the
    exported C in both."""
    lines = [
        "| cell | units | training step | C: a step | in float32 | code and weights | in float32 "
        "| memory | in float32 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = script_rows("integers")
    for case, row in rows.items():
        part, *place = case.split()
        if part != "c":
            continue
        step = rows.get(" ".join(["step", *place]))
        spent = None if step is None else step["seconds"]
        slower = "–" if spent is None else f"{spent['int8'] / spent['float32']:.2f}x"
        values = [f"{row['ns'][kind] / 1000:.3g} µs" for kind in ("int8", "float32")]
        for of in ("code", "memory"):
            values += [_bytes(row["sizes"][kind][of]) for kind in ("int8", "float32")]
        lines.append(f"| `{place[0]}` | {place[1]} | {slower} | {' | '.join(values)} |")
    return "\n".join(lines)


def bf16(kind: Literal["cases", "others", "users", "portable"]) -> str:
    """A table of products of bfloat16: how many times as fast a training step is as in float32, and
    as torch's layers.

    Args:
        kind: large layers and single samples; the loss and the other shapes of suite ``cpu``; or
            models of suite ``users``, torch's being the loops of their projects; or layers on a
            processor without an instruction for such products.
    """
    first = {
        "others": "layer (T, B, H), or loss (rows, classes, H)",
        "users": "model (T, B, H)",
    }.get(kind, "layer (T, B, H)")
    lines = [
        f"| {first} | float32 | bf16 | speed-up | over torch | over torch under autocast |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, row in script_rows("bf16_portable" if kind == "portable" else "bf16").items():
        name, sizes = case.rsplit(" ", 1)
        large = tuple(map(int, sizes.split(","))) in CASES
        if kind != "portable" and kind != (
            "users" if name in USERS else "cases" if large else "others"
        ):
            continue
        times = {way: run["median"] for way, run in row["seconds"].items()}
        cells = [f"{name} ({sizes.replace(',', ', ')})"]
        cells += [duration(times[way]) for way in ("float32", "bf16")]
        ways = ("float32", "torch", "torch autocast")
        cells += [f"{times[way] / times['bf16']:.3g}x" if way in times else "" for way in ways]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def time_shards() -> str:
    """Seconds and memory of steps that are cut over processes, as text."""
    rows, texts = script_rows("time_shards"), list[str]()
    for name in dict.fromkeys(row["cell"] for row in rows.values()):
        own = {row["processes"]: row for row in rows.values() if row["cell"] == name}
        figures = [
            f"{row['seconds']:.1f} s and {row['MiB'] / 1024:.1f} GiB by {count}"
            for count, row in own.items()
        ]
        cell, units = name.split(", ")
        texts.append(f"`{cell}` of {units} takes {', '.join(figures)}")
    return "; ".join(texts)


def recognisers() -> str:
    """What the recogniser of digits has come to, and how fast, on elman's layers and torch's."""
    rows = script_rows("examples")
    ours, torch = rows["digits, elman"], rows["digits, torch"]
    return (
        f"after {ours['steps']:.0f} steps {percent(ours['word_error'])} of the words are wrong "
        f"({percent(torch['word_error'])} with torch's layers), which took "
        f"{ours['seconds']:.0f} s ({torch['seconds']:.0f} s), at {ours['gflops']:.0f} GFLOP/s of "
        f"whole training steps, {percent(ours['gflops'] / ours['peak_gflops'])} of the peak of all "
        "cores"
    )


def turned() -> str:
    """A table of images that turn: R² at each step."""
    rows = script_rows("examples")
    lines = [f"| step | {' | '.join(map(str, range(1, 11)))} |", "|---|" + "---:|" * 10]
    explained = rows["turned, elman"]["r2"]
    texts = {"predicted": explained["prediction"], "input repeated": explained["repeated input"]}
    for name, values in texts.items():
        lines.append(f"| {name} | {' | '.join(f'{value:.3f}' for value in values)} |")
    return "\n".join(lines)


def bodies() -> str:
    """How well two bodies are followed, and how fast the network is trained."""
    rows = script_rows("examples")
    fused = rows["bodies, scan"]
    off = fused["distance"]
    ms, loop, deer = (
        1e3 * (row := rows[f"bodies, {way}"])["seconds"] / row["steps"]
        for way in ("scan", "loop", "deer")
    )
    return (
        f"After {fused['steps']:.0f} steps of training ({fused['seconds']:.0f} s; {ms:.0f} ms a "
        f"step, {loop:.0f} ms by a loop, {deer:.0f} ms by `elman.deer`) places are "
        f"{off['of the network']:.3f} off at the end of new paths (bodies that go straight on: "
        f"{off['straight on']:.2f}), and the energy of {fused['energy']:.2f} has drifted by "
        f"{fused['drift']:.1g}"
    )


def fields() -> str:
    """A table of the networks inside of an ODE: milliseconds of a training step."""
    titles = {"c": "engine `c`", "deer": "`elman.deer`", "in turn": "a loop over torch operators"}
    lines = [f"| field | {' | '.join(titles.values())} |", "|---|" + "---:|" * len(titles)]
    for case, row in script_rows("examples").items():
        if "ways" in row:
            times = (row["ways"].get(way, {}).get("ms") for way in titles)
            texts = ["–" if ms is None else f"{ms:.3g} ms" for ms in times]
            lines.append(f"| {' | '.join([case.removeprefix('ode, '), *texts])} |")
    return "\n".join(lines)


def minibatches() -> str:
    """A table of suite persistent: GFLOP/s of a recurrent product by minibatch."""
    rows = rows_of("persistent")
    lines = [f"| samples | {' | '.join(map(str, SAMPLES))} |", "|---|" + "---:|" * len(SAMPLES)]
    for units in UNITS:
        for contestant, name in (("stepped", "a product per step"), ("elman-c", "elman")):
            cases = [f"resident 64,{samples},{units}" for samples in SAMPLES]
            rates = [rows[case]["flop"] / rows.seconds(case, contestant) / 1e9 for case in cases]
            line = " | ".join(f"{rate:.0f}" for rate in rates)
            lines.append(f"| {units} units, {name} | {line} |")
    return "\n".join([*lines, "", f"{machine_line(rows[f'resident 64,1,{UNITS[0]}'])}."])


def layouts() -> str:
    """A table of suite ecornn: GFLOP/s of one product by its layout."""
    rows = rows_of("ecornn")
    lines = ["| samples, inputs, outputs | X Wᵀ | W Xᵀ | engine `c` |", "|---|---:|---:|---:|"]
    for sizes in LAYOUTS:
        case = layout_name(sizes)
        rates = [
            f"{rows[case]['flop'] / rows.seconds(case, name) / 1e9:.0f}"
            for name in (ROWS, COLUMNS, PANELS)
        ]
        lines.append(f"| {' | '.join([', '.join(map(str, sizes)), *rates])} |")
    return "\n".join([*lines, "", f"{machine_line(rows[layout_name(LAYOUTS[0])])}."])


def strong_scaling() -> str:
    """A table of workers of one minibatch: the forward of suite persistent, twice that for the
    backward, and the sum of gradients by the formula of the page."""
    rows, units, total = rows_of("persistent"), UNITS[-1], max(SAMPLES)
    gradients = 4 * 2 * units**2  # bytes of both matrices
    lines = [
        "| workers | samples of each | computing | sum of gradients | times as fast as one |",
        "|---:|---:|---:|---:|---:|",
    ]
    times: list[float] = []
    for samples in reversed(SAMPLES):
        workers = total // samples
        computing = 3 * rows.seconds(f"resident 64,{samples},{units}", "elman-c")
        summing = 2 * (workers - 1) * (LATENCY + gradients / workers / BANDWIDTH)
        times.append(computing + summing)
        figures = [duration(computing), duration(summing), f"{times[0] / times[-1]:.1f}"]
        lines.append(f"| {' | '.join([str(workers), str(samples), *figures])} |")
    return "\n".join(lines)


def scaling_on_gpus() -> str:
    """A table of GPUs that share a minibatch of 512, as in Persistent RNNs (Diamos 2016): training
    steps of a layer as measured on one GPU, and the sum of its gradients over nodes of eight."""
    rows = script_rows("gpu")
    lines = [
        "| GPUs | samples of each | computing | sum of gradients | nothing hidden | all hidden |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for samples, note in ((32, ""), (16, ", before loads ahead and without slices"), (4, "")):
        kind = "persistent" if samples == 4 else "layer"
        row = rows[f"{kind} relu 64,{samples},1152 fp32{note}"]
        gpus, computing = 512 // samples, row["elman"][1]
        nodes, gradients = gpus // 8, 4 * 2 * row["H"] ** 2  # bytes of both matrices
        summing = 2 * (nodes - 1) * (LATENCY + gradients / nodes / BANDWIDTH)
        times = (computing, summing, computing + summing, max(computing, summing))
        texts = [str(gpus), str(samples), *(f"{1e3 * seconds:.2f} ms" for seconds in times)]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def gains_of_gpu() -> str:
    """How many times as fast as cuDNN large layers train on a GPU."""
    rows = [row for row in script_rows("gpu").values() if row.get("H", 0) in (512, 1152)]
    gains = [row["torch"][1] / row["elman"][1] for row in rows if "torch" in row]
    return f"{min(gains):.1f} to {max(gains):.1f}"


def pipeline_on_gpu() -> str:
    """What share of the throughput of 32 samples a persistent kernel has with four."""
    rows = script_rows("gpu")
    few, many = (rows[name]["elman"] for name in (FOUR_SAMPLES, "layer relu 64,32,1152 fp32"))
    forward, training = (4 * b / (32 * a) for a, b in zip(few, many, strict=True))
    return f"{forward:.0%} of the throughput of 32, in training {training:.0%}".replace("%", " %")


def product_on_gpu() -> str:
    """How long a product per step takes on a GPU, and how many times as long as a persistent
    kernel."""
    row = script_rows("gpu")[FOUR_SAMPLES]
    product, persistent = row["product per step"][0], row["elman"][0]
    return f"{1e6 * product / row['T']:.1f} µs a step, {product / persistent:.1f} times"


def deer_on_gpu() -> str:
    """How fast all steps at once are on a GPU, in a forward."""
    row = script_rows("gpu")["deer gru 10000,1,2 fp32"]
    ours, torch = row["elman"][0], row["torch"][0]
    step, beside = 1e9 * ours / row["T"], 1e6 * torch / row["T"]
    return f"{step:.0f} ns a step where cuDNN takes {beside:.2f} µs, {torch / ours:.0f} times"


def barriers() -> str:
    """Times of a barrier of the programs of a GPU, by their number."""
    times = script_rows("gpu")["barrier"]["barrier"]
    some = {count: f"{1e6 * seconds:.2f}" for count, seconds in times.items()}
    few, *_, most = some
    return f"{some[few]} µs of {few} programs, {some['16']} of 16, {some[most]} of {most}"


def gpu() -> str:
    """A table of layers on a GPU: microseconds a step, forward and with the backward."""
    lines = [
        "| layer (T, B, H) | schedule | forward | with backward | torch.nn | speed-up |",
        "|---|---|---:|---:|---|---:|",
    ]
    for case, row in script_rows("gpu").items():
        if "elman" not in row or "," in case.replace(f"{row['T']},{row['B']},{row['H']}", ""):
            continue  # a row of another kind, or of an earlier kernel
        ours, torch = (
            [f"{seconds / row['T'] * 1e6:.2f}" for seconds in row.get(name, ())]
            for name in ("elman", "torch")
        )
        ratio = f"{row['torch'][1] / row['elman'][1]:.1f}x" if torch else ""
        name = case
        for kind in ("layer ", "heads ", "persistent "):
            name = name.removeprefix(kind)
        lines.append(f"| {' | '.join([name, row['best'], *ours, ', '.join(torch), ratio])} |")
    return "\n".join(lines)
