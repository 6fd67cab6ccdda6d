"""Make the prints of docs/tour.md anew: ``python docs/tour.py`` (needs a C compiler).

One call is followed, ``elman.GRU(3, 5)(x)``, and every print is of what that very call handed on.
What depends on the machine is left out: C is spelled for the instruction set ``scalar``, and in the
record such facts are an ellipsis.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import elman
from elman.engines.base import Job
from elman.engines.c.compilation.isa import SCALAR
from elman.engines.c.text.emit import Emitter
from elman.engines.call import Call
from elman.ir.printer import show_backward, show_graph, show_step
from elman.nn import choices
from elman.nn.execute import layer
from elman.nn.execute.group import Group
from elman.nn.execute.layer import Runner
from elman.passes.names import step_names
from elman.plan.printer import program_names, show_program
from elman.tuning.choose import Choice
from elman.tuning.request import Request

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from lowered_dump import show_direction

PAGE = Path(__file__).with_name("tour.md")
PRINT = re.compile(r"(<!-- print: (\w+) -->\n```(\w+)\n)(.*?)(```\n)", re.DOTALL)
OF_THE_MACHINE = ("plan", "isa", "schedule")  # facts of a record


@contextmanager
def noted(owner: Any, name: str) -> Iterator[list[tuple[tuple[Any, ...], Any]]]:
    """What a function is given and what it returns, call by call, while it is looked at."""
    function, notes = getattr(owner, name), []

    def noting(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        notes.append((args, result))
        return result

    with mock.patch.object(owner, name, noting):
        yield notes


def prints() -> dict[str, str]:
    """Make the call, and print each stage of it: name -> text."""
    net = elman.GRU(3, 5, engine="c")
    x = torch.zeros(7, 2, 3)
    with (
        elman.using(engine="c"),  # whatever the environment asks for
        noted(Group, "bind") as binds,
        noted(Runner, "request") as requests,
        noted(layer, "choose") as chosen,
    ):
        net(x)
    ((_, (call,), engine, (rules,), _), _), (_, request) = binds[0], requests[0]
    (job, *_), choice = chosen[0]
    return {
        "call": _call(call, engine, rules),
        "request": _request(net.runners["l0"], request),
        **_stages(job, choice),
        "record": _record(choices(net)),
    }


def _call(call: Call, engine: str, rules: tuple[Any, ...]) -> str:
    groups = {"inputs": call.inputs, "states": call.states, "weights": call.weights}
    lines = [
        f"{name:<8} {', '.join(str([*tensor.shape]) for tensor in group)}"
        for name, group in groups.items()
    ]
    return "\n".join([*lines, str(call.form), f"engine={engine!r}, rules={rules}"])


def _request(runner: Runner, request: Request) -> str:
    fields = [f"    {name}={value!r}," for name, value in request._asdict().items()]
    return "\n".join(["Request(", *fields, ")", f"as text: {runner.show(request)}"])


def _stages(job: Job, choice: Choice) -> dict[str, str]:
    """The stages of ``elman.explain``, and the C, of a job and the kernel that was made of it."""
    kernel: Any = choice.kernel
    program = kernel.program
    hints = step_names(job.graph, job.pair.step)
    names = program_names(program, hints)
    emitter = Emitter(program, SCALAR)
    text, lowered = emitter.text(), show_direction(emitter.lowered.forward)
    return {
        "graph": show_graph(job.graph),
        "step": show_step(job.pair.step, names),
        "backward": show_backward(job.pair, names),
        "program": show_program(program, hints),
        "lowered": lowered[lowered.index("step") :],
        "step_c": _between(text, "{ const T *P", "stn(nx0"),
        "loop_c": _between(text, "for (long t0 = 0;", "last_states(c);"),
    }


def _between(text: str, first: str, last: str) -> str:
    """The lines of a text from one that has ``first`` in it to the next that has ``last``."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if first in line)
    end = next(at for at in range(start, len(lines)) if last in lines[at])
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def _record(found: dict[str, Any]) -> str:
    """``choices`` as JSON, without what depends on the machine."""
    text = json.dumps(found, indent=2)
    return re.sub(rf'("(?:{"|".join(OF_THE_MACHINE)})": )"[^"]*"', r'\1"…"', text)


def filled(page: str, made: dict[str, str]) -> str:
    """A page with its prints made anew.

    Raises:
        ValueError: a print has no place on the page, or a place no print.
    """
    places = [match[2] for match in PRINT.finditer(page)]
    if sorted(places) != sorted(made):
        raise ValueError(f"the page has places for {sorted(places)}, prints are {sorted(made)}")
    return PRINT.sub(lambda match: f"{match[1]}{made[match[2]].rstrip()}\n{match[5]}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8"), prints()), "utf-8")
