"""torch's own test entries for recurrent modules, run on elman's in their place.

The entries ship with torch (torch.testing._internal.common_modules): constructor and forward
arguments of every option, batched, unbatched and packed, and reference functions.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence

import elman
from helpers import assert_same

common_modules = pytest.importorskip("torch.testing._internal.common_modules")
NAMES = ("RNN", "GRU", "LSTM")
ENTRIES = [
    (info, training)
    for info in common_modules.module_db
    if info.module_cls.__name__ in NAMES
    for training in (True, False)
]
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def tensors(value):
    """All tensors of arguments or results, in order."""
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for part in value for t in tensors(part)] if isinstance(value, (tuple, list)) else []


def results(module, given):
    """Values and gradients, of arguments and parameters, by name."""
    args, kwargs = copy.deepcopy((given.args, given.kwargs))
    leaves = [value for value in tensors((args, kwargs)) if value.requires_grad and value.is_leaf]
    values = tensors(module(*args, **kwargs))
    source = torch.Generator().manual_seed(0)
    ds = [torch.randn(v.shape, dtype=v.dtype, generator=source) for v in values]
    own = [*leaves, *module.parameters()]
    grads = torch.autograd.grad(values, own, ds, allow_unused=True)
    found = {f"value {k}": value.detach() for k, value in enumerate(values)}
    return found | {f"d{k}": grad for k, grad in enumerate(grads) if grad is not None}


def test_all_entries_are_there():
    """None has gone with another version of torch."""
    assert {info.module_cls.__name__ for info, _ in ENTRIES} == set(NAMES)


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize(
    "info, training", ENTRIES, ids=[f"{i.module_cls.__name__}-{t}" for i, t in ENTRIES]
)
def test_entry(info, training, engine):
    """The same arguments, weights and cotangents: the same values and gradients."""
    dtype = torch.float64
    cases = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    for case in cases:
        args, kwargs = case.constructor_input.args, case.constructor_input.kwargs
        theirs = info.module_cls(*args, **kwargs).to(dtype).train(training)
        ours = getattr(elman, info.module_cls.__name__)(*args, engine=engine, **kwargs)
        ours = ours.to(dtype).train(training)
        ours.load_state_dict(theirs.state_dict())
        want, got = results(theirs, case.forward_input), results(ours, case.forward_input)
        assert got.keys() == want.keys(), kwargs
        for name, value in want.items():
            assert_same(name, got[name], value, dtype, 10)
        if case.reference_fn is not None:
            args, kwargs = case.forward_input.args, case.forward_input.kwargs
            reference = tensors(case.reference_fn(ours, *args, **kwargs))
            for value, other in zip(tensors(ours(*args, **kwargs)), reference, strict=True):
                torch.testing.assert_close(value, other)
