"""Every op as it is spelled, on ordinary and on odd numbers: what torch gives; versions of the
interpreter."""

from __future__ import annotations

import pytest
import torch

from elman.engines.arrays import Arrays
from elman.engines.triton import engine
from elman.engines.triton.device.source import function
from elman.engines.triton.engine import TritonEngine
from elman.engines.triton.text.ops import SPELL, number, spell_sum
from elman.ir.evaluate import MEANING
from elman.ir.graph import node
from elman.ir.ops import OPS
from helpers import assert_close

pytestmark = [pytest.mark.interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
ODD = [0.0, -0.0, 1e-30, -1e-4, 1e-3, 0.19, 0.21, -0.5, 1.0, -3.0, 19.9, 20.1, 88.0, -100.0]
VALUES = torch.tensor([*ODD, float("inf"), -float("inf"), float("nan"), 2.5e38])


def spelled(text: str, operands: list[torch.Tensor]) -> torch.Tensor:
    """The value of a text over ``x0``, ``x1`` … in the interpreter."""
    names = [f"x{k}" for k in range(len(operands))]
    count = operands[0].numel()
    lines = [
        "@triton.jit",
        f"def run({', '.join(f'p_{name}' for name in names)}, out, N: tl.constexpr):",
        "    n = tl.arange(0, N)[None, :]",
        f"    ok = n < {count}",
        *(f"    {name} = tl.load(p_{name} + n, mask=ok, other=0.0)" for name in names),
        f"    made = {text}",
        "    tl.store(out + n, tl.broadcast_to(made, [1, N]), mask=ok)",
        "",
    ]
    out = torch.full_like(operands[0], 7.0)
    function("run", "\n".join(lines))[(1,)](*operands, out, N=1024)
    return out


@pytest.mark.parametrize("op", [op for op in SPELL if op != "uniform"])  # test_triton_options.py
def test_every_op(op):
    """Every pair of odd numbers for ops of two operands; NaN and infinities as torch has them."""
    arity = OPS[op].arity
    assert arity is not None
    grid = torch.meshgrid(*[VALUES] * min(arity, 2), indexing="ij")
    operands = [part.reshape(-1).clone() for part in grid]
    if arity == 3:
        operands = [(operands[0] > 0).float(), *operands]
    names = [f"x{k}" for k in range(arity)]
    want = MEANING[op](Arrays(torch.float32, torch.device("cpu")), node(op), *operands)
    got = spelled(SPELL[op].format(*names), operands)
    if op == "remainder":  # of quotients that float64 has no digits for there is none
        countless = (operands[0] / operands[1]).abs() > 2.0**28
        got = got.where(~(countless & operands[0].isfinite()), want)
    assert_close(got, want, "step", equal_nan=True)


def test_sums():
    """Coefficients of either sign, a bias, nothing at all."""
    x = torch.tensor([1.5, -2.0])
    text = str(spell_sum((1.0, -1.0, 0.5), 0.25, ["x0", "x0 * 2.0", "x0"]))
    torch.testing.assert_close(spelled(text, [x]), x - 2 * x + 0.5 * x + 0.25)
    torch.testing.assert_close(spelled(str(spell_sum((), 3.0, [])), [x]), torch.full((2,), 3.0))
    assert [number(v) for v in (0.5, float("-inf"))] == ["0.5", 'float("-inf")']


@pytest.mark.parametrize("odd", [1.0, float("nan"), float("inf")])
def test_largest(odd):
    """NaN is the largest, as in torch."""
    x = torch.tensor([0.5, odd, -2.0, 0.25])
    text = "lib.amax(tl.where(n < 4, x0, float('-inf')).trans(1, 0), 0)[None, :]"
    assert torch.equal(spelled(text, [x])[:1].isnan(), x.amax().isnan()[None])
    torch.testing.assert_close(spelled(text, [x])[0], x.amax(), equal_nan=True)


@pytest.mark.parametrize(
    "triton, numpy, fits",
    [("3.6.0", "2.3.5", True), ("3.6.0", "2.4.6", False), ("3.10.0+git", "2.4.6", True)],
)
def test_interpreter(triton: str, numpy: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older interpreter breaks at the first loop: what helps is said instead."""
    monkeypatch.setattr(engine.triton, "__version__", triton)
    monkeypatch.setattr(engine.numpy, "__version__", numpy)
    reason = TritonEngine().lacks("cpu", "float32")
    assert (reason is None) == fits
    if reason is not None:
        assert "pip install 'numpy<2.4'" in reason
    assert TritonEngine().lacks("cuda", "float32") is None
