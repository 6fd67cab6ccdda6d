"""Suite ``decoder``: what do a decoder and its loss cost as one operation?"""

from __future__ import annotations

from benchmarks.cases import OURS, Case, Suite
from benchmarks.claims import Claims, Rows, UnmeasuredError
from benchmarks.measures.memory import DECODER as STEP
from benchmarks.workloads.decoding import DECODERS

MIB = 1 << 20
WORDS, FEW_WORDS, WIDE, WIKI, CHARACTERS, ROW = SHAPES = (
    (700, 200, 10_000),  # 20 samples of 35 steps; the Penn Treebank's words
    (150, 200, 10_000),  # the same where that takes too long
    (700, 650, 10_000),
    (3500, 200, 33_278),  # 100 samples; those of WikiText-2
    (3200, 256, 65),
    (1, 200, 10_000),
)
_FASTER, _LESS = 1.4, 10.0  # asked of WORDS
_LONG = 10_000_000  # logits
CLAIMS = Claims()


def name_of(shape: tuple[int, int, int]) -> str:
    """Name of the case of N rows, H inputs and V classes."""
    return "{} rows, {} to {}".format(*shape)


def _case(shape: tuple[int, int, int]) -> Case:
    N, H, V = shape
    slow = ("torch-chunks", f"{OURS}-reference") if N * V >= _LONG else ()  # seconds per step
    contestants = tuple(name for name in DECODERS if name not in slow)
    ratio, quick = _FASTER if shape == WORDS else None, shape in (FEW_WORDS, CHARACTERS)
    sizes = (1, N, H, V)
    return Case(name_of(shape), STEP, "rnn", *sizes, contestants, "torch", ratio=ratio, quick=quick)


def _words(rows: Rows) -> str:
    """The case that is judged."""
    return name_of(
        FEW_WORDS if name_of(FEW_WORDS) in rows and name_of(WORDS) not in rows else WORDS
    )


@CLAIMS(
    *("our aim", "as one operation they are faster on a CPU", f"{_FASTER:g}x"),
    holds="its products run at the speed of generated tiles, and softmax on blocks that are in "
    "cache",
    fails="torch's products are as fast there, and products are most of the work",
)
def faster(rows: Rows):
    gain = rows.ratio(_words(rows), OURS, "torch")
    return gain.reaches(_FASTER), f"{gain.median:.2f}x"


@CLAIMS(
    *("abstract", "the loss takes a fraction of the memory", "24 GB to 1 MB, Gemma 2 (2B), GPU"),
    holds="logits of 128 rows at a time, no copies of them",
    fails="there are few logits, or torch has the memory of one step for the next",
)
def less(rows: Rows):
    """Bytes beside x, weights and their gradients."""
    memory = rows[_words(rows)].get("memory", {})
    if not {"torch", OURS} <= set(memory):
        raise UnmeasuredError("the memory of torch or elman was not measured")
    separate, fused = (memory[name]["peak"] for name in ("torch", OURS))
    return separate >= _LESS * fused, f"{fused / MIB:.1f} MiB instead of {separate / MIB:.1f} MiB"


DECODER = Suite(
    "decoder",
    "What do a decoder and its loss cost as one operation, compared with torch's two?",
    tuple(map(_case, SHAPES)),
    seconds=3.0,
    source="Cut your losses in large-vocabulary language models"
    " (Wijmans et al., arXiv 2411.09009v2)",
    claims=CLAIMS,
)
