"""Makes the formula of a step: traces, reads and judges it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elman.errors import ElmanError, StepError
from elman.nn.engine_choice import serves
from elman.steps import judge
from elman.steps.call import Call, is_twice, sized
from elman.steps.closure import Walk, restored
from elman.steps.reading.read import read
from elman.steps.reading.reading import Reading
from elman.steps.recording.memory import plain_value, some_value
from elman.steps.recording.recorder import record
from elman.steps.recording.tape import BATCHES, Tape
from elman.steps.running import Program


@dataclass
class StepFormula:
    """A formula, or why there is none.

    Attributes:
        program: of the formula; None: there is none.
        reason: why.
        captured: where the tensors that the formula reads stand among those of the walk.
        read: numbers that the step read from tensors: where these stand, and what they were.
        y_spec: of the tree of outputs.
        shapes: of the call, where samples are not seen: it is for these alone.
        graded: whether gradients were compared, too.
    """

    program: Program | None
    reason: StepError | None = None
    captured: Sequence[int] = ()
    read: list[tuple[int, Any]] = field(default_factory=list)
    y_spec: Any = None
    shapes: list[torch.Size] | None = None
    graded: bool = False


def trace_step(call: Call, walk: Walk, others: Sequence[StepFormula]) -> StepFormula:
    """Trace, read and judge a step.

    Args:
        walk: through what it closes over.
        others: formulas of other calls; an equal one serves.
    """
    reason: StepError | None = None
    for batched, samples, second in _attempts(call, walk):
        try:
            tape = _traced(call, walk, call.batch if batched else 0, samples, second)
            return _read(call, walk, tape, batched, others)
        except StepError as error:
            reason = reason or error
        except Exception as error:  # an error of ours ends in a plain loop, too
            text = str(error).partition("\n")[0]
            known = isinstance(error, ElmanError)
            reason = reason or StepError(text if known else f"{type(error).__name__}: {text}")
    return StepFormula(None, reason)


def in_own_thread(work: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, where none of torch's modes, transforms and hooks
    of this one are."""
    graded, context = torch.is_grad_enabled(), copy_context()

    def run() -> Any:
        with torch.set_grad_enabled(graded):
            return context.run(work)

    with ThreadPoolExecutor(1, "elman-steps") as thread:
        return thread.submit(run).result()


def types_under_autocast(call: Call, walk: Walk, half: torch.dtype) -> list[torch.dtype | None]:
    """The types of what a step returns."""
    restore = restored(walk)
    try:
        with torch.autocast(call.carry[0].device.type, half), torch.random.fork_rng(devices=[]):
            given = [[plain_value(c) for c in call.carry], [plain_value(x[0]) for x in call.xs]]
            after, ys = call.step(*given)
    finally:
        restore()
    return [leaf.dtype if isinstance(leaf, Tensor) else None for leaf in (*after, *ys)]


def _attempts(call: Call, walk: Walk) -> list[tuple[bool, list[Tensor], bool]]:
    """Ways to see samples: the first axis of states, or the second where both may be it, with and
    without a row for each sample in tensors that are closed over; or none at all."""
    tensors = [t for t in walk.tensors if t.dim() > 1 and type(t) is Tensor]
    rows = [t for t in tensors if t.shape[0] == call.batch]
    ways: list[tuple[bool, list[Tensor], bool]] = []
    if any(c.dim() for c in call.carry):
        twice = any(is_twice(c.shape, call.batch) for c in call.carry)
        for second in (False, True) if twice else (False,):
            ways.append((True, [], second))
            if rows:
                ways.append((True, rows, second))
    ways.append((False, [], False))
    return ways


def _traced(call: Call, walk: Walk, batch: int, samples: Sequence[Tensor], second: bool) -> Tape:
    """Record a step; what it changes of its own is put back.

    Raises:
        StepError: it cannot be recorded, or it changes what it reads.
    """

    def run(carry: Sequence[Any], x: Sequence[Any]) -> Any:
        after, ys = call.step(carry, x)
        return [*after], [*ys]

    def arguments(size: int) -> tuple[list[Tensor], list[Tensor]]:
        def like(value: Tensor, shape: Sequence[int]) -> Tensor:
            return some_value(value, sized(shape, batch, size, second) if batch else shape)

        return [like(c, c.shape) for c in call.carry], [like(x, x.shape[1:]) for x in call.xs]

    restore = restored(walk)
    try:
        with torch.random.fork_rng(devices=[]):
            for size in BATCHES:
                try:
                    tape = record(run, arguments, samples, size)
                    break
                except StepError:
                    if size == BATCHES[-1]:
                        raise
                    restore()
    finally:
        changed = restore()
    if changed:
        _check_changes(lambda: record(run, arguments, samples, tape.batch), tape, walk, changed)
    return tape


def _check_changes(
    again: Callable[[], Tape], tape: Tape, walk: Walk, changed: Mapping[str, tuple[Any, Any]]
) -> None:
    """Check that what a step changes of its module has no effect on its next call: that it is
    written before it is read.

    Args:
        again: records the step.
        changed: what it was, and became.
    """
    kept = {id(t) for t in tape.captured.values()}
    pairs, names = changed.values(), ", ".join(sorted(changed))
    hint = "give it to the step as a state, and return it"
    if any(id(old) in kept or not isinstance(new, Tensor) for old, new in pairs):
        raise StepError(f"the step changes {names} of what it closes over", hint)
    differs = True
    restore = restored(walk)
    try:
        with torch.random.fork_rng(devices=[]):
            differs = not again().same_as(again())
    except StepError:
        pass
    finally:
        restore()
    if differs:
        raise StepError(f"the step changes {names} of its module, and reads it", hint)


def _read(
    call: Call, walk: Walk, tape: Tape, batched: bool, others: Sequence[StepFormula]
) -> StepFormula:
    """Read a tape, or find the program of one that is equal, and judge it."""
    places = {id(tensor): at for at, tensor in enumerate(walk.tensors)}
    for tensor in tape.captured.values():
        if id(tensor) not in places:
            raise StepError(
                f"it reads a tensor {[*tensor.shape]} that elman cannot find again",
                "close over it, or give it as an input",
            )
    captured = [places[id(tensor)] for tensor in tape.captured.values()]
    reads = [(places[id(tensor)], number) for tensor, number in tape.read if id(tensor) in places]
    graded = torch.is_grad_enabled()
    shapes = None if batched else [leaf.shape for leaf in call.leaves]
    formula = StepFormula(None, None, captured, reads, call.y_spec, shapes, graded)
    for other in others:  # what changed is no part of the formula
        like = other.program
        if like is None or other.shapes != shapes or like.reading.tape.places or tape.places:
            continue
        if like.reading.tape.same_as(tape):
            formula.program = like
            if other.graded >= graded:
                return formula
    names = {n: _word(walk.names[at]) for n, at in zip(tape.captured, captured)}
    name = getattr(call.root, "__name__", "") or type(call.root).__name__
    name = name if name.isidentifier() else "step"

    def read_again() -> Reading:
        return read(tape, name, names)

    if formula.program is None:
        floats = [c for c in call.carry if c.is_floating_point()]
        dtype = floats[0].dtype if floats else torch.get_default_dtype()
        fused = not floats or serves(floats[0].device.type, dtype)  # else of more digits
        how = (dtype,) if fused else (torch.float32, dtype)
        formula.program = Program(read_again(), call.engine, *how)
    numbers = dict(zip(tape.captured, captured))  # of indices, which reading finds
    reads += [(numbers[n], tape.captured[n].clone()) for n in tape.places]
    tensors = [walk.tensors[at] for at in captured]
    restore = restored(walk)
    try:
        judge.check(judge.Case(call, read_again, formula.program, tensors))
    finally:
        restore()
    tape.forget()
    return formula


def _word(name: str) -> str:
    word = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return word if word and not word[0].isdigit() else f"w_{word}"
