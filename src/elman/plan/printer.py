"""Print a program: tape, hoisted values, joined products, barriers, slots."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from elman.ir.graph import Node, Rate, readers
from elman.ir.ops import OPS, TRANSCENDENTAL
from elman.ir.pair import loop_invariant
from elman.ir.printer import Hints, Names, pair_names
from elman.ir.types import GateBlock, show_dim
from elman.plan.cost import phase_nodes, state_bytes, sweep_nodes, tape_bytes
from elman.plan.program import Bundle, Phase, Program, Segment, Sweep

_WIDE = 100  # columns of a line
_LABEL = 10  # columns of a label
_FEW = 3  # values that are printed by name rather than counted
_KEPT = "\u00a0"  # a space at which no line is broken


def syncs(phase: Phase) -> int:
    """Number of barriers in one run of a phase, where units are split over workers."""
    return sum(segment.sync for segment in phase.segments)


def program_names(program: Program, hints: Hints | None = None) -> Names:
    """Names of a pair's values, and of further values that a program keeps.

    ``r_x`` is the part of r that depends on x alone, ``dg`` a term of g's gradient.
    """
    names = pair_names(program.pair, hints)
    forward = [v for p in (program.forward.before, program.forward.step) for v in phase_nodes(p)]
    used = readers(forward)
    inputs = "_".join(dict.fromkeys(leaf.name for leaf in program.pair.step.inputs))
    for value in (*program.hoisted, *program.kept, *program.rematerialised):
        if value in names or names.brief(value):
            continue
        top = value
        while top not in names and len(used.get(top, ())) == 1:
            (top,) = used[top]
        if top in names and value.rate == Rate.INPUT:
            names.give(value, f"{names.short(top)}_{inputs}")
        else:
            names.number(value, "v")
    for term in program.sums:
        if term.left not in names and not names.brief(term.left) and not term.target.args:
            names.give(term.left, f"d{names.short(term.target)}")
    for value in program.stored:
        if value not in names and not names.brief(value):
            names.number(value, "d")
    return names


def _row(label: str, text: str) -> list[str]:
    """One labelled entry, wrapped."""
    lines = textwrap.wrap(text, _WIDE - _LABEL - 2, break_on_hyphens=False) or ["–"]
    return [f"{label if not i else '':<{_LABEL}}{line}" for i, line in enumerate(lines)]


def _labelled(label: str, lines: list[str]) -> list[str]:
    """Lines under one label."""
    return [f"{label if not i else '':<{_LABEL}}{line}" for i, line in enumerate(lines or ["–"])]


def _list(names: Names, values: Iterable[Node]) -> str:
    texts = dict.fromkeys(names.inner(value) for value in values)
    return " ".join(text.replace(" ", _KEPT) for text in texts)


def show_bundle(bundle: Bundle, names: Names) -> str:
    """Print joined products: ``[R.0 R.1 R.2] @ h``, along k ``[R.0 R.1]ᵀ @ [δr δz]``."""
    transposed = all(term.transposed for acc in bundle.accs for term in acc.terms)

    def block(term: Node) -> str:
        text = names.inner(term.args[0])
        return f"{text}ᵀ" if term.transposed and not transposed else text

    rows = [" ".join(block(term) for term in acc.terms) for acc in bundle.accs]
    operands = [names.inner(value) for value in bundle.operands]
    joined = len(operands) > 1
    left = "; ".join(rows) if joined else " ".join(rows)
    right = f"[{' '.join(operands)}]" if joined else operands[0]
    return f"[{left}]{'ᵀ' if transposed else ''} @ {right}"


def _reductions(segment: Segment, names: Names) -> list[str]:
    ops_of: dict[tuple[tuple[Node, ...], str], list[str]] = {}
    for value in segment.nodes:
        if OPS[value.op].kind in ("reduce", "scan"):
            reduced = OPS[value.op].kind == "reduce" and value.shape
            groups = show_dim(value.shape[0]) if reduced else ""
            ops_of.setdefault((value.args, groups), []).append(value.op)
    sums = [key for key, ops in ops_of.items() if ops == ["sum"]]
    texts = [
        f"{', '.join(ops)} of {_list(names, args)}{f' in {groups} groups' if groups else ''}"
        for (args, groups), ops in ops_of.items()
        if (args, groups) not in sums
    ]
    return [*texts, *([f"{len(sums)} sum{'s' * (len(sums) > 1)} over units"] if sums else [])]


def _segment(segment: Segment, names: Names) -> str:
    work = _reductions(segment, names)
    work += [show_bundle(bundle, names) for part in segment.parts for bundle in part.bundles]
    if not work:
        work = ["pointwise"] if any(part.nodes for part in segment.parts) else ["copies"]
    written = [value for value, buffer in segment.writes if buffer.where != "scratch"]
    inside = len(
        {value for value, buffer in segment.writes if buffer.where == "scratch"} - set(written)
    )
    text = " ; ".join(work)
    if written:
        text += f" → {_list(names, written)}"
    return text + (f" (+ {inside} for later segments)" if inside else "")


def _phases(sweep: Sweep, names: Names) -> list[str]:
    lines: list[str] = []
    for label, phase in zip(("before", "step", "after"), sweep.phases, strict=True):
        for index, segment in enumerate(phase.segments):
            text = textwrap.wrap(
                _segment(segment, names), _WIDE - _LABEL - 13, break_on_hyphens=False
            )
            heads = [(label if not index else "", "wait" if segment.sync else "")]
            heads += [("", "")] * (len(text) - 1)
            lines += [
                f"{head:<7}{wait:<5}{line}" for (head, wait), line in zip(heads, text, strict=True)
            ]
    return lines


def _rematerialised(program: Program, names: Names) -> str:
    """Values of the forward that the backward recomputes."""
    if program.backward is None:
        return "–"
    back = program.backward
    nodes = sweep_nodes(back)
    forward = program.pair.primal
    stored = {*program.kept, *program.pair.step.next_states}
    rematerialised = [v for v in nodes if v.rate <= Rate.STATE and v in forward and v not in stored]
    dear = [
        v
        for v in rematerialised
        if v.op in TRANSCENDENTAL or OPS[v.op].kind in ("product", "reduce")
    ]
    cheap = [v for v in dict.fromkeys(rematerialised) if v not in dear]
    texts = _list(names, dear)
    rest = f"{len(cheap)} elementwise" if cheap else ""
    if 0 < len(cheap) <= _FEW:
        rest = _list(names, cheap)
    return " + ".join(text for text in (texts, rest) if text) or "–"


def _gate_blocks(gate_blocks: Iterable[GateBlock | None]) -> str:
    counts: dict[str, int] = {}
    for gate_block in gate_blocks:
        name = (
            "scalar"
            if gate_block is None
            else gate_block
            if isinstance(gate_block, str)
            else f"[{gate_block}]"
        )
        counts[name] = counts.get(name, 0) + 1
    return " + ".join(f"{count} {name}" for name, count in counts.items()) or "0"


def _slots(program: Program, names: Names) -> list[str]:
    lines: list[str] = []
    for index, slot in enumerate(program.slots):
        history = " → ".join(f"{when} {names.inner(value)}" for when, value in slot.values)
        gate_block = "scalar" if slot.gate_block is None else str(slot.gate_block)
        lines.append(f"{index:<3}{gate_block:<7}{history}")
    return lines


def _once(program: Program, names: Names) -> str:
    invariants = [
        names.short(arg)
        for value in program.pair.step.walk()
        if not loop_invariant(value)
        for arg in value.args
        if loop_invariant(arg) and arg.args
    ]
    return ", ".join(dict.fromkeys(invariants))


def _sums(program: Program, names: Names) -> str:
    """Weights' gradients, joined by their right operand."""
    lefts_of: dict[Node | None, dict[Node, None]] = {}
    for term in program.sums:
        lefts_of.setdefault(term.right, {})[term.left] = None
    texts = [
        f"[{_list(names, lefts)}] ⊗ {names.inner(right)}"
        for right, lefts in lefts_of.items()
        if right is not None
    ]
    if None in lefts_of:
        texts.append(f"Σ {_list(names, lefts_of[None])}")
    return " ; ".join(texts)


def show_header(program: Program) -> str:
    """Sizes, dtype, device, and the wanted gradients."""
    spec = program.spec
    sizes = " ".join(f"{name}={size}" for name, size in spec.dims)
    wants = " ".join(sorted(spec.wants)) or "the states alone"
    mode = f"gradients of {wants}, tape {spec.options.tape}" if spec.training else "no gradients"
    without = "".join(f", without {name}" for name in sorted(spec.options.without))
    products = "" if spec.precision == "ieee" else f" with products of {spec.precision}"
    return f"{sizes}, {spec.dtype}{products} on {spec.device}, {mode}{without}"


def show_program(program: Program, hints: Hints | None = None) -> str:
    """Print a program, at most 40 lines for a cell of the library.

    Args:
        program: the program.
        hints: names for some values of the step, from the cell's text.
    """
    names = program_names(program, hints)
    forward, backward = program.forward, program.backward
    lines = [show_header(program), *_row("once", _once(program, names))]
    lines += _labelled("hoisted", [" = ".join(names.defined(v)) for v in program.hoisted])
    lines += _row("taped", _list(names, program.kept))
    if backward is not None:
        lines += _row("remat", _rematerialised(program, names))
        lines += _row("stored", _list(names, [*program.rematerialised, *program.stored]))
    lines += _labelled("forward", _phases(forward, names))
    scratch = f"forward step {_gate_blocks(forward.step.scratch)}"
    chunk = f"forward {_gate_blocks(forward.chunk)}"
    waits = f"{syncs(forward.step)} forward"
    if backward is not None:
        lines += _labelled("backward", _phases(backward, names))
        lines += _row("sums", _sums(program, names))
        scratch += f", backward step {_gate_blocks(backward.step.scratch)}"
        chunk += f", backward {_gate_blocks(backward.chunk)}"
        waits += f", {syncs(backward.step)} backward"
    lines += _labelled("slots", _slots(program, names))
    lines += _row("memory", f"of a chunk: {chunk}; scratch: {scratch}")
    memory = f"{tape_bytes(program)} bytes of tape, {state_bytes(program)} of states per (t, b)"
    lines += _row("", memory)
    lines += _row("waits", f"{waits} per step, where units are split over threads")
    return "\n".join(lines).replace(_KEPT, " ")
