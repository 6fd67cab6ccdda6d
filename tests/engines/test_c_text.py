"""What the text of kernels does not say: passes that nobody needs."""

from __future__ import annotations

import re

import pytest

from elman import cell as declared
from elman import cells, compiler
from elman.engines.c import engine
from elman.engines.c.compilation.isa import AVX512
from elman.engines.c.engine import PRICES
from elman.engines.c.run import kernel
from elman.engines.c.text.emit import Emitter
from elman.errors import EngineError
from elman.ops import tanh
from elman.plan.build import program
from specs import spec_of
from unseen import reused

_MOVED = re.compile(r"const V (x\d+) = ld\(row [^;]*\);\s+st\([^;]*, \1\);\s+\}")


def text_of(cell, H: int, *, training: bool = True) -> str:
    """The C text of a training step that wants every gradient, or of a forward alone."""
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights) if training)
    spec = spec_of(cell.bind(H, H).items(), wants=wants, training=training)
    return Emitter(program(compiler.pair_of(cell), spec, PRICES), AVX512).text()


@pytest.mark.parametrize("cell", cells.CORE)
def test_products_that_are_only_kept_go_through_no_buffer(cell):
    """Their tiles store where the value is kept, if it is whole vectors."""
    assert not _MOVED.search(text_of(cell, 128))


def test_products_of_other_widths_go_through_a_buffer():
    """A tile stores whole vectors: not into a caller's rows of 21 units."""
    assert "stn(din0" in text_of(cells.rnn, 21)
    assert "stn(din0" not in text_of(cells.rnn, 32)


@pytest.mark.parametrize(("H", "copied"), [(32, False), (21, True), (256, True)])
def test_right_operands_of_few_products_are_read_as_they_lie(H, copied):
    """Weights' gradients copy no left operand, and a right one where that pays or its rows are no
    whole vectors."""
    text = text_of(cells.lstm, H)
    assert "add_outer(w" in text
    assert ("pack_right(w" in text) == copied
    assert ("c->right + " in text) == copied


def _on_tape(text, call):
    """(row, rest) of every address of a vector on the tape."""
    return set(re.findall(rf"\b{call}\(tape(?: \+|,) (\(r . c->B\)|r) \* (.*?) \+ u\b", text))


@pytest.mark.parametrize("cell", [cells.gru, cells.lstm, cells.slstm])
def test_the_tape_of_the_next_step_is_asked_for(cell):
    """In the loop alone: where the forward stores in this step, and the backward loads."""
    functions = re.findall(r"NOINLINE void (\w+)\((.*?)\n}", text_of(cell, 32), re.DOTALL)
    for way, call, row in (("fwd", "st", "(r + c->B)"), ("bwd", "ld", "(r - c->B)")):
        step = "".join(body for name, body in functions if name.startswith(f"{way}_step"))
        now = _on_tape(step, call)
        assert now
        assert _on_tape(step, "PREFETCH") == {(row, rest) for _, rest in now}
    assert not any(_on_tape(body, "PREFETCH") for name, body in functions if "_step_" not in name)


def test_without_a_tape_nothing_is_asked_for():
    """A forward alone, of which no backward follows."""
    assert "PREFETCH(tape" not in text_of(cells.gru, 32, training=False)


@declared(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def pondering(x, h, W, R):
    """One weight three times in a step."""
    for _ in range(3):
        h = tanh(W @ x + R @ h)
    return h


_ADDED = re.compile(r"add_outer\(w, (\d+), .*, rows, \d+, ([^,]+), [^,]+, [^,]+, \w+, \w+\);")


@pytest.mark.parametrize("cell", [reused, pondering])
def test_what_is_added_to_a_gradient_is_dealt_alike(cell):
    """Each of its rows belongs to one worker, however many products add to it."""
    found = _ADDED.findall(text_of(cell, 64))
    turns = {base: {turn for turn, other in found if other == base} for _, base in found}
    assert len(found) > len(turns)
    assert all(len(each) == 1 for each in turns.values())
    assert len(set(map(tuple, turns.values()))) > 1  # the largest share goes round


@declared(input="x[H]", static="z[H]", state="h[H]", weights="W[H, H], R[H, H]")
def gated(x, z, h, W, R):
    """The gradient of W is summed of rows that a held state scales."""
    return tanh(z * (W @ x) + R @ h)


@declared(input="x[H]", static="z[H]", state="h[H]", output="y[H]", weights="V[H, H], g[H]")
def read_out(x, z, h, V, g):
    """An output that is computed after the loop, of a held state."""
    return (V @ (z * h)) * z, tanh(x + g * h)


def _emitter(cell, *, training: bool = True) -> Emitter:
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights) if training)
    more = {"S": 5} if cell is cells.ealstm else {}
    spec = spec_of(cell.bind(32, 32, **more).items(), wants=wants, training=training)
    return Emitter(program(compiler.pair_of(cell), spec, PRICES), AVX512)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cell", [gated, read_out, cells.ealstm, cells.gru])
def test_rows_of_held_states_are_known_before_anything_is_spelled(cell, training):
    """Whether a batched phase reads them is a fact of the program: the workspace has room for all
    that a text names."""
    emitter = _emitter(cell, training=training)
    lowered = emitter.lowered
    before = {f"{d.name[0]}wd": d.gathers_always for d in lowered.directions}  # fwd, bwd
    text = emitter.text()
    for name, gathers in before.items():
        functions = re.findall(rf"NOINLINE void {name}_(?:before|after).*?\n}}", text, re.DOTALL)
        if name == "bwd":
            functions += re.findall(r"static void backward_run.*?\n}", text, re.DOTALL)
        named = any(re.search(r"\(T \*\)\(c->prev\[", body) for body in functions)
        assert named == gathers
    if cell in (gated, read_out) and training:
        assert any(before.values())


def _functions(text, way):
    """Bodies of the functions of one direction, by name."""
    return dict(re.findall(rf"NOINLINE void ({way}_\w+)\((.*?)\n}}", text, re.DOTALL))


@pytest.mark.parametrize("way", ["fwd", "bwd"])
def test_rows_of_the_next_sample_are_asked_for_in_passes_over_matrices(way):
    """Each input, output, gradient and taped vector once a step, lines of 16 numbers."""
    bodies = _functions(text_of(cells.gated_delta_net, 64), way)
    tables = [table for b in bodies.values() for table in re.findall(r"ahead\[\] = \{(.*?)\};", b)]
    starts = re.findall(r"c->(\w+)(?:\[\d+\])? \+ (?:in|first)_row\(", " ".join(tables))
    arrays = {"in", "out", "tape"} if way == "fwd" else {"in", "dy", "din", "tape"}
    assert set(starts) == arrays
    rows = re.findall(r"\(uintptr_t\)\(\(r \+ 1\) \* ", " ".join(tables))
    assert len(rows) == len(starts)
    for body in bodies.values():
        passes = body.split("ahead[] =")[1:]
        for each in passes:
            loops = re.findall(r"at = ahead\[asked\+\+\]; (.*?) }", each)
            assert loops
            lines = " ".join(f"PREFETCH(at, {n * 16}, 0);" for n in range(4))
            assert set(loops) == {lines}
        assert body.count("asked = more ? 0 : ") == len(passes)
    assert "ahead[]" not in text_of(cells.gru, 64)


@pytest.mark.parametrize(("rows", "several"), [(64, True), (6, False)])
def test_four_rows_are_taken_at_once_where_they_divide_the_matrix(rows, several):
    assert ("i0 += 4" in text_of(cells.gated_delta_net, rows)) == several


def test_vectors_of_few_rows_are_not_all_asked_for():
    """A matrix of two rows: at most a line for each, and no division by nothing."""
    text = text_of(cells.gated_delta_net, 2)
    assert "ahead[]" not in text


def test_samples_one_by_one_use_memory_of_their_worker():
    """Scratch and rows of a chunk lie behind a worker's scalars: not a row for each sample."""
    text = text_of(cells.gated_delta_net, 64)
    assert "c->scratch + " not in text
    assert "c->chunk_rows + " not in text
    assert "c->scratch + " in text_of(cells.lstm_layernorm, 64)


@declared(input="x[I], k[H]", state="h[H]", output="y[H]", weights="W[H, I], R[H, H]")
def unchanged(x, k, h, W, R):
    """A product of a state that nothing changes: its step has nothing to do in a forward."""
    return R @ h + 0.0 * (W @ x), h


def test_segments_of_no_statements_name_all_parameters():
    """Else compilers warn of what is not used."""
    bodies = re.findall(r"NOINLINE void \w+\((.*?)\n}", text_of(unchanged, 1), re.DOTALL)
    assert all(body.count(name) > 1 for body in bodies for name in ("r0", "r1"))


def test_a_text_that_takes_minutes_is_refused(monkeypatch):
    monkeypatch.setattr(kernel, "MOST_TEXT", 1 << 10)
    spec = spec_of({"I": 2, "H": 3}.items())
    job = compiler.job(cells.gru, spec)
    with pytest.raises(EngineError, match="MiB of C, which gcc would take minutes for"):
        kernel.CKernel(job, program(job.pair, spec, PRICES))
    monkeypatch.setattr(engine, "MOST_OPERATIONS", 10)
    with pytest.raises(EngineError, match=r"has \d+ operations and blocks of weights"):
        engine.CEngine()._program(job)
