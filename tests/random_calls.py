"""Calls of everything public with random arguments, right and wrong ones, as texts to be run.

A call is Python text of a few lines, drawn from a seed, so that it can be pasted; or words of the
command line. It begins as an example: those of docstrings, and ``MORE``. Arguments of its calls are
then replaced, left out and added; most are right, so that the wrong ones are looked at in depth.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import linecache
import math
import pathlib
import random
import signal
import textwrap
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
from elman import errors, export, ops, weights
from elman.cli import main
from elman.nn.modules.layer_options import Options

LIMIT_S = 30.0  # of a call
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


def example(thing: Any) -> str:
    """The lines of a docstring's example."""
    found = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
    return "".join(each.source for each in found).replace('"runs/first"', "run")


# what docstrings have no example of: methods, calls with their options, odd modules and cells
_CALL = "net(torch.ones(5, 2, 3), lengths=[5, 3], reset=torch.zeros(5, 2), mask=torch.ones(5, 2))"
_PIN = "net(torch.ones(5, 2, 3)); record = elman.nn.choices(net)\nelman.nn.pin(net, record)"
MORE = {
    **{
        f"calls of {net.partition('(')[0]} {place}": f"net = elman.{net}\n{_CALL}"
        for place, net in enumerate(
            (
                "GRU(3, 4, zoneout=0.1)",
                "LSTM(3, 4, bidirectional=True, batch_first=True)",
                "LSTM(3, 4, proj_size=2)",
                "Recurrent(elman.cells.mgu, 3, 4, recurrent_dropout=0.1)",
                "Recurrent([elman.cells.gru, elman.cells.lstm], 3, [6, 4])",
                "Recurrent(elman.cells.gru, 3, 4, heads=2, plan=elman.PlanOptions(checkpoint=2))",
                "Recurrent(optional, 3, 4, learn_initial=True, A=torch.eye(4))",
                "Recurrent(scalar, 3, 4, outputs='states')",
            )
        )
    },
    "calls with inputs": "net = elman.Recurrent(two, 3, 4)\n"
    "net((torch.ones(5, 2, 3), torch.ones(5, 2)))",
    "calls with static inputs": "net = elman.Recurrent(fixed, 3, 4, S=2)\n"
    "net(torch.ones(5, 2, 3), static=torch.ones(2, 2))",
    "step": "net = elman.LSTM(3, 4)\nnet.step(torch.ones(2, 3), reset=torch.zeros(2))",
    "draws": "net = elman.GRU(3, 4, zoneout=0.1)\n"
    "net(torch.ones(5, 2, 3), state=torch.ones(1, 2, 4), draws=net.draws(5, 2))",
    "logits": "elman.LinearCrossEntropyLoss(4, 7).logits(torch.ones(5, 2, 4))",
    "pin": f"net = elman.GRU(3, 4)\n{_PIN}",
    "report": "net = elman.GRU(3, 4)\nelman.nn.counters(net); elman.nn.report(net)",
    "cells": "elman.Recurrent(elman.cells.gru.with_options(g=tanh).with_heads(2), 3, 4)\n"
    "elman.cells.gru.bind(3, 4); elman.cells.gru(x=torch.ones(3), h=1.0)",
    "explain": "net = elman.GRU(3, 4)\n"
    "elman.explain(net, torch.ones(5, 2, 3), lengths=[5, 3], measure=False).all",
}
EXAMPLES = MORE | {
    f"{place}{name}": example(getattr(room, name))
    for place, room in (("elman.", elman), ("export.", export), ("weights.", weights))
    for name in room.__all__
    if callable(getattr(room, name))
}
_OPTIONS = {  # right values of options that the examples do not have
    "engine": '"reference"|"c"|"auto"|"aten"|"deer"|"scan-backward"',
    "plan": 'elman.PlanOptions("save", ["simd", "fusion"], 2)|elman.PlanOptions(without="tiling")',
    "heads": "2", "residual": "True", "clip_gradient": "1.0", "learn_initial": "True",
    "zoneout": '0.1|{"h": 0.1}', "recurrent_dropout": "0.1", "recurrent_dropout_per": '"step"',
    "weight_dropout": "0.1", "device": '"cpu"', "dtype": "torch.float32|torch.float64",
    "bidirectional": "True", "batch_first": "True", "num_layers": "2", "dropout": "0.1",
    "bias": "False", "proj_size": "2", "tape": '"save"', "training": "False", "seed": "3",
    "solver": '"newton"|("quasi", "picard")', "guess": '"zeros"|"first"', "weights": '"best"',
    "y0": "torch.ones(5)", "label_smoothing": "0.1", "reduction": '"sum"|"none"', "layer": "0",
    "ignore_index": "-1", "input_size": "3", "hidden_size": "4", "steps": "5", "batch": "2",
    "state": "None", "lengths": "[5, 3]|torch.tensor([2, 5])", "reset_to": '"zeros"|"initial"',
    "mask": "torch.ones(5, 2)", "masked_output": '"held"|"zeros"', "outputs": '"states"',
    "static": '"s[S]"', "constants": '"A[H, H]"|"A[H]"|"A"', "output": '"y[H]"|"y[H], s"',
    "init": '{"W": 0.5}|{"R": "orthogonal"}|{"b": torch.ones(4)}|{"h": 1.0}', "source": '"none"',
}  # fmt: skip


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
_WORDS = pool(
    """-1|0|1|2|abc||nan|inf|-inf|1e400|99999999999999999999|2147483648|None|[red]|/nonexistent/a
/dev/null|.|-|H=2|H=abc|=|é|gru|lstm|file.py:cell|1x1|0x0|float16|c|reference|cuda|true|{}"""
)
_SMALL = "--hidden=8 --embedding=4 --layers=1 --batch=4 --bptt=8 --steps=1 --validation-chars=50 "
_SMALL += "--engine=reference --accelerator=cpu --threads=1 --no-compare --out=runs --data=TEXT"
_COMMANDS = {
    "train": (_SMALL, "dropout zoneout recurrent-dropout weight-dropout lr warmup schedule "
              "optimizer momentum weight-decay clip seed minutes validate-every "
              "precision checkpoint-every log-every devices nodes timeout on-nonfinite "
              "level preset vocabulary embedding-dropout uniform epochs temperature cell"),
    "sample": ("RUN --length=3", "length prompt temperature seed last"),
    "runs": ("RUNS", "out report"),
    "resume": ("RUN --no-compare", ""),
    "export": ("gru --c=c --hidden=4", "c onnx hidden inputs layers heads dim weights name last"),
    "bench": ("gru --steps=2 --batch=1 --hidden=4 --seconds=0.01 --engine=reference",
              "steps batch hidden inputs dim dtype engine threads seconds"),
    "tune": ("gru --shape=2x1 --hidden=4 --engine=reference",
             "shape hidden inputs dim dtype device engine layers workers interconnect"),
    "draw": ("gru gru.svg --hidden=4", "hidden inputs dim tape"),
    "explain": ("gru --hidden=4 --steps=2 --batch=1 --no-measure",
                "hidden inputs steps batch dim dtype device tape without engine stage"),
    "doctor": ("", ""),
}  # fmt: skip


class Verdict(NamedTuple):
    """What became of a call: a kind, whether that is as it should be, and the error's text."""

    kind: str
    right: bool
    text: str = ""


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
        return (
            COMMAND_LIMIT_S
            if self.is_command or self.target in ("elman.measure", "elman.tune")
            else LIMIT_S
        )


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
    if kind < 0.06:
        return _command(rng)
    if kind < 0.2:
        return _formula(rng)
    name = "elman.cell" if kind < 0.25 else rng.choice([*EXAMPLES])
    text = _changed(rng, EXAMPLES[name])
    if not rng.randrange(3):
        engine = rng.choice(("reference", "c"))
        text = f'with elman.using(engine="{engine}"):\n' + textwrap.indent(text, "    ")
    return RandomCall(name, text)


def _wrong(rng: random.Random) -> str:
    return rng.choice(SIMPLE if rng.random() < 0.55 else TENSORS)


def _changed(rng: random.Random, text: str, values: Sequence[str] = ()) -> str:
    """An example with other arguments; those of a formula may be ``values``."""
    tree = ast.parse(text)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 1, 1, 2, 2, 3))):
        call = rng.choice(_calls(tree))
        places: list[tuple[Any, Any]] = [(call.args, place) for place in range(len(call.args))]
        places += [(vars(keyword), "value") for keyword in call.keywords]
        if not places or rng.random() < 0.3:
            added = rng.choice(_taken(call) if rng.random() < 0.9 else ["nope", "states", "dim"])
            right = rng.choice(_OPTIONS.get(added, "None").split("|"))
            text = right if rng.random() < 0.6 else _wrong(rng)
            call.keywords.append(ast.keyword(added, _parsed(text)))
            continue
        holder, key = rng.choice(places)
        word = getattr(holder[key], "value", None)
        if key != "value" and not rng.randrange(15):
            del holder[key]
        elif isinstance(word, str) and rng.random() < 0.4:
            at = rng.randrange(len(word) + 1)
            holder[key] = ast.Constant(word[:at] + rng.choice('[],+ 3é"*') + word[at:])
        else:
            formula = values and rng.random() < 0.8
            holder[key] = _parsed(rng.choice(values) if formula else _wrong(rng))
    return ast.unparse(ast.fix_missing_locations(tree))


def _taken(call: ast.Call) -> list[str]:
    """Options that what is called takes, or a module's call."""
    path = ast.unparse(call.func).split(".")
    if path[0] != "elman" or not all(map(str.isidentifier, path)):
        return ["state", "lengths", "reset_to", "mask", "masked_output", "outputs"]
    called: Any = elman
    for part in path[1:]:
        called = getattr(called, part)
    parameters = inspect.signature(called).parameters
    others = Options.__annotations__ if "options" in parameters else {}
    return [name for name in _OPTIONS if name in {*parameters, *others}] or ["nope"]


def _calls(tree: ast.AST) -> list[ast.Call]:
    """Calls that are not torch's or Python's."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    others = {"isinstance", "len", "sorted", "str"}
    called = [(ast.unparse(call.func), call) for call in calls]
    return [call for name, call in called if not name.startswith("torch.") and name not in others]


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _formula(rng: random.Random) -> RandomCall:
    """A cell whose formula has an example of elman.ops, or an operator, with random operands."""

    def operand() -> str:
        return rng.choice(_VALUES) if rng.random() < 0.8 else _wrong(rng)

    way, name = rng.random(), rng.choice(ops.__all__)
    if way < 0.4:
        text = rng.choice(_OPERATORS if way < 0.25 else _UNARY).format(operand(), operand())
        name, line = "operator", f"value = {text}"
    else:
        line = _changed(rng, example(getattr(ops, name)), _VALUES)
        name, line = f"ops.{name}", line + "\n    value = " + line.partition(" = ")[0]
    sizes = rng.choice(("3, 4, heads=2", "3, 4"))
    text = f"""@elman.cell(input="x[I]", state="h[H], c[H]",
            weights="W[H, I], V[3H, I], R[H, H], M[H, I+H], b[H]")
def some(x, h, c, W, V, R, M, b):
    v = tanh(W @ x + R @ h + b)
    {line}
    return v * (value[0] if isinstance(value, (list, tuple)) else value), c
net = elman.Recurrent(some, {sizes})
with elman.using(engine="reference"): net(torch.ones(5, 2, 3))[0].sum().backward()"""
    return RandomCall(name, text)


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
    names |= {"run": str(place.run), "copy": copy, "__name__": "calls"}
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
