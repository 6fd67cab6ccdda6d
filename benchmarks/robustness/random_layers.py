"""Ways to run a layer of elman.layers, or a function of elman.functional, that must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from random_equivalents import (
    DROPS,
    F64,
    Case,
    Values,
    Way,
    check_memory,
    check_ways,
    normal,
    with_gradients,
)
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import elman


def check_layer(case: Case) -> int:
    """Run a layer of elman.layers, and again in some ways; how many."""
    net, rest = case.build(), case.rest
    source = torch.Generator().manual_seed(rest["seed"])
    form = case.called.get("form", "batch")
    T, B = rest["T"], 1 if form == "single" else rest["B"]
    x = normal(source, T, B, rest.get("I", rest["H"]))
    later = isinstance(net, elman.layers.RWKV7) and not net.first
    values = normal(source, T, B, rest["H"]) if later else None
    states: Any = None
    with elman.using(engine="reference"):
        if case.called.get("state"):
            shaped = run_layer(net, x.detach(), None, values, "batch")[1]
            states = tree_map(lambda value: normal(source, *value.shape), shaped)
        leaves = [x, *tree_leaves(states or ()), *([] if values is None else [values])]
        want, _ = run_layer(net, x, states, values, form)
        named = with_gradients(net, layer_results(want, _), leaves)
        ways = list(ways_of_layer(case, net, (x, states, values, form), leaves))
        return check_ways(case, ways, named)


def layer_results(out: Tensor, states: Any) -> dict[str, list[Tensor]]:
    """Results by kind."""
    return {"output": [out], "last": tree_leaves(states)}


def run_layer(net: Any, x: Tensor, states: Any, values: Any, form: str) -> tuple[Tensor, Any]:
    """Output and states of a layer, time-major."""
    single, batch_first = form == "single", getattr(net, "batch_first", False)
    state = tree_map(lambda v: v.squeeze(1), states) if single and states is not None else states
    more = {} if values is None else {"values": values[:, 0] if single else values}
    torch.manual_seed(7)
    lay = x[:, 0] if single else x.transpose(0, 1) if batch_first else x
    out, after, *_ = net(lay, state, **more)
    check_memory([out, *tree_leaves(after)])
    if single:
        return out.unsqueeze(1), tree_map(lambda value: value.unsqueeze(1), after)
    return (out.transpose(0, 1) if batch_first else out), after


def ways_of_layer(
    case: Case, net: Any, given: tuple[Any, ...], leaves: list[Tensor]
) -> Iterator[Way]:
    """Ways to run a layer that must not matter."""
    x, states, values, form = given
    T, B = x.shape[:2]
    drops = (*DROPS, "zoneout")
    random_numbers = net.training and any(case.made.get(name) for name in drops)

    def again(other: Any, how: str = form) -> Values:
        found = run_layer(other, x, states, values, how)
        return with_gradients(other, layer_results(*found), leaves)

    def like(**more: Any) -> Any:
        other = case.build(**more)
        other.load_state_dict(net.state_dict())
        return other

    def by_engine() -> Values:
        with elman.using(engine="c"):
            return again(net)

    def chunks() -> Values:
        outs, after = [], states
        for begin, end in ((0, T // 2), (T // 2, T)):
            some = None if values is None else values[begin:end]
            out, after = run_layer(net, x[begin:end], after, some, form)
            outs.append(out)
        return with_gradients(net, layer_results(torch.cat(outs), after), leaves)

    def samples() -> Values:
        each = []
        for k in range(B):
            at = slice(k, k + 1)
            some = None if values is None else values[:, at]
            state = tree_map(lambda v, at=at: v[:, at], states) if states is not None else None
            each.append(run_layer(net, x[:, at], state, some, "batch"))
        ends = zip(*[tree_leaves(after) for _, after in each], strict=True)
        joined = [torch.cat(parts, 1) for parts in ends]
        out = torch.cat([out for out, _ in each], 1)
        return with_gradients(net, layer_results(out, joined), leaves)

    yield "a copy", lambda: again(deepcopy(net))
    if case.rest["seed"] % 12 == 0:
        yield "engine c", by_engine
    if B == 1 or form == "single":
        yield "unbatched, or not", lambda: again(net, "batch" if form == "single" else "single")
    if hasattr(net, "batch_first") and form == "batch":
        yield "batch_first", lambda: again(like(batch_first=not net.batch_first))
    if T > 1 and not random_numbers:
        yield "in chunks", chunks
    if not random_numbers:
        yield "sample by sample", samples
    if not net.training:
        none = {name: 0.0 for name in DROPS if name in case.made}
        yield "without dropout", lambda: again(like(**none))


def check_function(case: Case) -> int:
    """Run a function of elman.functional, and again in some ways; how many."""
    rest, options = case.rest, dict(case.called)
    source, T, B, K, V = torch.Generator().manual_seed(rest["seed"]), rest["T"], rest["B"], 3, 4
    heads, groups = 2, options.pop("groups", 1)
    function = getattr(elman.functional, rest["target"])
    q, k = (normal(source, B, T, heads, K) for _ in range(2))
    v = normal(source, B, T, heads * groups, V)
    sizes = {"delta_rule": (), "gated_delta_rule": ((),), "kda": ((K,),), "gla": ((K,),)}
    gates = [-torch.rand(B, T, heads * groups, *size, generator=source, dtype=F64)
             for size in sizes[rest["target"]]]  # fmt: skip
    if rest["target"] != "gla":
        gates.append(torch.rand(B, T, heads * groups, generator=source, dtype=F64))
    inputs = [q, k, v, *(gate.requires_grad_() for gate in gates)]
    state = normal(source, B, heads * groups, K, V) if options.pop("initial_state", 0) else None
    leaves, side = [*inputs, *([] if state is None else [state])], options.pop("cu_seqlens", False)
    final = options.pop("output_final_state", False)
    if not final:
        assert function(*inputs, initial_state=state, **options)[1] is None

    def call(given: list[Tensor], begin: Any, **more: Any) -> tuple[Tensor, Any]:
        out, last = function(*given, initial_state=begin, output_final_state=True,
                             **{**options, **more})  # fmt: skip
        check_memory([out, last])
        return out, last

    def named(out: Tensor, last: Tensor) -> Values:
        return with_gradients(nn.Module(), {"output": [out], "last": [last]}, leaves)

    def side_by_side() -> Values:
        flat = [x.flatten(0, 1).unsqueeze(0) for x in inputs]
        out, last = call(flat, state, cu_seqlens=torch.arange(B + 1) * T)
        return named(out.view(B, T, *out.shape[2:]), last)

    def chunks() -> Values:
        out, middle = call([x[:, : T // 2] for x in inputs], state)
        more, last = call([x[:, T // 2 :] for x in inputs], middle)
        return named(torch.cat((out, more), 1), last)

    def samples() -> Values:
        pairs = [call([x[b : b + 1] for x in inputs], None if state is None else state[b : b + 1])
                 for b in range(B)]  # fmt: skip
        out, last = (torch.cat(each) for each in zip(*pairs, strict=True))
        return named(out, last)

    with elman.using(engine="reference"):
        want = named(*call(inputs, state))
        ways: list[Way] = [("sample by sample", samples)]
        ways.append(("explicit scale", lambda: named(
            *call(inputs, state, scale=options.get("scale", K**-0.5)))))  # fmt: skip
        ways += [("in chunks", chunks)] if T > 1 else []
        ways += [("one behind another", side_by_side)] * (1 + side)
        return check_ways(case, ways, want)
