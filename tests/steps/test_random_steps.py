"""Steps that nobody has written by elman.scan, against their plain loops; see :mod:`random_steps`.

A step that elman refuses to read is no failure here: benchmarks/robustness/random_steps.py counts
which are. Most must be read, though.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import elman
from elman.errors import StepError
from random_steps import AsModule, DrawnStep, random_step, random_steps
from step_runs import Found, differences, found_by, plain_scan

SEEDS = range(40)
READ = 0.5  # of the seeds, at least
ON_C = range(100, 106)


def scan_on(engine: str) -> Any:
    """elman.scan on an engine."""

    def scan(step: Any, init: Any, xs: Any, *, reverse: bool = False) -> tuple[Any, Any]:
        return elman.scan(step, init, xs, reverse=reverse, engine=engine)

    return scan


def found(drawn: DrawnStep, scan: Any, dtype: torch.dtype = torch.float64, **how: Any) -> Found:
    """What a way to run a step gives, over 5 steps of 3 samples."""
    built = drawn.build(dtype)
    return found_by(scan, built.step, built.init(3), built.xs(5, 3), built.parameters, **how)


def check(drawn: DrawnStep, engine: str, dtype: torch.dtype = torch.float64, **how: Any) -> None:
    """A run on an engine has the plain loop's values and gradients."""
    got = found(drawn, scan_on(engine), dtype, **how)
    want = found(drawn, plain_scan, **how)
    near = None if dtype == torch.float64 else found(drawn, plain_scan, dtype, **how)
    off = differences(got, want, drawn.close(dtype), near)
    assert not off, "\n".join([*off, repr(drawn)])


def of_seed(seed: int) -> DrawnStep:
    return random_step(random.Random(seed).choice)


def read_or_skip(drawn: DrawnStep, engine: str, **how: Any) -> None:
    """:func:`check`, or a skip that says why the step cannot be read."""
    try:
        check(drawn, engine, **how)
    except StepError as error:
        pytest.skip(str(error).partition("\n")[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_have_the_values_and_gradients_of_their_loops(seed):
    read_or_skip(of_seed(seed), "reference", reverse=seed % 4 == 3)


def test_most_steps_can_be_read():
    """That those above are not skipped."""
    refused: dict[int, str] = {}
    for seed in SEEDS:
        built = of_seed(seed).build()
        try:
            elman.scan(built.step, built.init(2), built.xs(2, 2), engine="reference")
        except StepError as error:
            refused[seed] = str(error)
    assert len(refused) <= (1 - READ) * len(SEEDS), "\n".join(refused.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", ON_C)
def test_compiled_steps_have_the_values_and_gradients_of_their_loops(seed):
    read_or_skip(of_seed(seed), "c", dtype=[torch.float64, torch.float32][seed % 2])


@pytest.mark.parametrize("seed", range(200, 206))
def test_a_module_of_a_step_loops(seed):
    drawn = of_seed(seed)
    built = drawn.build()
    loop = elman.Loop(AsModule(built), carry_first=True, engine="reference")

    def looped(step: Any, init: Any, xs: Any) -> tuple[Any, Any]:
        ys, carry = loop(xs, init)
        return carry, ys

    try:
        got = found_by(looped, None, built.init(3), built.xs(5, 3), built.parameters)
    except StepError as error:
        pytest.skip(str(error).partition("\n")[0])
    off = differences(got, found(drawn, plain_scan), drawn.close(torch.float64))
    assert not off, "\n".join([*off, repr(drawn)])


@pytest.mark.filterwarnings("ignore::elman.errors.StepWarning")
@pytest.mark.filterwarnings("ignore:step runs step by step on engine reference")  # of a MiB of C
@pytest.mark.parametrize("seed", range(300, 310))
def test_whatever_cannot_be_read_runs_as_a_loop(seed):
    check(of_seed(seed), "auto")


@settings(max_examples=15)
@given(random_steps())
def test_any_step_has_the_values_and_gradients_of_its_loop(drawn):
    try:
        check(drawn, "reference")
    except StepError:
        return


# The generator itself, without elman.


@pytest.mark.parametrize("seed", range(400, 410))
def test_samples_of_a_drawn_step_know_nothing_of_each_other(seed):
    """Else a batch of another size were another step."""
    built = of_seed(seed).build()
    init, xs = built.init(5), built.xs(4, 5)
    _, whole = plain_scan(built.step, init, xs)
    few: tuple[Any, Any] = (
        tree_map(lambda v: v[:3], init),
        tree_map(lambda v: v[:, :3], xs),
    )
    _, part = plain_scan(built.step, *few)
    for long, short in zip(tree_leaves(whole), tree_leaves(part), strict=True):
        assert isinstance(short, Tensor)
        torch.testing.assert_close(long[:, :3], short)


def test_seeds_draw_the_same_steps_ever_after_and_hardly_any_twice():
    texts = [repr(of_seed(seed)) for seed in range(30)]
    assert len(set(texts)) == 30
    assert texts == [repr(of_seed(seed)) for seed in range(30)]
