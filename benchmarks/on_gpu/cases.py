"""What is measured on a GPU, the most important first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.steps.catalogue import torch_only

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Case:
    """One row: what is measured, of which cell and sizes."""

    name: str
    kind: str
    cell: str
    T: int
    B: int
    H: int
    dtype: str = "bfloat16"
    heads: int = 1


def layer(cell: str, T: int, B: int, H: int, dtype: str, kind: str = "layer") -> Case:
    """A case named after its sizes."""
    return Case(f"{kind} {cell} {T},{B},{H} {DTYPES[dtype]}", kind, cell, T, B, H, dtype)


def heads(D: int) -> Case:
    """FlashRNN's sweep: 768 units in all."""
    return Case(f"heads lstm {768 // D}x{D}", "heads", "lstm", 1024, 16, 768, heads=768 // D)


def divided(T: int, B: int, H: int, heads: int) -> Case:
    """A GRU of heads that do not see each other's past, as DEER's authors train it."""
    name = f"deer gru {T},{B},{heads}x{H // heads} fp32"
    return Case(name, "deer", "gru", T, B, H, "float32", heads)


def matrices(cell: str, T: int, B: int, H: int) -> Case:
    """A cell whose state is a matrix of H rows and columns for each of B samples."""
    return layer(cell, T, B, H, "bfloat16", "matrices")


def decoder(rows: int, H: int, classes: int, dtype: str) -> Case:
    """Decoder and loss of so many rows; T stands for the classes."""
    name = f"decoder {rows}x{H} to {classes} {DTYPES[dtype]}"
    return Case(name, "decoder", "", classes, rows, H, dtype)


def step(name: str) -> Case:
    """A step of :mod:`benchmarks.steps` that needs no package but torch."""
    return Case(f"step {name}", "step", name, 100, 16, 64, "float32")


def first() -> Iterator[Case]:
    """A few of each kind: what matters most if time is short; those without a row before."""
    yield Case("peaks", "peaks", "", 0, 0, 8192)
    yield matrices("gated_delta_net", 1024, 32, 64)
    for n in (2, 1, 4):
        yield layer("gru", 100_000, 1, n, "float32", "deer")
    yield layer("lstm_layernorm", 256, 16, 128, "bfloat16", "cell")
    yield layer("gru", 100, 32, 256, "float32", "module")
    yield layer("lstm", 25, 32, 512, "float16", "deepbench")  # cuDNN has a persistent kernel
    yield layer("lstm", 1024, 16, 256, "bfloat16", "stack")
    yield decoder(700, 200, 10_000, "float32")
    yield decoder(2240, 650, 33_278, "bfloat16")
    yield divided(1024, 16, 256, 32)
    yield layer("paragru", 2048, 8, 256, "float32", "deer")
    yield layer("gru", 256, 16, 512, "bfloat16")
    yield layer("lstm", 256, 16, 512, "float32")
    yield layer("relu", 64, 4, 1152, "float32", "persistent")
    yield Case("barrier", "barrier", "gru", 4096, 1, 1024)
    yield heads(64)
    yield layer("gru", 10_000, 1, 2, "float32", "deer")
    yield layer("rnn", 10, 1000, 1000, "float32", "exact")  # TensorFlow's white paper on DIRNN
    yield layer("gru", 256, 16, 512, "bfloat16", "packed")
    yield step("torch_grucell")
    yield step("dreamer_gru")
    yield layer("gru", 128, 64, 512, "float32", "program")
    yield layer("gru", 128, 64, 512, "bfloat16", "program")


def cases() -> list[Case]:
    """Every case, most important first."""
    return [*dict.fromkeys([*first(), *remaining_cases()])]


def remaining_cases() -> Iterator[Case]:
    """The lists of the question's parts, in order; the largest lists last."""
    for cell, T, B, H in (
        ("gated_delta_net", 4096, 128, 64),
        ("gated_delta_net", 1024, 32, 128),
        ("gla", 1024, 32, 128),
        ("mlstm", 1024, 32, 64),
        ("rwkv7", 1024, 32, 64),
        ("mamba2", 1024, 32, 64),
    ):
        yield matrices(cell, T, B, H)
    dtypes = ("bfloat16", "float32")
    for H, B in ((512, 16), (256, 16), (1024, 16), (128, 16), (64, 16), (2048, 16)):
        for cell in ("gru", "lstm", "rnn"):
            for dtype in dtypes:
                yield layer(cell, 256, B, H, dtype)
    for B in (4, 1, 2, 3, 8, 16, 32, 64):
        yield layer("relu", 64, B, 1152, "float32", "persistent")
    for D in (128, 16, 32, 256, 768):
        yield heads(D)
    for cell in ("gru", "lstm"):
        yield layer(cell, 256, 16, 512, "float16")
        yield layer(cell, 256, 16, 512, "float32", "exact")
    yield layer("lstm", 256, 16, 512, "float32", "packed")
    for name, case in torch_only().items():
        if not case.refused:
            yield step(name)
    for cell, H in (("lem", 512), ("slstm", 512), ("lem", 128), ("lstm_layernorm", 512)):
        yield layer(cell, 256, 16, H, "bfloat16", "cell")
    for n in (1, 2, 4, 8, 16, 32):
        for T in (1000, 10_000, 100_000):
            yield layer("gru", T, 1, n, "float32", "deer")
    for T, B, H, count in ((1024, 16, 64, 16), (10_000, 1, 256, 32), (10_000, 1, 64, 16)):
        yield divided(T, B, H, count)
    for dtype in dtypes:
        yield decoder(2240, 650, 33_278, dtype)
        yield decoder(8192, 2048, 50_257, dtype)
    for cell in ("paragru", "paralstm"):
        for T in (2048, 256):
            yield layer(cell, T, 8, 256, "float32", "deer")
    for cell in ("gru", "lstm"):
        yield layer(cell, 100, 32, 512, "bfloat16", "module")
    for T, B, H in ((256, 16, 256), (1024, 16, 512), (1024, 64, 128)):
        yield layer("gru", T, B, H, "bfloat16", "stack")
    for cell, T, B, H in (  # DeepBench's list of training
        *(("lstm", 25, B, H) for H in (512, 1024) for B in (16, 32, 64, 128)),
        *(("lstm", 150, B, 256) for B in (16, 32, 64, 128)),
        *(("rnn", 50, B, 1760) for B in (16, 32, 64, 128)),
        ("gru", 1500, 32, 1024),
        ("gru", 375, 32, 1536),
    ):
        yield layer(cell, T, B, H, "float16", "deepbench")
    for H in (512, 256, 1024, 128, 64):
        for B in (1, 32, 64, 256):
            for cell in ("gru", "lstm"):
                for dtype in dtypes:
                    yield layer(cell, 256, B, H, dtype)
    for H in (512, 1024, 256, 128, 2048):  # the ladder of Baidu's post on graphs of a GRU
        for B in (32, 8, 16, 64, 128):
            yield layer("gru", 50, B, H, "float32", "ladder")


TINY = (  # a case of each kind that the interpreter runs in seconds
    Case("layer gru dry", "layer", "gru", 3, 2, 8, "float32"),
    Case("layer lstm dry", "layer", "lstm", 2, 2, 8, "bfloat16"),
    Case("persistent dry", "persistent", "relu", 2, 2, 24, "float32"),
    Case("cell dry", "cell", "lstm_layernorm", 2, 2, 8, "float32"),
    Case("deer dry", "deer", "gru", 40, 1, 2, "float32"),
    Case("deer heads dry", "deer", "gru", 9, 1, 4, "float32", heads=2),
    Case("deer five dry", "deer", "gru", 9, 1, 5, "float32"),
    Case("para dry", "deer", "paragru", 40, 1, 3, "float32"),
    Case("heads dry", "heads", "lstm", 2, 2, 8, "float32", heads=2),
    Case("module dry", "module", "gru", 3, 2, 8, "float32"),
    Case("stack dry", "stack", "gru", 32, 2, 4, "float32"),
    Case("matrices dry", "matrices", "gated_delta_net", 2, 2, 16, "float32"),
    Case("decoder dry", "decoder", "", 33, 5, 4, "float32"),
    Case("packed dry", "packed", "gru", 5, 3, 8, "float32"),
    Case("step dry", "step", "torch_grucell", 3, 2, 8, "float32"),
    Case("program dry", "program", "gru", 8, 2, 8, "float32"),
)
