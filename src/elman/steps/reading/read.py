"""Reads a tape as the formula of a cell.

What can be read goes into the formula. What depends on inputs or weights alone and cannot be read
is computed by torch before the loop, for all steps at once; what no state depends on and cannot be
read, after it. A state that depends on what cannot be read is an error that names the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elman.errors import StepError, quiet_warnings
from elman.frontend.cell import Cell
from elman.frontend.dims import UncutError
from elman.frontend.draws import counting
from elman.frontend.heads import Share, Tracing, tracing
from elman.frontend.signature import Declared
from elman.frontend.trace import Tracer
from elman.ir.graph import Rate
from elman.steps.arrays.array import MatrixError
from elman.steps.reading.reader import Reader, shown
from elman.steps.reading.reading import KINDS, Leaf, Reading
from elman.steps.reading.results import Results
from elman.steps.recording.tape import Tape


def read(tape: Tape, name: str, names: Mapping[int, str]) -> Reading:
    """Read a tape.

    Args:
        tape: of a step that returns its next states, as many leaves as it is given, then others.
        name: of the cell.
        names: of captured tensors, by number of reference.

    Raises:
        StepError: a next state depends on what cannot be read.
    """
    matrices: frozenset[str] = frozenset()
    cuts: dict[int, tuple[int, ...]] = {}
    while True:
        reader = Reader(tape, name, names, matrices)
        try:
            with tracing(Tracing(cuts, Share())), counting():
                reader.evaluate(cuts)
                results = Results(reader)
            return _reading(reader, results)
        except UncutError as uncut:
            cuts.update(uncut.cuts)
        except MatrixError as error:
            if error.leaves <= matrices:
                raise StepError("a vector is read as a matrix") from error
            matrices, cuts = matrices | error.leaves, {}


def _reading(reader: Reader, results: Results) -> Reading:
    tape, rate = reader.tape, {at: reader.rate_of_entry(at) for at in reader.live}
    outside = [at for at in reader.live if at in reader.opaque or _writes_weight(reader, at)]
    after = [at for at in outside if rate[at] == Rate.STATE]
    leaves = {
        kind: [leaf for leaf in reader.leaves.values() if leaf.kind == kind] for kind in KINDS
    }
    leaves["state"] = [leaf for group in results.states for leaf in group]
    leaves["input"] = leaves["input"] or [Leaf("input", None, (), Declared("no_input", ()))]
    ordered = [leaf for kind in KINDS for leaf in leaves[kind]]
    wanted = [leaf.ref for leaf in ordered if leaf.ref is not None]
    wanted += [y.value for y in results.ys if y.kind == "outside"]
    wanted += [ref for at in after for ref in tape.entries[at].given]
    before = tape.needed([at for at in reader.live if rate[at] < Rate.STATE], wanted)
    once = [at for at in before if rate[at] == Rate.WEIGHT]
    each = [at for at in before if rate[at] > Rate.WEIGHT]
    given = results.carries, results.ys, results.exported, results.states
    return Reading(tape, _cell(reader, results, leaves), ordered, (once, each), after, *given)


def _writes_weight(reader: Reader, at: int) -> bool:
    """Whether an operation writes to what the step closes over. Raises StepError: other values than
    such do."""
    entry = reader.tape.entries[at]
    if not reader.tape.writes_outside(entry):
        return False
    if reader.rate_of(entry.given) > Rate.WEIGHT:
        raise StepError(
            f"{shown(entry)} writes to a tensor that the step closes over",
            "return it as a state",
            at=entry.where,
        )
    return True


def _cell(reader: Reader, results: Results, leaves: Mapping[str, list[Leaf]]) -> Cell:
    names = [leaf.declared.name for kind in KINDS for leaf in leaves[kind]]
    outputs, next_states = results.outputs, results.next_states
    if len(outputs) == 1 and next_states and outputs[0][0].node is next_states[0].node:
        outputs = []  # a layer returns its first state

    def step(*values: Tracer) -> Any:
        reader.evaluate({}, dict(zip(names, values, strict=True)))
        again = Results(reader)
        first = [tracer for tracer, _ in again.outputs] if outputs else []
        return (*first, *again.next_states)

    step.__name__ = step.__qualname__ = reader.name
    inputs, statics, states, weights = (
        tuple([leaf.declared for leaf in leaves[kind]]) for kind in KINDS
    )
    constants = [leaf.declared.name for leaf in leaves["weight"] if leaf.constant is not None]
    with quiet_warnings():
        cell = Cell(
            reader.name,
            inputs,
            statics,
            states,
            weights,
            tuple([Declared(f"y{k}", dims) for k, (_, dims) in enumerate(outputs)]),
            step,
            constants=frozenset(constants),
        ).recurrent
        _ = cell.graph
    return cell
