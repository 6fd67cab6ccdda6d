"""Calls of a module and of the judge with the same arguments, laid out in any way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from conformance.rows import Given, Row, arguments, form_of, gradients, judge, values_of
from helpers import assert_close

SEED = 5
LENGTHS = [2, 5, 3]


def leaves_of(net: Any, given: Given) -> dict[str, Tensor]:
    return given.leaves | dict(net.named_parameters())


def called(net: Any, row: Row, given: Given) -> dict[str, Any]:
    """Values of a call, time first, drawn as the judge draws."""
    (x, state), call = arguments(row, given)
    torch.manual_seed(SEED)
    return values_of(net(x, state, **call))


def wanted(net: Any, row: Row, given: Given, **changes: Any) -> dict[str, Any]:
    torch.manual_seed(SEED)
    return judge(row, net, given, **changes)


def compare(got: dict[str, Any], want: dict[str, Any], leaves: dict[str, Tensor]) -> None:
    """Values, and gradients of all leaves, by name."""
    assert [*got] == [*want]
    mine, theirs = (values | gradients(values, leaves) for values in (got, want))
    for name, value in theirs.items():
        assert_close(mine[name], value, msg=lambda text, name=name: f"{name}: {text}")


def transposed(value: Any) -> Any:
    return value.transpose(0, 1) if isinstance(value, Tensor) else tuple(map(transposed, value))


def packed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(packed, value))
    return pack_padded_sequence(value, LENGTHS, enforce_sorted=False)


def sampled(value: Any) -> Any:
    """Time first, of the only sample."""
    return value[:, 0] if isinstance(value, Tensor) else tuple(map(sampled, value))


def by_layout(layout: str, net: Any, row: Row, given: Given) -> dict[str, Any]:
    """Values of a call that lies otherwise, time first."""
    (x, state), call = arguments(row, given)
    timed = [key for key in ("reset", "mask", "draws") if key in call]
    if layout == "batch first":
        net.batch_first = True
        x, call = transposed(x), call | {key: transposed(call[key]) for key in timed}
    elif layout == "unbatched":
        x, call = sampled(x), call | {key: call[key][:, 0] for key in timed}
        if "static" in call:
            call["static"] = tuple(value[0] for value in call["static"])
        if given.states is not None:
            state = form_of(row, [[value[0] for value in own] for own in given.states])
    elif layout == "packed":
        x, call = packed(x), call | {key: packed(call[key]) for key in timed}
    elif layout == "lengths":
        call["lengths"] = torch.tensor(LENGTHS)
    elif layout == "strided":
        x, call = transposed(transposed(x)), call | {key: call[key].clone() for key in timed}
    torch.manual_seed(SEED)
    values = values_of(net(x, state, **call))
    for name, value in values.items():
        if layout == "batch first" and not name.startswith("last"):
            value = value.transpose(0, 1)
        elif layout == "unbatched":
            value = value.unsqueeze(0 if row.is_layered and name.startswith("last") else 1)
        elif isinstance(value, PackedSequence):
            value = pad_packed_sequence(value)[0]
        values[name] = value
    return values
