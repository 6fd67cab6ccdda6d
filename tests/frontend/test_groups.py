"""Reductions over groups of units: what is a group, what cannot be one, what more groups cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import elman
from elman import compiler, ops
from elman.errors import ShapeError, TraceError
from elman.frontend.cell import Cell, cell
from elman.ir.graph import walk
from elman.plan.build import program
from helpers import Sizes, job_of, need, random_case, run
from products import some_of

F64 = torch.float64
HERE = Path(__file__)


def over(dims: str, own: Any) -> Cell:
    """``y = own(x)``, x and y of some dims; the state h [H] is kept."""

    def step(x, h):
        return own(x), 0.5 * h

    return cell(input=f"x[{dims}]", state="h[H]", output=f"y[{dims}]")(step)


def by_torch(name: str, x: torch.Tensor, groups: int) -> torch.Tensor:
    """The same over [..., groups, units of a group]."""
    own = x.unflatten(-1, (groups, -1))
    width = own.shape[-1]
    if name == "layer_norm":
        return torch.nn.functional.layer_norm(own, (width,)).flatten(-2)
    if name == "rms_norm":
        return torch.nn.functional.rms_norm(own, (width,), eps=1e-5).flatten(-2)
    if name == "softmax":
        return own.softmax(-1).flatten(-2)
    if name == "hardmax":
        return torch.nn.functional.one_hot(own.argmax(-1), width).flatten(-2).to(x)
    made = own.var(-1, correction=0) if name == "var" else getattr(own, name)(-1)
    return made.repeat_interleave(width, -1)


def call_of(name: str, groups: int) -> Any:
    made = getattr(ops, name)
    if name in ("layer_norm", "rms_norm", "softmax", "hardmax"):
        return lambda x: made(x, groups=groups)
    return lambda x: ops.spread(made(x, groups=groups), x)


EVERY = ["sum", "mean", "var", "amax", "layer_norm", "rms_norm", "softmax", "hardmax"]
DIMS = [  # dims, groups: parts of a gate block, gate blocks, several of them, and parts of numbers
    ("2H", 2),
    ("2H", 6),
    ("H", 4),
    ("4H", 2),
    ("24", 8),
    ("8+16", 3),
    ("8+4", 4),
    ("12+12", 8),
]


@pytest.mark.parametrize("dims, groups", DIMS)
@pytest.mark.parametrize("name", EVERY)
def test_groups_are_neighbours(name, dims, groups):
    """However the vector is made up, G groups are G runs of equally many units."""
    made = over(dims, call_of(name, groups))
    sizes = Sizes(2, 3, {"H": 12, "2H": 24, "4H": 48, "8+4": 12}.get(dims, 24), 12)
    case = random_case(made, sizes, 3, F64)
    x = case.inputs["x"].clone().requires_grad_()
    want = by_torch(name, x, groups)
    got = run(made, case, "reference")
    torch.testing.assert_close(got["out"], want.detach())
    if name != "hardmax":
        want.backward(case.d_output)
        torch.testing.assert_close(got["dx"], x.grad)


def test_numbers_cut_elsewhere_cut_groups_too():
    """[8] is cut for ``split``, so the 8 groups of [24] are groups of two parts of it."""

    @cell(input="x[24]", state="h[8], k[24]")
    def both(x, h, k):
        a, b = ops.split(h, 2)
        return ops.concat(b, a) * ops.sum(x * k, groups=8), k * x

    case = random_case(both, Sizes(2, 3, 24, 8), 1, F64)
    x, h, k = case.inputs["x"][0], case.states["h"], case.states["k"]
    want = torch.cat([h[:, 4:], h[:, :4]], -1) * (x * k).unflatten(-1, (8, 3)).sum(-1)
    torch.testing.assert_close(run(both, case, "reference")["out"][0], want)


def test_groups_of_a_cut_number_are_counted_in_each_part():
    """[3] is cut, so the 3 groups of each of two [9] are: those are cut into parts of 3, too."""

    @cell(input="x[9], a[3]", state="h[9]", output="y[6]")
    def both(x, a, h):
        b, *rest = ops.split(a, 3)
        return ops.sum(ops.concat(x, h), groups=6) * ops.concat(*rest, b, *rest, b), x

    case = random_case(both, Sizes(2, 3, 9, 9), 1, F64)
    x, a, h = case.inputs["x"][0], case.inputs["a"][0], case.states["h"]
    sums = torch.cat([x, h], -1).unflatten(-1, (6, 3)).sum(-1)
    want = sums * a.roll(-1, -1).repeat(1, 2)
    torch.testing.assert_close(run(both, case, "reference")["out"][0], want)


@pytest.mark.parametrize("heads", [2, 4])
def test_groups_of_heads(heads):
    """Each head has all of the groups; values of groups meet weights, which all heads share."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], u[4]")
    def own(x, h, W, R, u):
        v = ops.layer_norm(W @ x + R @ h, groups=4, eps=0.1)
        scale = ops.spread(u * ops.mean(v * v, groups=4), v)
        return ops.tanh(v * scale + ops.spread(ops.amax(v, groups=2), v))

    torch.manual_seed(0)
    net = elman.Recurrent(own, 3, 32, heads=heads, engine="reference", dtype=F64)
    x = torch.randn(4, 2, 3, dtype=F64)
    W, R, u = (weight.detach() for weight in net.parameters())
    dense = torch.block_diag(*R.split(32 // heads))
    h, found = torch.zeros(2, 32, dtype=F64), []
    for t in range(4):
        v = (x[t] @ W.T + h @ dense.T).unflatten(-1, (heads, 4, -1))
        v = (v - v.mean(-1, keepdim=True)) / (v.var(-1, correction=0, keepdim=True) + 0.1).sqrt()
        scaled = v * (u * (v * v).mean(-1)).unsqueeze(-1)
        largest = v.flatten(-2).unflatten(-1, (2, -1)).amax(-1, keepdim=True)
        scaled = scaled.flatten(-2).unflatten(-1, (2, -1))
        h = (scaled + largest).flatten(-3).tanh()
        found.append(h)
    torch.testing.assert_close(net(x)[0].detach(), torch.stack(found))


def refused(dims: str, own: Any) -> str:
    with pytest.raises((TraceError, ShapeError)) as told:
        over(dims, own)
    return str(told.value)


def test_what_is_no_group():
    """At the user's line, with what would be one."""
    for dims, groups in (("3H", 2), ("I+H", 2), ("I+H", 4), ("2H", 3)):
        text = refused(dims, lambda x, groups=groups: ops.softmax(x, groups=groups))
        assert text.startswith(f"cannot form {groups} equal groups of [{dims}]"), text
        assert f"at    {HERE.name}:" in text
        assert "hint  a group is a part of H, or several H" in text
    assert "10 is not a multiple of 4" in refused("10", lambda x: ops.layer_norm(x, groups=4))
    for groups in (0, -1, 2.0, True, "2"):
        odd: Any = groups
        text = refused("H", lambda x, groups=odd: ops.softmax(x, groups=groups))
        assert text.startswith("groups must be a positive integer or the name of a dim"), text
        assert f"not {groups!r}" in text
    parts = lambda x: ops.concat(*ops.split(ops.sum(x, groups=4), 2))  # noqa: E731  # [4] is cut
    assert "a dim of 4 is cut into parts elsewhere" in refused(
        "H", lambda x: ops.spread(parts(x), x)
    )
    text = refused("H", lambda x: ops.spread(ops.concat(x, x), x))
    assert text.startswith("cannot form groups of [H] for values [2H]"), text


def test_sizes_that_are_no_multiple():
    """Told when sizes come, at the line that asks for groups, with names and a size that fits."""
    made = over("H", lambda x: ops.layer_norm(x, groups=4))
    with pytest.raises(ShapeError) as told:
        elman.Recurrent(made, 30, 30)
    text = str(told.value)
    assert "H = 30 is not a multiple of its 4 groups" in text, text
    assert f"at    {HERE.name}:" in text
    assert "layer_norm(x, groups=4)" in text
    assert "hint  H = 32 is one" in text


def test_named_groups_that_do_not_divide():
    """M groups of H units: told when both are known."""

    @cell(input="x[I]", state="h[H]", weights="W[M, I]")
    def own(x, h, W):
        return h * ops.spread(W @ x, h)

    assert elman.Recurrent(own, 3, 12, M=4).W_l0.shape == (4, 3)
    with pytest.raises(ShapeError, match="H = 12 is not a multiple of its M = 5 groups"):
        elman.Recurrent(own, 3, 12, M=5)


def growth(groups: int) -> int:
    """Nodes of both directions of a cell with so many groups."""

    @cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H]")
    def own(x, h, W, R):
        a, b, c = ops.split(ops.layer_norm(W @ x + R @ h, groups=3 * groups), 3)
        return ops.softmax(a, groups=groups) * ops.tanh(b) + ops.hardmax(c, groups=groups) * h

    pair = compiler.pair_of(own)
    return len(list(walk([*pair.step.roots, *pair.d_states])))


def test_more_groups_are_no_more_nodes():
    """The graph of 64 groups is as large as that of 2."""
    assert growth(64) == growth(2)


@pytest.mark.parametrize("name", EVERY)
def test_compiled_and_interpreted_agree_on_odd_numbers(name):
    """NaN, infinities and ties of a group stay in their group; engine c against the oracle."""
    made = over("H", call_of(name, 3))
    case = random_case(made, Sizes(3, 2, 12, 12), 0)
    odd = torch.tensor([float("nan"), 1.0, 1.0, 2.0, -1.0, 3.0, 3.0, 0.0, 0.5, 0.5, 0.25, 0.5])
    case.inputs["x"][1, 1] = odd
    case.inputs["x"][2, 0, 4:8] = float("inf")
    want = run(made, case, "reference")
    got = run(made, case, "c")
    for key in want:
        torch.testing.assert_close(got[key], want[key], equal_nan=True)


@pytest.mark.parametrize("tape", ["auto", "save", "recompute"])
def test_numbers_of_units_are_not_kept(tape):
    """What says which unit is the largest is no value that a tape in half precision could round."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
    def own(x, h, W, R):
        first, second = ops.split(ops.hardmax(ops.concat(W @ x, R @ h)), 2)
        return ops.tanh(h * ops.hardmax(W @ x, groups=2) + first * h + second * (W @ x))

    case = random_case(own, Sizes(2, 2, 3, 600))
    job = job_of(case, tape=tape)
    made = program(job.pair, job.spec)
    assert "argmax" in {value.op for value in walk(job.pair.step.roots)}
    kept = (*made.kept, *made.hoisted, *made.stored)
    assert all(value.op != "argmax" for value in kept)


NAMED = {  # dims of the vector, groups, how many there are
    "a name": ("H", "D", 3),
    "of each part": ("2H", "2D", 6),
}


@pytest.mark.parametrize("name, kind, engine", some_of(EVERY, [*NAMED], ["reference", "c"]))
def test_as_many_groups_as_a_dim_has_units(name, kind, engine):
    """``groups="D"``: D is bound when the cell is, and values of groups meet its weights."""
    dims, groups, count = NAMED[kind]
    own = call_of(name, groups)

    @cell(input=f"x[{dims}]", state="h[H]", output=f"y[{dims}]", weights=f"a[{groups}]")
    def made(x, h, a):
        scale = ops.mean(x, groups=groups) * a
        return own(x) + ops.spread(scale, x), 0.5 * h

    wide = 12 * count // 3
    case = random_case(made, Sizes(2, 3, wide, 12, (("D", 3),)), 3, F64)
    x, a = case.inputs["x"].clone().requires_grad_(), case.weights["a"]
    scale = x.unflatten(-1, (count, -1)).mean(-1) * a
    want = by_torch(name, x, count) + scale.repeat_interleave(wide // count, -1)
    need(engine, job_of(case))
    got = run(made, case, engine)
    torch.testing.assert_close(got["out"], want.detach())
    want.backward(case.d_output)
    torch.testing.assert_close(got["dx"], x.grad)


@pytest.mark.parametrize("second", [8, "H", -1, 0.1, ()], ids=repr)
@pytest.mark.parametrize("name", EVERY)
def test_a_second_argument_by_position_is_refused(name, second):
    """In torch it is a size or a dim: as a number of groups it would be another formula."""
    text = refused("H", lambda x: getattr(ops, name)(x, second))
    assert text.startswith(f"{name} takes one vector, and by position nothing else"), text
    assert f"not {second!r}" in text
    assert f"at    {HERE.name}:" in text
    assert f"hint  {name}(v) is over all its units, {name}(v, groups=4) over each of 4" in text


def test_names_that_count_no_groups():
    """At the user's line, with what would be one."""
    text = refused("H", lambda x: ops.spread(ops.sum(x, groups="Q"), x))
    assert text.startswith("groups='Q': no argument of the cell has a dim Q"), text
    assert f"at    {HERE.name}:" in text
    text = refused("3H", lambda x: ops.softmax(x, groups="H"))
    assert text.startswith("cannot form groups of [3H] for values [H]"), text
    assert 'hint  groups="3D"' in text
