"""Finds the program of a step: one that was made for the same formula, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from elman.errors import ElmanError, InputError, StepError, StepWarning, warn
from elman.nn.engine_choice import autocast_type
from elman.steps import judge, plain
from elman.steps.closure import Walk, restored
from elman.steps.reading import Reading, read
from elman.steps.running import Program
from elman.steps.tape import BATCHES, Tape, plain_value, record, recording
from elman.torch_internals import autocast_enabled, pytree

Leaves = Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]
_MOST = 64  # formulas of one step
_warned: set[str] = set()


@dataclass
class Call:
    """One call of a loop.

    Attributes:
        step: of the trees of a carry and an input, returns those of the next carry and an output.
        root: what the user gave: it is walked.
        carry, xs: trees.
        options: of the layer.
        engine: a name, or ``auto``.
        steps: T.
    """

    step: Callable[[Any, Any], tuple[Any, Any]]
    root: Any
    carry: Any
    xs: Any
    options: Mapping[str, Any]
    engine: str
    steps: int


@dataclass
class Entry:
    """A formula, or why there is none.

    Attributes:
        seen: the step that was last called, with its walk; together, as threads read them.
        program: of the formula; None: there is none.
        reason: why.
        captured: where the tensors that the formula reads stand among those of the walk.
        read: numbers that the step read from tensors: where these stand, and what they were.
        y_spec: of the tree of outputs.
        shapes: of the call, where samples are not seen: it is for these alone.
        graded: whether gradients were compared, too.
        types: of the results, under autocast.
    """

    seen: tuple[Any, Walk | None]
    program: Program | None
    reason: StepError | None
    captured: list[int]
    read: list[tuple[int, Any]]
    y_spec: Any
    shapes: Any = None
    graded: bool = False
    types: Sequence[torch.dtype | None] = ()

    def holds(self, shapes: Any) -> bool:
        """Whether it is for arguments of such shapes."""
        return self.shapes is None or self.shapes == shapes

    def facts(
        self, call: Call, walk: Walk | None, carry: Sequence[Any], xs: Sequence[Any]
    ) -> tuple[list[Tensor], tuple[int, int]]:
        """The tensors that the formula reads, and T and B."""
        assert walk is not None, "of a program"
        tensors = walk.tensors
        batch = _batch_of(carry, xs) if self.shapes is None else 1
        return [tensors[at] for at in self.captured], (call.steps, batch)

    def unchanged(self, root: Any) -> Walk | None:
        """The walk of a step, if nothing has changed of what it closes over."""
        step, walk = self.seen
        same = step is root and walk is not None and walk.unchanged() and self._reads_alike(walk)
        return walk if same else None

    def follows(self, walk: Walk) -> bool:
        """Whether the formula of another walk is the same."""
        before = self.seen[1]
        same = before is not None and before.signature == walk.signature
        return same and self._reads_alike(walk)

    def _reads_alike(self, walk: Walk) -> bool:
        """Whether the numbers that the step reads from tensors are what they were."""
        return all(
            torch.equal(walk.tensors[at], value)
            if isinstance(value, Tensor)
            else walk.tensors[at].tolist() == value
            for at, value in self.read
        )


_LEAF = pytree.tree_structure(torch.zeros(()))


def _flat(tree: Any) -> tuple[list[Any], Any]:
    """Leaves and form of a tree."""
    return ([tree], _LEAF) if isinstance(tree, Tensor) else pytree.tree_flatten(tree)


def _whole(leaves: list[Any], spec: Any) -> Any:
    """The tree of leaves."""
    return leaves[0] if spec is _LEAF else spec.unflatten(leaves)


class Binder:
    """The formulas of steps."""

    def __init__(self) -> None:
        self._entries: dict[Any, list[Entry]] = {}

    def __deepcopy__(self, memo: Any) -> Binder:
        return Binder()

    def __reduce__(self) -> Any:
        return Binder, ()

    def run(self, call: Call) -> tuple[Any, Any]:
        """Run a loop: the trees of the last carry, and of the outputs [T, ..].

        Raises:
            StepError: the step cannot be read, and an engine is asked for by name.
        """
        carry, carry_spec = _flat(call.carry)
        xs, x_spec = _flat(call.xs)
        if not all(isinstance(leaf, Tensor) for leaf in carry):
            raise InputError("a leaf of the carry is no tensor", "torch.tensor(0.0)")
        if recording():
            return self._run_plain(call, None, carry, carry_spec, xs, x_spec)
        entry, walk = self._find(call, carry, carry_spec, xs, x_spec)
        if entry.program is None:
            return self._run_plain(call, entry.reason, carry, carry_spec, xs, x_spec)
        ends, ys = entry.program.run(xs, carry, *entry.facts(call, walk, carry, xs), call.options)
        if entry.program.counts and _too_large([*carry, *ends]):
            return self._run_plain(call, _LARGE, carry, carry_spec, xs, x_spec)
        if entry.types:
            cast = [v if t is None else v.to(t) for v, t in zip([*ends, *ys], entry.types)]
            ends, ys = cast[: len(ends)], cast[len(ends) :]
        return _whole(ends, carry_spec), _whole(ys, entry.y_spec)

    def layer_call(self, call: Call) -> tuple[Any, ...]:
        """The layer that runs a call, with its weights; x, the state and the options of its call.

        Raises:
            StepError: the step cannot be read.
        """
        carry, carry_spec = _flat(call.carry)
        xs, x_spec = _flat(call.xs)
        entry, walk = self._find(call, carry, carry_spec, xs, x_spec)
        if entry.program is None:
            assert entry.reason is not None, "there is a reason"
            raise entry.reason
        facts = entry.facts(call, walk, carry, xs)
        layer, x, state, weights, options = entry.program.enter(xs, carry, *facts, call.options)[0]
        return layer.with_weights(weights), x, state, options

    def _run_plain(
        self,
        call: Call,
        reason: StepError | None,
        carry: Any,
        carry_spec: Any,
        xs: Any,
        x_spec: Any,
    ) -> tuple[Any, Any]:
        if reason is not None and call.engine != "auto":
            raise reason
        if reason is not None and str(reason) not in _warned:
            warn(f"the step runs as a plain loop: {reason}", StepWarning)
            _warned.add(str(reason))
        spec: list[Any] = []
        step = _of_leaves(call.step, carry_spec, x_spec, spec)
        ends, ys = plain.run(step, carry, xs, call.steps, call.options)
        return carry_spec.unflatten(ends), spec[0].unflatten(ys)

    def _find(
        self, call: Call, carry: Any, carry_spec: Any, xs: Any, x_spec: Any
    ) -> tuple[Entry, Walk | None]:
        batch = _batch_of(carry, xs)
        half = autocast_type(carry[0].device.type) if autocast_enabled() and carry else None
        key = (
            half,
            carry_spec,
            x_spec,
            call.engine,
            batch == 1,
            *[(_shape(c.shape, batch), c.dtype, c.device.type) for c in carry],
            *[(_shape(x.shape[1:], batch), x.dtype, x.device.type) for x in xs],
        )
        entries = self._entries.setdefault(key, [])
        shapes = [value.shape for value in (*carry, *xs)]
        for entry in entries:
            if entry.holds(shapes) and (seen := entry.unchanged(call.root)) is not None:
                return entry, seen
        try:
            walk = Walk(call.root, batch)
        except StepError as error:
            return Entry((call.root, None), None, error, [], [], None), None
        for entry in entries:
            if entry.follows(walk) and entry.holds(shapes):
                entry.seen = call.root, walk
                return entry, walk
        given = carry, carry_spec, xs, x_spec
        entry = _apart(lambda: _make(call, walk, *given, entries))
        if half is not None:
            entry.types = _apart(lambda: _types_of(call, walk, *given, half))
        entries.insert(0, entry)
        del entries[_MOST:]
        return entry, walk


_LARGE = StepError("a state of whole numbers passes 2**24, which a formula rounds")


def _too_large(values: Sequence[Tensor]) -> bool:
    """Whether a whole number is none of float32."""
    whole = [v for v in values if not (v.is_floating_point() or v.dtype is torch.bool)]
    return any(v.numel() and bool((v.long().abs() >= 2**24).any()) for v in whole)


def _types_of(
    call: Call,
    walk: Walk,
    carry: Sequence[Tensor],
    carry_spec: Any,
    xs: Sequence[Tensor],
    x_spec: Any,
    half: torch.dtype,
) -> list[torch.dtype | None]:
    """The types of what a step returns under autocast."""
    step, restore = _of_leaves(call.step, carry_spec, x_spec, []), restored(walk)
    try:
        with torch.autocast(carry[0].device.type, half), torch.random.fork_rng(devices=[]):
            given = [[plain_value(c) for c in carry], [plain_value(x[0]) for x in xs]]
            after, ys = step(*given)
    finally:
        restore()
    return [leaf.dtype if isinstance(leaf, Tensor) else None for leaf in (*after, *ys)]


def _apart(make: Callable[[], Any]) -> Any:
    """Call a function in a thread of its own, where none of torch's modes, transforms and hooks
    of this one are."""
    graded, context = torch.is_grad_enabled(), copy_context()
    results: list[Any] = []

    def run() -> None:
        with torch.set_grad_enabled(graded):
            try:
                results.append(context.run(make))
            except BaseException as error:
                results.append(error)

    thread = Thread(target=run, name="elman-steps")
    thread.start()
    thread.join()
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


def _batch_of(carry: Sequence[Any], xs: Sequence[Any]) -> int:
    """B: the first axis of an input that some state has, too; or that of a state."""
    of_xs = [x.shape[1] for x in xs if x.dim() > 1]
    of_carry = [c.shape for c in carry if c.dim()]
    for size in of_xs:
        if any(size in shape[:2] for shape in of_carry):
            return size
    return of_carry[0][0] if of_carry else 1


def _shape(shape: Sequence[int], batch: int, size: Any = "B") -> tuple[Any, ...]:
    """A shape in which the axis of samples has another size: the first that has B."""
    at = next((axis for axis, n in enumerate(shape) if n == batch), None)
    return tuple(shape) if at is None else (*shape[:at], size, *shape[at + 1 :])


def _of_leaves(
    step: Callable[[Any, Any], tuple[Any, Any]], carry_spec: Any, x_spec: Any, spec: list[Any]
) -> Leaves:
    """The step as a function of leaves; the form of its outputs is put into ``spec``."""

    def of_leaves(carry: Sequence[Any], x: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        after, y = step(carry_spec.unflatten([*carry]), x_spec.unflatten([*x]))
        leaves, after_spec = pytree.tree_flatten(after)
        if after_spec != carry_spec and len(leaves) != carry_spec.num_leaves:
            raise StepError(
                f"the step returns a carry of the form {after_spec}, given {carry_spec}",
                "step(carry, x) returns (carry, y), the carry in the form it has",
            )
        ys, y_spec = _flat(y)
        spec[:] = [y_spec]
        return leaves, ys

    return of_leaves


def _make(
    call: Call,
    walk: Walk,
    carry: Sequence[Tensor],
    carry_spec: Any,
    xs: Sequence[Tensor],
    x_spec: Any,
    others: Sequence[Entry],
) -> Entry:
    """Trace, read and judge a step."""
    spec: list[Any] = []
    step = _of_leaves(call.step, carry_spec, x_spec, spec)
    batch = _batch_of(carry, xs)
    reason: StepError | None = None
    for batched, samples in _attempts(carry, walk, batch):
        try:
            tape = _traced(step, walk, carry, xs, batch if batched else 0, samples)
            entry = _entry(call, walk, tape, step, carry, xs, spec, batched, others)
        except StepError as error:
            reason = reason or error
            continue
        except Exception as error:  # an error of ours ends in a plain loop, too
            text = str(error).partition("\n")[0]
            known = isinstance(error, ElmanError)
            reason = reason or StepError(text if known else f"{type(error).__name__}: {text}")
            continue
        return entry
    return Entry((call.root, walk), None, reason, [], [], None)


def _attempts(carry: Sequence[Tensor], walk: Walk, batch: int) -> list[tuple[bool, list[Tensor]]]:
    """Ways to see samples: the first axis of states, with and without a row for each sample in
    tensors that are closed over; or none at all."""
    rows = [t for t in walk.tensors if t.dim() > 1 and t.shape[0] == batch and type(t) is Tensor]
    ways: list[tuple[bool, list[Tensor]]] = []
    if any(c.dim() for c in carry):
        ways.append((True, []))
        if rows:
            ways.append((True, rows))
    ways.append((False, []))
    return ways


def _traced(
    step: Leaves,
    walk: Walk,
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    batch: int,
    samples: Sequence[Tensor],
) -> Tape:
    """Record a step; what it changes of its own is put back.

    Raises:
        StepError: it cannot be recorded, or it changes what it reads.
    """

    def run(carry: Sequence[Any], x: Sequence[Any]) -> Any:
        after, ys = step(carry, x)
        return [*after], [*ys]

    def arguments(size: int) -> tuple[Any, ...]:
        def like(value: Tensor, shape: Sequence[int]) -> Tensor:
            shape = _shape(shape, batch, size) if batch else shape
            if value.is_floating_point():
                return torch.rand(shape, device=value.device, dtype=value.dtype)
            return torch.zeros(shape, device=value.device, dtype=value.dtype)

        return [like(c, c.shape) for c in carry], [like(x, x.shape[1:]) for x in xs]

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
        _check_changes(run, arguments, samples, tape, walk, changed)
    return tape


def _check_changes(
    run: Any,
    arguments: Any,
    samples: Any,
    tape: Tape,
    walk: Walk,
    changed: Mapping[str, tuple[Any, Any]],
) -> None:
    """Check that what a step changes of its module has no effect on its next call: that it is
    written before it is read."""
    kept = {id(t) for t in tape.captured.values()}
    pairs = changed.values()
    if any(id(old) in kept or not isinstance(new, Tensor) for old, new in pairs):
        raise StepError(
            f"the step changes {', '.join(sorted(changed))} of what it closes over",
            "give it to the step as a state, and return it",
        )
    differs = True
    restore = restored(walk)
    try:
        with torch.random.fork_rng(devices=[]):
            first = record(run, arguments, samples, tape.batch)
            again = record(run, arguments, samples, tape.batch)
        differs = not first.same_as(again)
    except StepError:
        pass
    finally:
        restore()
    if differs:
        raise StepError(
            f"the step changes {', '.join(sorted(changed))} of its module, and reads it",
            "give it to the step as a state, and return it",
        )


def _entry(
    call: Call,
    walk: Walk,
    tape: Tape,
    step: Leaves,
    carry: Sequence[Tensor],
    xs: Sequence[Tensor],
    spec: list[Any],
    batched: bool,
    others: Sequence[Entry],
) -> Entry:
    places = {id(tensor): at for at, tensor in enumerate(walk.tensors)}
    captured: list[int] = []
    for tensor in tape.captured.values():
        if id(tensor) not in places:
            raise StepError(
                f"it reads a tensor {[*tensor.shape]} that elman cannot find again",
                "close over it, or give it as an input",
            )
        captured.append(places[id(tensor)])
    reads = [(places[id(tensor)], number) for tensor, number in tape.read if id(tensor) in places]
    numbers = dict(zip(tape.captured, captured))
    tensors = [walk.tensors[at] for at in captured]
    graded = torch.is_grad_enabled()
    shapes = None if batched else [value.shape for value in (*carry, *xs)]
    program: Program | None = None
    for other in others:  # what changed is no part of the formula
        like = other.program
        if like is None or other.shapes != shapes or like.reading.tape.places or tape.places:
            continue
        if like.reading.tape.same_as(tape):
            program = like
            if other.graded >= graded:
                return Entry(
                    *((call.root, walk), program, None, captured, reads, spec[0], shapes, graded)
                )
    count = len(carry)
    carries, inputs = tape.inputs[:count], tape.inputs[count:]
    name = _name_of(call.root)
    names = {n: _word(walk.names[at]) for n, at in zip(tape.captured, captured)}

    def read_again() -> Reading:
        return read(tape, inputs, carries, name, names)

    reading = read_again() if program is None else program.reading
    reads += [(numbers[n], tape.captured[n].clone()) for n in tape.places]
    dtype = next((c.dtype for c in carry if c.is_floating_point()), torch.get_default_dtype())
    if program is None:
        program = Program(reading, inputs, carries, call.engine, dtype)
    restore = restored(walk)
    try:
        judge.check(judge.Case(step, read_again, program, xs, carry, tensors))
    finally:
        restore()
    tape.forget()
    return Entry((call.root, walk), program, None, captured, reads, spec[0], shapes, graded)


def _name_of(root: Any) -> str:
    """A name of the step for messages."""
    name = getattr(root, "__name__", "") or type(root).__name__
    return name if name.isidentifier() else "step"


def _word(name: str) -> str:
    word = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return word if word and not word[0].isdigit() else f"w_{word}"
