"""Finds the program of a step: one that was made for the same formula, or a new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.errors import StepError, StepWarning, warn
from elman.steps import plain
from elman.steps.call import Call, whole
from elman.steps.closure import Walk, same_function
from elman.steps.recording.recorder import recording
from elman.steps.running import Given
from elman.steps.tracing import StepFormula, in_own_thread, trace_step, types_under_autocast

_MOST = 64  # formulas of one step
_MOST_KEYS = 256  # shapes of calls whose formulas are found without another look
_warned: set[str] = set()
_LARGE = StepError("a state of whole numbers passes 2**24, which a formula rounds")


class LastStep(NamedTuple):
    """The step that was last called; in one tuple, as threads read it.

    Attributes:
        root: what the user gave.
        walk: through it; None: it cannot be walked.
        captured: the tensors that the formula reads.
    """

    root: Any
    walk: Walk | None
    captured: list[Tensor]


@dataclass
class Entry:
    """A formula of one step, or why there is none.

    Attributes:
        formula: what was traced.
        seen: the step that was last called.
        types: of the results, under autocast.
    """

    formula: StepFormula
    seen: LastStep
    types: Sequence[torch.dtype | None] = ()

    def holds(self, call: Call) -> bool:
        """Whether it is for arguments of such shapes: any, where samples are seen."""
        shapes = self.formula.shapes
        return shapes is None or shapes == [leaf.shape for leaf in call.leaves]

    def unchanged(self, root: Any) -> LastStep | None:
        """The step, if nothing has changed of what it closes over."""
        seen = self.seen
        walk = seen.walk
        if walk is None or not (seen.root is root or same_function(seen.root, root)):
            return None
        return seen if walk.unchanged() and self._reads_alike(walk) else None

    def follows(self, walk: Walk) -> bool:
        """Whether the formula of another walk is the same."""
        before = self.seen.walk
        same = before is not None and before.signature == walk.signature
        return same and self._reads_alike(walk)

    def see(self, root: Any, walk: Walk) -> LastStep:
        """Keep the step that was last called."""
        self.seen = LastStep(root, walk, [walk.tensors[at] for at in self.formula.captured])
        return self.seen

    def _reads_alike(self, walk: Walk) -> bool:
        """Whether the numbers that the step reads from tensors are what they were."""
        for at, value in self.formula.read:
            now = walk.tensors[at]
            if not (
                torch.equal(now, value) if isinstance(value, Tensor) else now.tolist() == value
            ):
                return False
        return True


class Binder:
    """The formulas of steps."""

    def __init__(self) -> None:
        self._entries: dict[Any, list[Entry]] = {}
        self._recent: dict[Any, tuple[list[Entry], int]] = {}  # of keys as calls have them

    def __deepcopy__(self, memo: Any) -> Binder:
        return Binder()

    def __reduce__(self) -> Any:
        return Binder, ()

    def run(self, call: Call) -> tuple[Any, Any]:
        """Run a loop: the trees of the last carry, and of the outputs [T, ..].

        Raises:
            StepError: the step cannot be read, and an engine is asked for by name.
        """
        if recording():
            return _run_plain(call, None)
        entry, seen = self._find(call)
        formula = entry.formula
        if formula.program is None:
            return _run_plain(call, formula.reason)
        ends, ys = formula.program.run(_given(call, formula, seen))
        if formula.program.counts and _too_large([*call.carry, *ends]):
            return _run_plain(call, _LARGE)
        if entry.types:
            cast = [v if t is None else v.to(t) for v, t in zip([*ends, *ys], entry.types)]
            ends, ys = cast[: len(ends)], cast[len(ends) :]
        return whole(ends, call.carry_spec), whole(ys, formula.y_spec)

    def layer_call(self, call: Call) -> tuple[Any, ...]:
        """The layer that runs a call, with its weights; x, the state and the options of its call.

        Raises:
            StepError: the step cannot be read.
        """
        entry, seen = self._find(call)
        formula = entry.formula
        if formula.program is None:
            assert formula.reason is not None, "there is a reason"
            raise formula.reason
        return formula.program.enter(_given(call, formula, seen))[0]

    def _find(self, call: Call) -> tuple[Entry, LastStep]:
        key = call.key()
        known = self._recent.get(key)
        if known is None:
            entries = self._entries.setdefault(call.key_of_all_batches(), [])
            if len(self._recent) >= _MOST_KEYS:
                self._recent.clear()
            known = self._recent[key] = entries, call.batch
        entries, call.batch = known
        for entry in entries:
            if entry.holds(call) and (seen := entry.unchanged(call.root)) is not None:
                return entry, seen
        try:
            walk = Walk(call.root, call.batch)
        except StepError as error:
            seen = LastStep(call.root, None, [])
            return Entry(StepFormula(None, error), seen), seen
        for entry in entries:
            if entry.follows(walk) and entry.holds(call):
                return entry, entry.see(call.root, walk)
        formula = in_own_thread(
            lambda: trace_step(call, walk, [entry.formula for entry in entries])
        )
        half = call.half
        types = (
            () if half is None else in_own_thread(lambda: types_under_autocast(call, walk, half))
        )
        entry = Entry(formula, LastStep(call.root, walk, []), types)
        entries.insert(0, entry)
        del entries[_MOST:]
        return entry, entry.see(call.root, walk)


def _given(call: Call, formula: StepFormula, seen: LastStep) -> Given:
    batch = call.batch if formula.shapes is None else 1
    return Given(call.xs, call.carry, seen.captured, call.steps, batch, call.options)


def _run_plain(call: Call, reason: StepError | None) -> tuple[Any, Any]:
    if reason is not None and call.engine != "auto":
        raise reason
    ends, ys = plain.run(call.step, call.carry, call.xs, call.steps, call.options)
    if reason is not None and str(reason) not in _warned:  # a mistake of the caller's was raised
        warn(f"the step runs as a plain loop: {reason}", StepWarning)
        _warned.add(str(reason))
    return whole(ends, call.carry_spec), whole(ys, call.y_spec)


def _too_large(values: Sequence[Tensor]) -> bool:
    """Whether a whole number is none of float32."""
    counts = [v for v in values if not (v.is_floating_point() or v.dtype is torch.bool)]
    return any(v.numel() and bool((v.long().abs() >= 2**24).any()) for v in counts)
