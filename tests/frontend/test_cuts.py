"""Dims that are numbers are cut where a formula wants parts of them."""

from __future__ import annotations

import pytest
import torch

from elman import ops
from elman.errors import ShapeError, TraceError
from elman.frontend.cell import Cell, cell
from elman.frontend.dims import UncutError, check_cut, cut
from helpers import Sizes, assert_all_same, need_engine, random_case, run


def gated(parts, whole: str) -> Cell:
    """A gated cell of 12 units; ``parts`` cuts a vector of them into some that ``whole`` names."""

    def step(x, h, W, R, b):
        i, f = parts(W @ x + R @ h, 2)
        return ops.tanh(i) * h + ops.sigmoid(f) * b

    return cell(input="x[3]", state="h[12]", weights=f"W[{whole}, 3], R[{whole}, 12], b[12]")(step)


def thirds(x, h):
    """Equal parts of unlike number, of one value and of what is made of it."""
    a, b, c = ops.split(h, 3)
    d, e = ops.split(h * x, 2)
    return ops.concat(a * b, c, a) + ops.concat(e, d)


def unequal(x, h):
    """Named parts in two orders, and a scalar's worth of one."""
    a, b = ops.split(h, "5, 7")
    c, d = ops.split(x, "7, 5")
    return ops.concat(b * c, a + d) * ops.mean(a)


def normed(x, h):
    return ops.layer_norm(h + x, groups=4)


def singles(x, h):
    """Parts of one unit each."""
    return ops.concat(*reversed(ops.split(h * x, 12)))


def torch_thirds(x, h):
    a, b, c = h.split(4, -1)
    d, e = (h * x).split(6, -1)
    return torch.cat([a * b, c, a], -1) + torch.cat([e, d], -1)


def torch_unequal(x, h):
    a, b = h.split([5, 7], -1)
    c, d = x.split([7, 5], -1)
    return torch.cat([b * c, a + d], -1) * a.mean(-1, keepdim=True)


def torch_normed(x, h):
    parts = (h + x).split(3, -1)
    return torch.cat([torch.nn.functional.layer_norm(part, (3,)) for part in parts], -1)


FORMULAS = {  # in the cell's language -> in torch's
    thirds: torch_thirds,
    unequal: torch_unequal,
    normed: torch_normed,
    singles: lambda x, h: (h * x).flip(-1),
}


@pytest.mark.parametrize("engine", ["reference", "c"])
@pytest.mark.parametrize("step", FORMULAS, ids=lambda step: step.__name__)
def test_parts_of_numbers(step, engine):
    """Values and gradients are those of torch's own parts, on every kind of engine."""
    if engine == "c":
        need_engine("c")
    made = cell(input="x[12]", state="h[12]")(step)
    case = random_case(made, Sizes(T=1, B=3, I=12, H=12), 0, torch.float64)
    got = run(made, case, engine)
    x = case.inputs["x"].clone().requires_grad_()
    h = case.states["h"].clone().requires_grad_()
    want = FORMULAS[step](x[0], h)
    torch.testing.assert_close(got["out"][0], want.detach())
    grads = torch.autograd.grad(want, (x, h), case.d_output[0] + case.d_last["h"])
    for name, grad in zip(("dx", "dh"), grads, strict=True):
        torch.testing.assert_close(got[name], grad)


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_numbers_are_as_names(engine):
    """A number that is cut is the same cell as a declared sum of parts; sizes are as declared."""
    if engine == "c":
        need_engine("c")
    found = []
    for whole in ("24", "12+12", "16+8"):
        made = gated(ops.split, whole)
        assert str(made.weights[0]) == f"W[{whole}, 3]"
        case = random_case(made, Sizes(T=6, B=2, I=3, H=12), 0, torch.float64)
        found.append(run(made, case, engine))
    for other in found[1:]:
        assert_all_same(other, found[0], torch.float64, 6)


def test_options_decide_about_parts():
    """Another option, other parts: each is traced for itself."""

    @cell(input="x[I]", state="h[12]", weights="W[12, I]")
    def one(x, h, W, *, groups=1):
        return ops.concat(*map(ops.softmax, ops.split(W @ x + h, groups)))

    assert one.graph.states[0].shape == ((12,),)
    assert one.with_options(groups=2).graph.states[0].shape == ((6, 6),)
    assert one.with_options(groups=3).graph.weights[0].shape == ((4, 4, 4), ("I",))


def test_what_cannot_be_cut():
    """Sizes that do not fit are told; names are never cut."""

    def declared(step, **fields):
        given = {"input": "x[12]", "state": "h[12]", "weights": "b[H+4]", **fields}
        return cell(**given)(lambda x, h, b: step(x, h, b))

    for step, error, text in (
        (lambda x, h, b: ops.split(h, 5)[0], TraceError, "cannot split [12] into 5 equal parts"),
        (lambda x, h, b: ops.split(h, "6, 5")[0], TraceError, "cannot split [12] into '6, 5'"),
        (lambda x, h, b: ops.split(b, 2)[0], TraceError, "cannot split [H+4] into 2 equal parts"),
        (lambda x, h, b: h + ops.split(h, 2)[0], ShapeError, "cannot add [6+6] and [6]"),
    ):
        with pytest.raises(error) as caught:
            declared(step)
        assert str(caught.value).startswith(text), caught.value


def test_meeting():
    """Cuts are the least that makes two dims one; equal dims, and unlike ones, ask for none."""
    for left, right, cuts in (
        ((12,), (4, 8), {12: (4, 8)}),
        ((4, 8), (6, 6), {8: (2, 6), 6: (4, 2)}),
        (("H", 8), ("H", 4, 4), {8: (4, 4)}),
        ((3, "H", 8), (3, "H", 1, 7), {8: (1, 7)}),
    ):
        with pytest.raises(UncutError) as caught:
            check_cut((left,), (right,))
        assert caught.value.cuts == cuts
    for left, right in (((12,), (12,)), ((12,), (4, 9)), (("H",), (8,)), ((8, "H"), ("H", 8))):
        check_cut((left,), (right,))
    check_cut(((8,),), ((4, 4), (3,)))
    assert cut((8, "H", 3), {8: (4, 4), 4: (1, 3)}) == (1, 3, 1, 3, "H", 3)
