"""Loops over matrices per sample, split: the same statements, and nothing is computed twice."""

from __future__ import annotations

import pytest

from elman import cell, cells, compiler
from elman.engines.c.engine import PRICES
from elman.engines.c.matrices.fission import MOST_COLUMN_SUMS, split_loop
from elman.lowered.lower import lower
from elman.lowered.types import Accumulate, Affine, Let, Op, Part, Ref, Store
from elman.ops import outer, tanh
from elman.plan.build import program
from specs import spec_of

MOST = 5


def _parts(model, *, steps: bool) -> list[Part]:
    """All parts over a matrix of a training step, or of four merged steps."""
    wants = frozenset(entry.name for entry in (*model.inputs, *model.weights))
    spec = spec_of(model.bind(16, 16).items(), wants=wants)
    pair = compiler.pair_of(model)
    if steps:
        several = compiler.multi_step_job(model.name, model.graph, spec)
        if several is None:
            return []
        pair, spec = several.pair, several.spec
    lowered = lower(program(pair, spec, PRICES), 16)
    return [part for each in lowered.directions for part in each.parts if part.axes]


def _expanded(part: Part) -> list[object]:
    """What a part stores and sums up, with all that it is computed from."""
    lets = [statement.value for statement in part.body if isinstance(statement, Let)]

    def text(value) -> str:
        if isinstance(value, Ref):
            return text(lets[value.index])
        if isinstance(value, Op | Affine):
            name = value.name if isinstance(value, Op) else f"{value.coefs} {value.bias}"
            return f"{name}({', '.join(map(text, value.args))})"
        return str(value)

    return [
        (type(s), getattr(s, "access", getattr(s, "accesses", None)), text(s.value))
        for s in part.body
        if isinstance(s, Store | Accumulate)
    ]


def _axes(part: Part) -> list[str | None]:
    return [s.axis for s in part.body if isinstance(s, Accumulate)]


def _operations(part: Part) -> int:
    return sum(isinstance(s, Let) and isinstance(s.value, Op | Affine) for s in part.body)


@pytest.mark.parametrize("steps", [False, True], ids=["step", "four steps"])
@pytest.mark.parametrize(
    "name", ["gated_delta_net", "mlstm", "gla", "mamba2", "rwkv7", "m2rnn", "ttt_linear", "titans"]
)
def test_split_loops_do_what_one_did(name, steps):
    for part in _parts(getattr(cells, name), steps=steps):
        loops = split_loop(part, MOST)
        expanded = [statement for loop in loops for statement in _expanded(loop)]
        assert sorted(map(str, expanded)) == sorted(map(str, _expanded(part)))
        assert sum(map(_operations, loops)) == _operations(part)
        for loop in loops[:-1]:  # before anything is stored that a later one reads
            assert not any(isinstance(s, Store) for s in loop.body)


def test_loops_have_few_sums():
    parts = _parts(cells.gla, steps=True)
    loops = [loop for part in parts for loop in split_loop(part, MOST)]
    axes = list(map(_axes, loops))
    assert max(each.count("rows") for each in axes) == MOST
    assert max(_axes(part).count("rows") for part in parts) > MOST
    assert any("rows" in each and "columns" in each for each in axes)
    for each in axes:
        assert "rows" not in each or each.count("columns") <= MOST_COLUMN_SUMS


@cell(input="x[K], k[K], q[K]", state="S[K, K]", output="y[K]")
def squashed(x, k, q, S):
    """What is summed up along rows is the next state, too."""
    S = tanh(0.5 * S + outer(k, x))
    return S @ q, S


def test_a_value_that_is_stored_and_summed_up_is_computed_once():
    forward = [part for part in _parts(squashed, steps=False) if _axes(part) == ["rows"]]
    whole = [part for part in forward if any(isinstance(s, Store) for s in part.body)]
    assert whole
    assert all(split_loop(part, MOST) == [part] for part in whole)
