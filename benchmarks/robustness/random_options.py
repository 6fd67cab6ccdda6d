"""Random combinations of options: does each public module and function honour them, or name the
option that it refuses?

    python benchmarks/robustness/random_options.py --seeds 0:3000

A seed draws a module (``Recurrent`` of a cell or a list of cells, a drop-in, a class of
``elman.layers``) or a function of ``elman.functional``, options of its constructor and of a call,
some of them wrong. What refuses has to raise an error of elman's, a ValueError or a TypeError whose
text names an option in use. What runs is run again in ways that must not matter
(random_equivalents.py, random_layers.py): other layouts, engines and plans, chunks instead of one
call, samples one by one, options with neutral values. Values and gradients are compared, and no
result may share memory with another. Any other exception, and each difference, is printed with the
seed and the combination; the status is 1 then. Forked processes of some seeds each do the work.
Kernels are kept in ELMAN_CACHE if that is set, else for this run.
"""

from __future__ import annotations

import os
import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from forking import Ended, forked
from random_equivalents import Case, DifferenceError, check_module
from random_layers import check_function, check_layer
from seeds import run_seeds
from torch import nn

import elman
import elman.layers
from elman import cells, ops
from elman.errors import ElmanError

SEEDS, LIMIT_S = 25, 300.0  # of a process; of a seed
F64 = torch.float64


@elman.cell(input="x[I]", state="S[K, V], h[V]", weights="W[V, I], U[K, I]", output="Y[K, V]")
def matrix(x: Any, S: Any, h: Any, W: Any, U: Any) -> Any:
    """A matrix as a state and as the output."""
    S = 0.5 * S + ops.outer(ops.tanh(U @ x), ops.tanh(W @ x) + h)
    return S, S, ops.tanh(h + W @ x)


@elman.cell(input="x[I]", state="S[K, V]", weights="W[V, I], U[K, I]", output="y[V]")
def read_matrix(x: Any, S: Any, W: Any, U: Any) -> Any:
    """A matrix as a state alone."""
    S = 0.5 * S + ops.outer(ops.tanh(U @ x), ops.tanh(W @ x))
    return S.T @ ops.tanh(U @ x), S


@elman.cell(input="X[K, V]", state="C[K, V]", init={"C": 0.3})
def of_matrix(X: Any, C: Any) -> Any:
    """A matrix as the input; it begins with another state than zero."""
    return ops.tanh(X + 0.5 * C)


@elman.cell(input="x[I]", state="h[H], m", output="y[H], e", weights="W[H, I], R[H, H]")
def two_outputs(x: Any, h: Any, m: Any, W: Any, R: Any) -> Any:
    """A vector and a number, as outputs and as states."""
    h = ops.tanh(W @ x + R @ h + m)
    return 2 * h, ops.mean(h), h, 0.5 * m + ops.mean(h)


@elman.cell(input="x[I], gap", static="s[H]", state="h[H]", weights="W[H, I], R[H, H]")
def with_static(x: Any, gap: Any, s: Any, h: Any, W: Any, R: Any) -> Any:
    """A further input and a static one."""
    return ops.tanh(W @ x + R @ h * ops.exp(-gap * gap) + s)


@elman.cell(input="x[I]", output="y[H]", weights="W[H, I]")
def stateless(x: Any, W: Any) -> Any:
    """No state."""
    return ops.tanh(W @ x)


STACKS: tuple[tuple[Any, dict[str, Any]], ...] = (  # cells, and sizes of their dims
    (cells.gru, {}), (cells.lstm, {}), (cells.mgu, {}), (cells.indrnn, {}), (cells.lem, {}),
    (matrix, {"K": 3}), (read_matrix, {"K": 3}), (of_matrix, {"K": 3}), (two_outputs, {}),
    (with_static, {}), (stateless, {}), (cells.delta_net, {}), (cells.mlstm, {}),
    ([cells.gru, cells.lstm], {}), ([matrix, cells.gru], {"K": [3, None]}),
    ([read_matrix, cells.lstm], {"K": [3, None]}), ([matrix, of_matrix], {"K": [3, 3]}),
    ([two_outputs, cells.gru], {}), ([stateless, cells.gru, stateless], {}),
)  # fmt: skip
SHARES = (0.0, 0.3)
# Of modules, calls and layers: the usual value, and others. What is wrong follows (WRONG).
OPTIONS: dict[str, tuple[Any, ...]] = {
    "num_layers": (1, 2, 3),
    "bidirectional": (False, True),
    "batch_first": (False, True),
    "dropout": SHARES,
    "heads": (1, 2),
    "plan": (
        elman.PlanOptions(), elman.PlanOptions("recompute"), elman.PlanOptions(checkpoint=2),
    ),
    "residual": (False, True),
    "clip_gradient": (None, 0.05, 1e9),
    "learn_initial": (False, True),
    "zoneout": (0.0, 0.3, {"h": 0.3}),
    "recurrent_dropout": SHARES,
    "recurrent_dropout_per": ("sequence", "step"),
    "weight_dropout": SHARES,
    "precision": (None, "ieee"),
}  # fmt: skip
CALLS: dict[str, tuple[Any, ...]] = {
    "state": (False, True),
    "reset": (False, True),
    "reset_to": (None, "zeros", "initial"),
    "mask": (False, True),
    "masked_output": (None, "held", "zeros"),
    "lengths": (False, True),
    "draws": (False, True),
    "outputs": (None, "states"),
    "form": ("batch", "single", "packed"),
    "train": (True, False),
}
LAYERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "DeltaNet": {"num_heads": (2, 4), "expand_k": (1.0, 0.5), "conv_size": (2, 1), "expand_v":
                 (1.0, 2.0), "use_gate": (False, True), "allow_neg_eigval": (False, True)},
    "GatedDeltaNet": {"num_heads": (2, 3), "head_dim": (4, 2), "expand_v": (2.0, 0.5),
                      "use_gate": (True, False), "conv_size": (2, 4)},
    "GatedLinearAttention": {"num_heads": (2, 4), "expand_k": (0.5, 1.0),
                             "gate_low_rank_dim": (4, 1), "gate_logit_normalizer": (16.0, 2.0)},
    "MLSTM": {"num_heads": (2, 4), "qk_dim_factor": (0.5, 1.0), "gate_soft_cap": (15.0, 1.0)},
    "Mamba2": {"headdim": (4, 2), "d_state": (3, 4), "d_conv": (4, 1), "expand": (2, 1)},
    "RWKV7": {"head_size": (4, 2), "layers": (2, 3), "layer": (0, 1)},
    "LRU": {"r_min": (0.9, 0.0), "r_max": (0.999, 0.95), "max_phase": (6.28, 1.0)},
    "S4D": {"d_state": (4, 2)},
    "Stack": {"num_layers": (1, 2), "dropout": SHARES},
    "Strided": {"strides": ((1, 2), (2,), [1, 2, 4, 8]), **OPTIONS},
}  # fmt: skip
WRONG: dict[str, tuple[Any, ...]] = {
    "num_layers": (0,), "bidirectional": ("no",), "batch_first": (None,), "dropout": (1.5,),
    "heads": (3, 0), "plan": ("fast",), "residual": (2,), "clip_gradient": (-1.0,), "reset_to":
    ("last",), "learn_initial": ("yes",), "zoneout": (1.5, {"k": 0.2}), "recurrent_dropout": (-1,),
    "recurrent_dropout_per": ("unit",), "weight_dropout": (2.0,), "precision": ("bf17",),
    "masked_output": ("nan",), "outputs": ("all",), "num_heads": (3, 0), "expand_k": (0.3, -1.0),
    "conv_size": (0,), "use_gate": ("no",), "allow_neg_eigval": (2,), "head_dim": (1.5,),
    "gate_low_rank_dim": (0,), "gate_logit_normalizer": (0.0,), "qk_dim_factor": (0.0,),
    "gate_soft_cap": (-1.0,), "headdim": (3,), "d_state": (0, 5), "expand": (0.5,), "head_size":
    (3,), "layer": (-1, 3), "r_min": (1.1,), "r_max": (2.0,), "max_phase": (0.0,), "strides":
    ((), (0,), 3), "bias": (0.5,), "nonlinearity": ("sin",), "proj_size": (9,), "head_first":
    (True,), "rezidual": (True,), "engine": ("d",),
}  # fmt: skip
STACKED = ("gru", "lstm", "mlstm", "delta_net", "rwkv7", "mamba2", "lru", "gla", "s4d", "indrnn")
ANY_CELL = (cells.gru, cells.lstm, read_matrix, matrix, two_outputs, of_matrix, with_static, "gru")


class Drawn(NamedTuple):
    """A combination.

    Attributes:
        target: module or function.
        made, called: options that are not the usual ones.
        rest: sizes and cells.
    """

    target: str
    made: dict[str, Any]
    called: dict[str, Any]
    rest: dict[str, Any]

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, list):
                return f"[{', '.join(map(shown, value))}]"
            return getattr(value, "name", None) or repr(value)

        groups = (self.rest, self.made, self.called)
        texts = (", ".join(f"{k}={shown(v)}" for k, v in group.items()) for group in groups)
        return f"{self.target}({'; '.join(texts)})"


def pick(source: random.Random, of: dict[str, tuple[Any, ...]], share: float) -> dict[str, Any]:
    """Options that are not the usual ones, each with some probability; a wrong one now and then."""
    names = [name for name in of if source.random() < share]
    options = {name: source.choice(of[name][1:]) for name in names}
    wrong = [name for name in of if name in WRONG] + ["rezidual"]
    if source.random() < 0.1:
        name = source.choice(wrong)
        options[name] = source.choice(WRONG[name])
    return options


def draw(seed: int) -> Drawn:
    """The combination of a seed."""
    source = random.Random(seed)
    share = source.choice((0.05, 0.15, 0.3))
    kind = source.choice(("Recurrent",) * 5 + ("drop-in",) * 3 + ("layer",) * 4 + ("function",))
    rest = {"T": source.choice((5, 4, 2, 1)), "B": source.choice((2, 3, 1)), "seed": seed}
    called = pick(source, CALLS, share)
    for name, needed in (("reset_to", "reset"), ("masked_output", "mask")):
        if name in called and source.random() < 0.9:
            called[needed] = True
    if kind == "Recurrent":
        stack, dims = source.choice(STACKS)
        rest |= {"cell": stack, "I": source.choice((4, 6)), "H": source.choice((6, 4)), **dims}
        made = pick(source, OPTIONS, share)
        if not {"zoneout", "recurrent_dropout"} & {*made} and source.random() < 0.9:
            called.pop("draws", None)
        return Drawn(kind, made, called, rest)
    if kind == "drop-in":
        name = source.choice(("RNN", "GRU", "LSTM"))
        more = {"bias": (True, False)}
        more |= {"nonlinearity": ("tanh", "relu")} if name == "RNN" else {}
        more |= {"proj_size": (0, 3)} if name == "LSTM" else {}
        rest |= {"I": source.choice((4, 6)), "H": source.choice((6, 4))}
        made = pick(source, {**OPTIONS, **more}, share)
        if not {"zoneout", "recurrent_dropout"} & {*made} and source.random() < 0.9:
            called.pop("draws", None)
        return Drawn(name, made, called, rest)
    if kind == "layer":
        name = source.choice((*LAYERS, "Stack", "Strided", "Strided"))
        rest["H"] = source.choice((8, 8, 24))
        if name == "Stack":
            rest |= {"cell": source.choice((*STACKED, *ANY_CELL)), "I": source.choice((8, 3))}
        if name == "Strided":
            rest |= {"cell": source.choice((*ANY_CELL, cells.gru, cells.lstm)), "I": 4}
        known = {key: called[key] for key in ("state", "form", "train") if key in called}
        return Drawn(name, pick(source, LAYERS[name], share), known, rest)
    name = source.choice(("delta_rule", "gated_delta_rule", "kda", "gla"))
    options = {"scale": (None, 0.3), "initial_state": (False, True), "cu_seqlens": (False, True),
               "output_final_state": (False, True), "groups": (1, 2), "chunk_size": (None, 16),
               "head_first": (None, False), "use_qk_l2norm_in_kernel": (False, True)}  # fmt: skip
    return Drawn(name, {}, pick(source, options, 0.3), rest)


def build(drawn: Drawn) -> nn.Module:
    """The module of a combination, in float64, with weights of no special values."""
    rest, made = drawn.rest, dict(drawn.made)
    torch.manual_seed(rest["seed"])
    if drawn.target == "Recurrent":
        cell, dims = rest["cell"], {name: rest[name] for name in ("K",) if name in rest}
        sizes = rest["H"]
        if isinstance(cell, list):
            sizes = [sizes + 2 * (k % 2) * (matrix not in cell) for k in range(len(cell))]
        net = elman.Recurrent(cell, rest["I"] if cell is not of_matrix else sizes, sizes,
                              **made, **dims)  # fmt: skip
    elif drawn.target in ("RNN", "GRU", "LSTM"):
        net = getattr(elman, drawn.target)(rest["I"], rest["H"], **made)
    elif drawn.target in ("Stack", "Strided"):
        if drawn.target == "Strided":
            made.setdefault("strides", (1, 2))
        if rest["cell"] in (matrix, read_matrix, of_matrix) and drawn.target == "Strided":
            made["K"] = 3
        net = getattr(elman.layers, drawn.target)(rest["cell"], rest["I"], rest["H"], **made)
    else:
        usual = {name: values[0] for name, values in LAYERS[drawn.target].items()}
        usual = {name: value for name, value in usual.items() if value is not None}
        net = getattr(elman.layers, drawn.target)(rest["H"], **{**usual, **made})
    net.double()
    with torch.no_grad():
        for name, value in net.named_parameters():
            if name.startswith("initial_") or "W" in name or "weight" in name:
                value.add_(0.1 * torch.randn_like(value))
    return net.train(drawn.called.get("train", True))


def case(drawn: Drawn) -> Case:
    """What the equivalents of a combination are made from."""
    return Case(lambda **more: build(drawn._replace(made={**drawn.made, **more})),
                {**drawn.rest, "target": drawn.target}, drawn.made, drawn.called)  # fmt: skip


def is_named(error: BaseException, drawn: Drawn) -> bool:
    """Whether an error is a refusal that names an option in use."""
    if not isinstance(error, (ElmanError, ValueError, TypeError)):
        return False
    names = [*drawn.made, *drawn.called]
    if drawn.target in ("Stack", "Strided"):  # which not every cell fits
        names.append(getattr(drawn.rest["cell"], "name", drawn.rest["cell"]))
    return any(re.search(rf"\b{name}\b", str(error)) for name in names)


def verdict(seed: int) -> tuple[str, str]:
    """How a combination ended: ``refused``, or how often it was compared; and what is wrong."""
    drawn = draw(seed)
    check = check_layer
    if drawn.target in ("Recurrent", "RNN", "GRU", "LSTM"):
        check = check_module
    elif drawn.target not in LAYERS:
        check = check_function
    try:
        return f"compared by {check(case(drawn))}", ""
    except DifferenceError as difference:
        return "differs", f"seed {seed}: {drawn}\n    {difference}"
    except Exception as error:
        if is_named(error, drawn):
            return "refused", ""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in frames[-4:]]
        first = str(error).strip().replace("\n", "\n    ")
        title = f"{type(error).__name__} at {', '.join(places)}"
        return "fails", f"seed {seed}: {drawn}\n    {title}\n    {first}"


def campaign(seeds: Sequence[int], workers: int = 1) -> int:
    """The combinations of some seeds; how many failures there are."""
    counts: Counter[str] = Counter()
    warnings.simplefilter("ignore")  # of dropout with one layer, of modules in training
    for seed, result in forked(seeds, verdict, batch=SEEDS, workers=workers,
                               limit_s=lambda seed: LIMIT_S):  # fmt: skip
        kind, text = result if not isinstance(result, Ended) else (
            "fails", f"seed {seed}: {draw(seed)}\n    the process {result}")  # fmt: skip
        counts[kind] += 1
        if text:
            print(text, flush=True)
    for kind, count in counts.most_common():
        print(f"{count:6}  {kind}")
    return counts["fails"] + counts["differs"]


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, "combinations", campaign, workers=1))
