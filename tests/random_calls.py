"""Calls of everything public with random arguments, right and wrong ones, as texts to be run.

A call is Python text of a few lines, drawn from a seed, so that it can be pasted; or words of the
command line. Most arguments of a call are right, so that the wrong ones are looked at in depth.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import math
import pathlib
import random
import signal
import traceback
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch

import elman
import elman.nn
from elman import errors, ops
from elman.cli import main
from elman.drawing import draw_ops
from elman.nn.modules.layer_options import Options

LIMIT_S = 10.0  # of a call
COMMAND_LIMIT_S = 300.0  # of the command line, some of which measure in processes of their own
ADDRESS_SPACE = 12 << 30  # bytes: what takes more is to be refused, not to end the process
OF_OURS = errors.VerifyError, errors.DisagreementError  # bugs, whatever was given
WORDS = TypeError, ValueError, RuntimeError  # what torch's layers raise with a text
OURS = str(Path(elman.__file__).parent)
DROP_INS = ("RNN", "GRU", "LSTM")


def pool(text: str) -> list[str]:
    """Values as they are written, between | and ends of lines."""
    return [value for line in text.splitlines() for value in line.split("|")]


SIMPLE = pool(
    """None|True|False|-1|0|1|2|7|2**31|2**40|2**63|2**70|-2**63|0.0|0.5|-0.5|1.5|1e308|5e-324
float("nan")|float("inf")|-float("inf")|1j|""|"abc"|"auto"|"h"|"H"|"[red]"|"\\n"|b"x"|[]|()
{}|set()|[None]|[1, 2]|[0.5]|["a"]|[[1], [2, 3]]|[[]]|{"h": 0.1}|{"x": None}|{1: 2}
{"l0": {}}|{"l0": 3}|{"l0": {"x": 1}}|{"h": "a"}|(1, 2, 3)|object()|int|lambda *a, **k: None
lambda v: v|range(3)|iter([1])|elman.cells.gru|elman.cells.lstm|elman.GRU|elman.GRU(3, 4)
elman|...|NotImplemented|slice(1)|Exception()|torch.nn.Linear(3, 4)|torch.nn.Embedding(3, 4)
torch.float32|torch.int64|torch.strided|torch.device("cpu")|torch.device("meta")|"meta"
"cuda"|"cpu"|pathlib.Path("x")|numpy.ones(3)|numpy.float32(1)|numpy.float64("nan")
numpy.int64(2)|numpy.bool_(True)|numpy.array("a")|numpy.ones((5, 2, 3))
numpy.ones((5, 2, 3), dtype=object)|numpy.zeros(0)|frozenset({"tiling"})"""
)

TENSORS = pool(
    """torch.ones(())|torch.ones(3)|torch.ones(4)|torch.ones(2, 4)|torch.ones(1, 2, 4)
torch.ones(5, 2, 3)|torch.ones(5, 2, 3).double()|torch.ones(5, 2, 3).half()
torch.ones(5, 2, 3).long()|torch.ones(5, 2, 3).bool()
torch.ones(5, 2, 3).to(torch.complex64)|torch.ones(5, 2, 3, device="meta")
torch.ones(5, 2, 3).to_sparse()
torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])|torch.ones(0)
torch.ones(0, 2, 3)|torch.ones(5, 0, 3)|torch.ones(5, 2, 0)|torch.ones(5, 2)|torch.ones(2)
torch.ones(2, 5, 3)|torch.ones(5, 2, 3, requires_grad=True)
torch.nn.Parameter(torch.ones(3))|torch.full((5, 2, 3), float("nan"))
torch.quantize_per_tensor(torch.ones(5, 2, 3), 0.1, 0, torch.qint8)
pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])|torch.tensor([5, 5])
torch.tensor([9, -1])|torch.ones(5, 2, 1, 2, dtype=torch.int32)|torch.ones(1, 1, 1, 1, 1)
torch.ones(5, 2, 3).mT|torch.ones(2, 3).to(torch.float8_e4m3fn)
torch.ones(5, 2, 3).expand(5, 2, 3)|[torch.ones(2, 4)]
(torch.ones(1, 2, 4), torch.ones(1, 2, 4))|[torch.ones(1, 2, 4), torch.ones(1, 2, 4)]
(torch.ones(5, 2, 3), None)|torch.tensor([2**62, 1])|torch.ones(5, 2).bool()
torch.zeros(5, 2).int()"""
)


class Argument(NamedTuple):
    """One argument of a call: texts of right values; needed ones come first, in order."""

    name: str
    right: tuple[str, ...]
    needed: bool = False


class Target(NamedTuple):
    """What is called.

    Attributes:
        name: of the target, for counts.
        before: lines above the call, each with its choices.
        call: the function, as text.
        arguments: of the call.
        after: lines that use what it returned, ``made``.
        indent: whether the call stands in the formula of a cell.
    """

    name: str
    before: tuple[str, ...]
    call: str
    arguments: tuple[Argument, ...]
    after: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What became of a call: a kind, whether that is as it should be, and the error's text."""

    kind: str
    right: bool
    text: str = ""


def arguments(text: str) -> tuple[Argument, ...]:
    """``name=right|right; name?=right``: needed arguments, and with ? optional ones."""
    found: list[Argument] = []
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, right = part.partition("=")
        found.append(Argument(name.rstrip("?"), tuple(right.split("|")), not name.endswith("?")))
    return tuple(found)


_OPTIONS = """engine?="reference"|"c"|"auto"|"aten"|"deer"|"scan-backward"; heads?=2;
plan?=elman.PlanOptions("save", ["simd", "fusion"], 2)|elman.PlanOptions(without="tiling");
residual?=True; clip_gradient?=1.0; learn_initial?=True;
zoneout?=0.1|{"h": 0.1}; recurrent_dropout?=0.1; recurrent_dropout_per?="step"|"sequence";
weight_dropout?=0.1; device?="cpu"; dtype?=torch.float32|torch.float64; bidirectional?=True;
batch_first?=True; num_layers?=2; dropout?=0.1"""
_CALL = """state?=None; lengths?=[5, 3]|torch.tensor([2, 5]); reset?=torch.zeros(5, 2);
mask?=torch.ones(5, 2)"""
_MORE = (
    _CALL
    + """; reset_to?="zeros"|"initial"; masked_output?="held"|"zeros"; outputs?="states";
draws?=net.draws(5, 2)"""
)
_X = "x=torch.ones(5, 2, 3)"
_USED = ("repr(made)", "out = made(torch.ones(5, 2, 3, dtype=next(made.parameters()).dtype))")
_NETS = """elman.GRU(3, 4)|elman.LSTM(3, 4, bidirectional=True, batch_first=True)|elman.RNN(3, 4, 2)
elman.GRU(3, 4, zoneout=0.1)|elman.LSTM(3, 4, proj_size=2)|elman.GRU(3, 4, learn_initial=True)
elman.Recurrent(elman.cells.mgu, 3, 4)|elman.Recurrent(elman.cells.lstm, 3, 4, 2)
elman.Recurrent([elman.cells.gru, elman.cells.lstm], 3, [6, 4])|elman.Recurrent(fixed, 3, 4, S=2)
elman.Recurrent(two, 3, 4)|elman.Recurrent(elman.cells.gru, 3, 4, heads=2, bidirectional=True)
elman.Recurrent(elman.cells.gru, 3, 4, plan=elman.PlanOptions(checkpoint=2))
elman.Recurrent(scalar, 3, 4)""".replace("\n", "|")
_NET = f"net = {_NETS}"
_SIZES = "hidden_size?=4; input_size?=3"
_CELLS = "elman.cells.gru|elman.cells.lstm|elman.cells.mgu|fixed|two|scalar|optional"


def _targets() -> tuple[Target, ...]:
    """Everything public but the functions of formulas."""
    modules = [
        Target(f"elman.{name}", (), f"elman.{name}",
               arguments(f"input_size=3; hidden_size=4; bias?=False; {more}{_OPTIONS}"), _USED)
        for name, more in (
            ("RNN", 'nonlinearity?="relu"; '), ("GRU", ""), ("LSTM", "proj_size?=2; "))
    ]  # fmt: skip
    calls = [
        Target(f"elman.{name}.forward", (f"net = {made}",), "net", arguments(text))
        for name, made, text in (
            ("GRU", "elman.GRU(3, 4)|elman.GRU(3, 4, zoneout=0.1)|elman.GRU(3, 4, heads=2)",
             f"{_X}; {_MORE}".replace("state?=None", "state?=torch.ones(1, 2, 4)")),
            ("LSTM", "elman.LSTM(3, 4)",
             f"{_X}; {_MORE}".replace("state?=None",
                                      "state?=(torch.ones(1, 2, 4), torch.ones(1, 2, 4))")),
            ("Recurrent", "elman.Recurrent(fixed, 3, 4, S=2)",
             f"{_X}; static=torch.ones(2, 2); {_MORE}"),
            ("Recurrent", "elman.Recurrent(two, 3, 4)",
             f"x=(torch.ones(5, 2, 3), torch.ones(5, 2)); {_MORE}"),
            ("Recurrent", "elman.Recurrent([elman.cells.gru, elman.cells.lstm], 3, [6, 4])",
             f"{_X}; {_MORE}".replace(
                 "state?=None",
                 "state?=[torch.ones(2, 6), (torch.ones(2, 4), torch.ones(2, 4))]")),
            ("Recurrent", "elman.Recurrent(elman.cells.mgu, 3, 4, recurrent_dropout=0.1)",
             f"{_X}; {_MORE}".replace("state?=None", "state?=torch.ones(1, 2, 4)")),
        )
    ]  # fmt: skip
    layouts = '"torch"|"cudnn"|"keras"|"flax"|"nnx"|"equinox"|"onnx"'
    more = [
        Target("elman.Recurrent", (), "elman.Recurrent",
               arguments(f"cell={_CELLS}|[elman.cells.gru, elman.cells.lstm]; input_size=3; "
                         f"hidden_size=4|[4, 4]; {_OPTIONS}; S?=2; P?=2; g?=tanh"), _USED),
        Target("net.step", (_NET,), "net.step",
               arguments("x=torch.ones(2, 3); state?=None; reset?=torch.zeros(2); "
                         "mask?=torch.ones(2); static?=torch.ones(2, 2); "
                         "draws?=net.draws(5, 2)[0]")),
        Target("net.draws", (_NET,), "net.draws", arguments("steps=5; batch?=2"),
               ("out = net(torch.ones(5, 2, 3), draws=made)",)),
        Target("net.reset_parameters", (_NET,), "net.reset_parameters", ()),
        Target("elman.Stream", (), "elman.Stream",
               arguments(f"module={_NETS}; state?=None|torch.ones(1, 2, 4); "
                         "static?=torch.ones(2, 2)"),
               ("out = made(torch.ones(5, 2, 3))", "made.reset([0])")),
        Target("Stream.__call__", (_NET, "stream = elman.Stream(net)"), "stream",
               arguments(f"{_X}; reset?=torch.zeros(5, 2); mask?=torch.ones(5, 2)"),
               ("made.sum(); stream.reset([1])",)),
        Target("Stream.reset", (_NET, "stream = elman.Stream(net)", "stream(torch.ones(5, 2, 3))"),
               "stream.reset", arguments("samples?=[1]|torch.tensor([True, False])"),
               ("stream(torch.ones(5, 2, 3))",)),
        Target("elman.explain", (_NET,), "elman.explain",
               arguments(f"what=net; {_X}; {_MORE}; measure?=False"), ("str(made)",)),
        Target("elman.explain", (), "elman.explain",
               arguments(f"what={_CELLS}; {_SIZES}; steps?=5; batch?=2; dtype?=\"float64\"; "
                         'device?="cpu"; training?=False; tape?="save"; without?="tiling"; '
                         'engine?="reference"|"c"; measure?=False; S?=2'), ("str(made)",)),
        Target("elman.draw", (_NET,), "elman.draw",
               arguments(f'what=net|{_CELLS}; path?="net.svg"|"net.dot"; {_SIZES}; tape?="save"; '
                         "layer?=0; S?=2"), ("made.svg, made.dot",)),
        Target("drawing.draw_ops", (), "draw_ops", arguments('path?="ops.svg"')),
        Target("export.to_c", (_NET,), "elman.export.to_c",
               arguments('module=net; folder="c"; name?="model"')),
        Target("export.to_onnx", (_NET,), "elman.export.to_onnx",
               arguments('module=net; path="net.onnx"; lengths?=True; scan?=True')),
        Target("weights.save", (_NET,), "elman.weights.save",
               arguments(f"module=net; layout={layouts}")),
        Target("weights.load",
               ("net = elman.LSTM(3, 4)|elman.GRU(3, 4, 2)|elman.RNN(3, 4, bidirectional=True)",
                f"layout = {layouts}", "kept = elman.weights.save(net, layout)",
                "kept = kept|kept[1:] if isinstance(kept, list) else dict(list(kept.items())[1:]) "
                "if isinstance(kept, dict) else kept[1:]"),
               "elman.weights.load", arguments("module=net; arrays=kept; layout=layout")),
        Target("nn.choices", (_NET,), "elman.nn.choices", arguments("model=net")),
        Target("nn.counters", (_NET,), "elman.nn.counters", arguments("model=net")),
        Target("nn.report", (_NET,), "elman.nn.report", arguments("model=net")),
        Target("nn.pin", (_NET, "net(torch.ones(5, 2, 3))", "record = elman.nn.choices(net)",
                          "record = record|{k: {s: {} for s in v} for k, v in record.items()}|"
                          "{k: {s: None for s in v} for k, v in record.items()}|"
                          "{k: {s: {'engine': 7} for s in v} for k, v in record.items()}"),
               "elman.nn.pin", arguments("model=net; choices=record"),
               ("net(torch.ones(5, 2, 3))",)),
        Target("elman.accelerate", (), "elman.accelerate",
               arguments("model=torch.nn.Sequential(torch.nn.GRU(3, 4))|torch.nn.LSTM(3, 4)"),
               ("made.eval(); elman.restore(made)",)),
        Target("elman.restore", (), "elman.restore",
               arguments("model=elman.accelerate(torch.nn.GRU(3, 4))|torch.nn.LSTM(3, 4)")),
        Target("elman.using", (), "elman.using", arguments('engine?="reference"|"c"'),
               ("with made: elman.GRU(3, 4)(torch.ones(5, 2, 3))",)),
        Target("elman.deer", (), "elman.deer",
               arguments("step=lambda y, x: torch.tanh(0.5 * y + x); y0=torch.zeros(2, 3); "
                         'x=torch.ones(5, 2, 3); solver?="newton"|("quasi", "picard"); '
                         'guess?="zeros"|"first"|torch.zeros(5, 2, 3); budget?=10000; '
                         "report?=lambda v: None")),
        Target("elman.linear_scan", (), "elman.linear_scan",
               arguments("a=torch.ones(5, 2, 3)|torch.ones(5, 2, 3, 3); b=torch.ones(5, 2, 3); "
                         "y0?=torch.ones(2, 3)")),
        Target("LinearCrossEntropyLoss", (), "elman.LinearCrossEntropyLoss",
               arguments("in_features=4; num_classes=7; bias?=True; "
                         "tie?=torch.nn.Embedding(7, 4); weight?=torch.ones(7); "
                         'ignore_index?=-1; label_smoothing?=0.1; reduction?="sum"|"none"; '
                         'device?="cpu"; dtype?=torch.float32; out_features?=()'),
               ("repr(made); made(torch.ones(5, 2, 4), torch.ones(5, 2).long())",)),
        Target("LinearCrossEntropyLoss.forward",
               ("net = elman.LinearCrossEntropyLoss(4, 7)",), "net",
               arguments("input=torch.ones(5, 2, 4); target=torch.ones(5, 2).long()")),
        Target("LinearCrossEntropyLoss.logits",
               ("net = elman.LinearCrossEntropyLoss(4, 7)",), "net.logits",
               arguments("x=torch.ones(5, 2, 4)")),
        Target("elman.measure", (), "elman.measure",
               arguments(f"cell={_CELLS}; input_size?=3; hidden_size?=4; steps=5; batch=2; "
                         'dtype?="float64"; training?=False; engine?="reference"|"c"; '
                         "seconds=0.01; S?=2"), ("str(made)",)),
        Target("elman.load", (), "elman.load", arguments('path=run; weights?="last"|"best"'),
               ("made.sample(3)",)),
        Target("Trained.sample", ("trained = elman.load(run)",), "trained.sample",
               arguments('length=3; prompt?="the"; temperature?=0.5|0; seed?=3')),
        Target("elman.bound_cell", (), "elman.bound_cell",
               arguments(f"cell={_CELLS}; options={{}}; heads?=2; "
                         "changes?=()|[('Zoneout', {'share': 0.1})]"), ("made.graph",)),
        Target("elman.safe_globals", (), "elman.safe_globals", ()),
        Target("Cell.with_options", (f"cell = {_CELLS}",), "cell.with_options",
               arguments("g?=tanh"), ("made.graph",)),
        Target("Cell.with_heads", (f"cell = {_CELLS}",), "cell.with_heads", arguments("heads=2"),
               ("made.graph; elman.Recurrent(made, 3, 4)",)),
        Target("Cell.bind", (f"cell = {_CELLS}",), "cell.bind",
               arguments("input_size=3; hidden_size=4; S?=2")),
        Target("Cell.__call__", (), "elman.cells.gru", arguments("x=torch.ones(3); h=1.0")),
    ]  # fmt: skip
    return (*modules, *calls, *more)


TARGETS = _targets()

_HEAD = (
    *('input="x[I]"|"x[I], m"|"x[3]"|"x"|"x[2I]"', 'state="h[H]"|"h[H], c[H]"|"h"|"h[4]"|"h[2K]"'),
    *('weights="W[H, I], R[H, H], b[H]"|"W[H, I], R[H, H]"|"b[H]"', 'static="s[S]"'),
    *('constants="A[H, H]"|"A[H]"|"A"', 'output="y[H]"|"y[H], s"'),
    *('init={"W": 0.5}|{"R": "orthogonal"}|{"b": torch.ones(4)}|{"h": 1.0}', 'source="none"'),
)
_VALUES = pool(
    """x|h|v|b|W|R|W.T|W @ x|R @ h|sum(h)|h > 0|0.5|1|split(h, 2)|h.shape|concat(h, h)"""
)
_OPERATORS = pool(
    """{} @ {}|{} + {}|{} * {}|{} / {}|{} ** {}|{} % {}|{} < {}|{} == {}|{} // {}|{} & {}"""
)
_UNARY = pool(
    """-{}|~{}|{}.T|{}[0]|abs({})|float({})|len({})|str({})|bool({})|round({}, 2)|{}.shape[0]
{}.nope|[*{}]|{}()|max({}, 0)|torch.tanh({})|numpy.tanh({})|math.tanh({})
elman.cells.gru({})|isinstance({}, int)|range({})|{}.sum()|{}.mean(-1)|{} and 1|sorted({})
hash({})|copy({})"""
)
_OF_OPS = "v|v, 2|v, 0.5|v, b|v, b, 1.0|h, x|v, groups=2|v, dim=-1||v, v, v, v|W, W|v, p=0.1"
_WORDS = pool(
    """-1|0|1|2|abc||nan|inf|-inf|1e400|99999999999999999999|2147483648|None|[red]|/nonexistent/a
/dev/null|.|-|H=2|H=abc|=|é|gru|lstm|file.py:cell|1x1|0x0|float16|c|reference|cuda|true|{}"""
)
_SMALL = "--hidden=8 --embedding=4 --layers=1 --batch=4 --bptt=8 --steps=1 --validation-chars=50 "
_SMALL += "--engine=reference --accelerator=cpu --threads=1 --no-compare --out=runs --data=TEXT"
_COMMANDS = {
    "train": (_SMALL, "dropout zoneout recurrent-dropout weight-dropout lr warmup schedule "
              "optimizer momentum window step-size weight-decay clip seed minutes validate-every "
              "precision checkpoint-every log-every devices nodes sync-every timeout on-nonfinite "
              "level preset vocabulary embedding-dropout uniform epochs temperature resume cell"),
    "sample": ("RUN --length=3", "length prompt temperature seed last"),
    "runs": ("RUNS", "out report"),
    "resume": ("RUN --no-compare", ""),
    "export": ("gru --c=c --hidden=4", "c onnx hidden inputs layers heads dim weights name last"),
    "bench": ("gru --steps=2 --batch=1 --hidden=4 --seconds=0.01 --engine=reference",
              "steps batch hidden inputs dim dtype engine threads seconds"),
    "tune": ("gru --shape=2x1 --hidden=4 --engine=reference",
             "shape hidden inputs dim dtype device engine layers workers interconnect"),
    "draw": ("gru gru.svg --hidden=4", "hidden inputs dim tape ops"),
    "explain": ("gru --hidden=4 --steps=2 --batch=1 --no-measure",
                "hidden inputs steps batch dim dtype device tape without engine stage"),
    "doctor": ("", ""),
}  # fmt: skip


class RandomCall(NamedTuple):
    """A drawn call.

    Attributes:
        target: whose arguments they are.
        text: Python text, or the words of a command, by lines.
    """

    target: str
    text: str

    @property
    def is_command(self) -> bool:
        """Whether it is one of the command line."""
        return self.target.startswith("elman ")

    @property
    def limit_s(self) -> float:
        """How long it may take: longer where it measures, on a machine that may be busy."""
        return COMMAND_LIMIT_S if self.is_command or self.target == "elman.measure" else LIMIT_S


def random_call(seed: int) -> RandomCall:
    """The call of a seed."""
    rng = random.Random(seed)
    while True:
        call = _drawn(rng)
        if call.is_command or _is_python(call.text):
            return call


def _is_python(text: str) -> bool:
    try:
        compile(text, "<call>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _drawn(rng: random.Random) -> RandomCall:
    """Any call."""
    kind = rng.random()
    if kind < 0.13:
        return _formula(rng)
    if kind < 0.23:
        return _declaration(rng)
    if kind < 0.29:
        return _command(rng)
    target = rng.choice(TARGETS)
    lines = [_one_of(rng, line) for line in target.before]
    lines.append(f"made = {target.call}({_given(rng, target.arguments)})")
    if not rng.randrange(3):
        lines = [f'with elman.using(engine="{rng.choice(("reference", "c"))}"):',
                 *(f"    {line}" for line in lines)]  # fmt: skip
    return RandomCall(target.name, "\n".join([*lines, *target.after]))


def _one_of(rng: random.Random, line: str) -> str:
    """A line, with one of its choices behind the first =."""
    name, equals, values = line.partition(" = ")
    return f"{name} = {rng.choice(values.split('|'))}" if equals else line


def _wrong(rng: random.Random) -> str:
    return rng.choice(SIMPLE if rng.random() < 0.55 else TENSORS)


def _given(rng: random.Random, known: Sequence[Argument]) -> str:
    """Arguments of a call, as text: right ones, of which some are made wrong."""
    some = [one for one in known if one.needed or rng.random() < 0.15]
    values = {one.name: rng.choice(one.right) for one in some}
    for _ in range(rng.choice((0, 0, 1, 1, 1, 1, 1, 2, 2, 3)) if known else 0):
        values[rng.choice(known).name] = _wrong(rng)
    if values and not rng.randrange(40):
        del values[rng.choice([*values])]
    if not rng.randrange(25):
        values[rng.choice(("nope", "states", "hidden", "P", "dim", "_"))] = _wrong(rng)
    texts: list[str] = []
    placed = rng.random() < 0.7
    for one in known:  # in order, so that the first may stand without their names
        placed = placed and one.needed and one.name in values
        if one.name in values:
            value = values.pop(one.name)
            texts.append(value if placed else f"{one.name}={value}")
    return ", ".join([*texts, *(f"{name}={value}" for name, value in values.items())])


def _formula(rng: random.Random) -> RandomCall:
    """A cell whose formula calls a function of elman.ops, or an operator, with random operands."""

    def operand() -> str:
        return rng.choice(_VALUES) if rng.random() < 0.8 else _wrong(rng)

    way = rng.random()
    if way < 0.25:
        name, text = "operator", rng.choice(_OPERATORS).format(operand(), operand())
    elif way < 0.4:
        name, text = "operator", rng.choice(_UNARY).format(operand())
    else:
        name = rng.choice(ops.__all__)
        if rng.random() < 0.4:
            given = rng.choice(_OF_OPS.split("|"))
        else:
            given = ", ".join([operand() for _ in range(rng.choice((1, 1, 2, 2, 3)))])
            if not rng.randrange(4):
                key = rng.choice(("groups", "eps", "per", "p", "like", "dim", "slope", "limit"))
                given += f", {key}={_wrong(rng)}"
        text = f"{name}({given})"
        name = f"ops.{name}"
    lines = (
        '@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")',
        "def some(x, h, W, R, b):",
        "    v = tanh(W @ x + R @ h + b)",
        f"    value = {text}",
        "    return v * (value[0] if isinstance(value, (list, tuple)) else value)",
        "net = elman.Recurrent(some, 3, 4, heads=2)|net = elman.Recurrent(some, 3, 4)",
        'with elman.using(engine="reference"): net(torch.ones(5, 2, 3))[0].sum().backward()',
    )
    chosen = [rng.choice(line.split("|")) if line.startswith("net") else line for line in lines]
    return RandomCall(name, "\n".join(chosen))


def _declaration(rng: random.Random) -> RandomCall:
    """A cell with a random signature."""
    named: list[str] = []
    for part in _HEAD:
        name, _, right = part.partition("=")
        usual = name in ("input", "state", "weights")
        if rng.random() < (0.9 if usual else 0.2):
            first, *others = right.split("|")
            value = first if rng.random() < 0.6 or not others else rng.choice(others)
            value = _wrong(rng) if rng.random() < 0.12 else value
            if rng.random() < 0.06 and value.startswith('"'):
                at = rng.randrange(len(value) + 1)
                value = value[:at] + rng.choice('[],+ 3é"*') + value[at:]
            named.append(f"{name}={value}")
    if not rng.randrange(12):
        named.append(
            f"{rng.choice(('states', 'weight', 'inputs', 'nope', 'outputs'))}={_wrong(rng)}"
        )
    taken = (
        "x, h, W, R, b"
        if rng.random() < 0.7
        else rng.choice(
            (
                "x, h, b",
                "x, m, h, c, W, R, b",
                "x, s, h, W, R, b, A",
                "x, h, W, R, b, *, g",
                "*a, **k",
                "",
            )
        )
    )
    body = rng.choice(
        ("tanh(W @ x + R @ h + b)",) * 4 + ("None", "h, h", "1.0", "h", "[h]", "'h'", "(h,)")
    )
    if rng.random() < 0.15:
        taken += f", *, g={_wrong(rng)}"
        body = "tanh(W @ x + g * h)"
    lines = [f"@elman.cell({', '.join(named)})", f"def some({taken}):", f"    return {body}"]
    sizes = _given(rng, arguments("input_size=3; hidden_size=4; S?=2"))
    lines += [f"net = elman.Recurrent(some, {sizes})"]
    lines += ['with elman.using(engine="reference"): net(torch.ones(5, 2, 3))']
    return RandomCall("elman.cell", "\n".join(lines))


def _command(rng: random.Random) -> RandomCall:
    """Words of the command line."""
    name = rng.choice([*_COMMANDS])
    usual, options = _COMMANDS[name]
    words = usual.split()
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        known = [word.partition("=")[0] for word in words if "=" in word]
        known += [f"--{option}" for option in options.split()]
        if known and rng.random() < 0.8:
            option = rng.choice(known)
            words = [word for word in words if word.partition("=")[0] != option]
            words.append(f"{option}={rng.choice(_WORDS)}")
        elif words and rng.random() < 0.7:
            words[rng.randrange(len(words))] = rng.choice(_WORDS)
        else:
            words.append(rng.choice(_WORDS))
    return RandomCall(f"elman {name}", "\n".join([name, *words]))


_CELLS_OF_CALLS = """
@elman.cell(input="x[I]", static="s[S]", state="h[H]", weights="W[H, I], U[H, S], R[H, H]")
def fixed(x, s, h, W, U, R):
    return tanh(W @ x + U @ s + R @ h)

@elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
def two(x, m, h, W, R):
    return tanh(m * (W @ x) + R @ h)

@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], b[H]", output="y")
def scalar(x, h, W, b):
    after = tanh(W @ x + b * h)
    return sum(after), after

@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]", constants="A[H, H]",
            init={"A": "eye"})
def optional(x, h, W, R, A, *, g=tanh, scale=1.0):
    return g(W @ x + scale * (R @ h) + A @ h)
"""


class Place(NamedTuple):
    """Where calls run: a folder of their own, a trained run, a text to train on."""

    folder: Path
    run: Path
    text: Path


def _executed(file: str, text: str, names: dict[str, Any]) -> None:
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(text, file, "exec", dont_inherit=True), names)


def _names(place: Place) -> dict[str, Any]:
    names: dict[str, Any] = {name: getattr(ops, name) for name in ops.__all__}
    names |= {"elman": elman, "torch": torch, "numpy": numpy, "math": math, "pathlib": pathlib}
    names |= {"draw_ops": draw_ops, "run": str(place.run), "copy": copy, "__name__": "calls"}
    names["pack_sequence"] = torch.nn.utils.rnn.pack_sequence
    _executed("<cells>", _CELLS_OF_CALLS.lstrip(), names)
    return names


class OverTimeError(BaseException):
    """A call took longer than the limit."""


@contextmanager
def limited(seconds: float) -> Generator[None]:
    """Inside, OverTimeError is raised after so many seconds."""

    def over(*_: Any) -> None:
        raise OverTimeError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def verdict(call: RandomCall, place: Place) -> Verdict:
    """Run a call, and judge how it ended.

    Right is: it returns; an error of elman's that is not of its own graphs; an error that is raised
    outside of elman's files: Python's TypeError of arguments that do not bind, and those of the
    call's own text and functions; too little memory for a size that is none; and of a drop-in, what
    torch's layer raises in words of its own, or raises too, given the same.
    """
    said = io.StringIO()
    with contextlib.chdir(place.folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limited(call.limit_s):
                if call.is_command:
                    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                        main(words_of(call, place))
                else:
                    _executed("<call>", call.text, _names(place))
        except OverTimeError:
            return Verdict("over time", False, "took too long")
        except SystemExit as left:
            return _of_command(left.code, said.getvalue())
        except BaseException as error:
            return _of_error(error, call, place)
    return Verdict("returned", True)


def words_of(call: RandomCall, place: Place) -> list[str]:
    """The words of a command, with the places of this machine."""
    known = {"TEXT": place.text, "RUNS": place.run.parent, "RUN": place.run}
    words: list[str] = []
    for word in call.text.split("\n"):
        option, equals, value = word.rpartition("=")
        words.append(f"{option}{equals}{known.get(value, value)}")
    return words


def _of_command(code: Any, said: str) -> Verdict:
    """Of a command: its status, and no traceback."""
    reason = code != 1 or "error:" in said or "failed" in said
    right = code in (0, 1, 2, None) and reason and "Traceback" not in said
    return Verdict(f"exit {code or 0}", right, said[-800:])


def _of_error(error: BaseException, call: RandomCall, place: Place) -> Verdict:
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame.filename for frame in frames]
    last, name = files[-1], type(error).__name__
    text = f"{name}: {error}\n" + "\n".join(
        f"    {frame.filename.rpartition('src/')[2]}:{frame.lineno} {frame.name}: {frame.line}"
        for frame in frames[-4:]
    )
    if isinstance(error, errors.ElmanError):
        return Verdict(name, not isinstance(error, OF_OURS) and bool(str(error)), text)
    inner = files[len(files) - files[::-1].index("<call>") :] if "<call>" in files else files
    own = last in ("<call>", "<cells>") or str(error).startswith("forward() ")
    if own or not any(
        file.startswith(OURS) for file in inner
    ):  # of Python, at the call, or its own
        return Verdict(f"{name} of the call", True, text)
    if isinstance(error, RuntimeError | MemoryError) and "can't allocate memory" in str(error):
        return Verdict("memory", True, text)
    of_layers = last.endswith("torch/nn/modules/rnn.py") and isinstance(error, WORDS)
    if of_layers or _as_torch(error, call, place):
        return Verdict(f"{name} as torch's", True, text)
    return Verdict(name, False, text)


class _Torch:
    """elman with torch's own layers in place of the drop-ins, given what torch's take."""

    def __init__(self) -> None:
        for name in DROP_INS:
            setattr(self, name, _of_torch(getattr(torch.nn, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(elman, name)


def _of_torch(layer: Any) -> Any:
    """torch's layer, with elman's names of arguments, of which its own options are left out."""

    class Theirs(layer):
        def __init__(self, *values: Any, **named: Any) -> None:
            own = Options.__annotations__
            super().__init__(*values, **{k: v for k, v in named.items() if k not in own})

        def forward(self, x: Any, state: Any = None, **_: Any) -> Any:
            return super().forward(x, state)

    return Theirs


def _as_torch(error: BaseException, call: RandomCall, place: Place) -> bool:
    """Whether torch's layer raises the same, given the same."""
    if not any(f"elman.{name}(" in call.text for name in DROP_INS):
        return False
    try:
        with contextlib.chdir(place.folder), limited(LIMIT_S):
            _executed("<torch>", call.text, _names(place) | {"elman": _Torch()})
    except OverTimeError:
        return False
    except BaseException as theirs:
        return type(theirs) is type(error) and "<torch>" in [
            frame.filename for frame in traceback.extract_tb(theirs.__traceback__)
        ]
    return False
