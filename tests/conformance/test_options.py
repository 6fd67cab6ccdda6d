"""Every option in every path: the rows of ``rows`` times one list of checks against the judge."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.utils._pytree import tree_leaves, tree_map

import elman
import elman.nn
from conformance.calling import (
    LENGTHS,
    SEED,
    by_layout,
    called,
    compare,
    leaves_of,
    sampled,
    transposed,
    wanted,
)
from conformance.rows import (
    ROWS,
    Given,
    Row,
    arguments,
    form_of,
    given_of,
    gradients,
    judge,
    values_of,
)
from elman.errors import EngineError
from helpers import assert_close, need_engine

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*which clips gradients"),
]
STACKED = {"num_layers": 2, "bidirectional": True}
ENGINES = ("reference", "c", "aten", "deer")
every_row = pytest.mark.parametrize("name", ROWS)
UNLIKE = {  # one of each kind of options, states and draws
    *("lstm", "reset to learned", "mask, zeros", "outputs", "draws, zoneout, mask"),
    *("weight_dropout", "dropout", "clip_gradient", "layers of their own, drawn", "spikes"),
    *("rich, reset, mask", "together", "heads", "residual", "checkpoint"),
}


def some_rows(also: Callable[[Row], Any] = lambda row: False, but: Set[str] = frozenset()) -> Any:
    """Names of all rows; of those that are like others, and not asked for, they are ``long``."""
    usual = {name for name, row in ROWS.items() if name in UNLIKE - but or also(row)}
    return [pytest.param(name, marks=[pytest.mark.long] * (name not in usual)) for name in ROWS]


# what is compiled of them: the operator of a call without lengths, flags and draws
ONE_OPERATOR = {"residual", "heads", "checkpoint", "clip_gradient", "spikes"}
# of what compiles derivatives or graphs of its own
unlike_rows = pytest.mark.parametrize("name", some_rows())


def stacked(row: Row) -> dict[str, Any]:
    """Layers and directions, where the row has none of its own."""
    own = {"bidirectional": True} if row.is_layered else STACKED
    return {key: value for key, value in own.items() if key not in row.options}


def engines_of_rows() -> Iterator[Any]:
    """Each row on each engine, of one layer and stacked. Stacks of rows that are like others are
    ``long`` on engine c, as ``test_lengths_of_stacks`` has them."""
    for name, engine, layers in product(ROWS, ENGINES, (False, True)):
        alike = layers and engine == "c" and name not in UNLIKE
        yield pytest.param(name, engine, layers, marks=[pytest.mark.long] * alike)


@pytest.mark.parametrize("name, engine, layers", [*engines_of_rows()])
def test_engines(name, engine, layers):
    """Outputs, last states and every gradient, on each engine; or its reason."""
    need_engine(engine)
    row = ROWS[name]
    net = row.make(engine, **(stacked(row) if layers else {}))
    given = given_of(row, net)
    if engine in row.refuses:
        with pytest.raises(EngineError, match=row.refuses[engine]):
            called(net, row, given)
        return
    compare(called(net, row, given), wanted(net, row, given), leaves_of(net, given))


@pytest.mark.parametrize("name", some_rows(lambda row: row.per or row.draws_by_torch))
def test_evaluation(name):
    """Where a module does not train, nothing is drawn; nor by a stack of what draws."""
    row = ROWS[name]
    net = row.make("c", **(stacked(row) if row.per or row.draws_by_torch else {})).eval()
    given = given_of(row, net)
    before = torch.get_rng_state()
    (x, state), call = arguments(row, given)
    got = values_of(net(x, state, **call))
    assert torch.equal(torch.get_rng_state(), before)
    compare(got, wanted(net, row, given), leaves_of(net, given))
    with torch.inference_mode():
        for one, other in zip(called(net, row, given).values(), got.values(), strict=True):
            assert_close(one, other)


LAYOUTS = {  # T, B
    "batch first": (5, 3), "unbatched": (5, 1), "packed": (5, 3), "lengths": (5, 3),
    "one step": (1, 3), "one sample": (5, 1), "many": (9, 17),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@every_row
def test_layouts(name, layout):
    """However arguments lie; values lie as the input does."""
    row = ROWS[name]
    net = row.make("c")
    given = given_of(row, net, *LAYOUTS[layout])
    got = by_layout(layout, net, row, given)
    changes = {"lengths": LENGTHS} if layout in ("lengths", "packed") else {}
    compare(got, wanted(net, row, given, **changes), leaves_of(net, given))


@every_row
def test_lengths_of_stacks(name):
    """Both directions of all layers end, and begin, where each sequence does; on engines that pack
    nothing, too."""
    row = ROWS[name]
    for engine in ("c", "reference"):
        net = row.make(engine, **stacked(row))
        given = given_of(row, net)
        got = by_layout("packed", net, row, given)
        compare(got, wanted(net, row, given, lengths=LENGTHS), leaves_of(net, given))


@every_row
def test_later_calls(name):
    """The third call of a kind is the first one's."""
    row = ROWS[name]
    net = row.make("c")
    for seed in range(4):
        given = given_of(row, net, seed=seed)
        want = wanted(net, row, given)
        compare(called(net, row, given), want, leaves_of(net, given))
        with torch.no_grad():
            for value, other in zip(called(net, row, given).values(), want.values(), strict=True):
                assert_close(value, other)


@pytest.mark.parametrize("name", some_rows(but=ONE_OPERATOR))
def test_compiled(name):
    """One graph, with the bits of the eager call; of several lengths every other row. Between
    layers a compiled call drops of padded rows what an eager one drops of packed ones."""
    row = ROWS[name]
    net = row.make("c")
    compiles = torch.compile(net, fullgraph=True, backend="aot_eager")
    count = 1 if row.options.get("dropout") or [*ROWS].index(name) % 2 else 2
    for lengths in (None, torch.tensor(LENGTHS))[:count]:
        given = given_of(row, net)
        given.call |= {} if lengths is None else {"lengths": lengths}
        positional, call = arguments(row, given)
        x, state = tree_map(lambda v: v if v is None else v.detach().requires_grad_(), positional)
        leaves = {f"given {k}": v for k, v in enumerate(tree_leaves((x, state))) if v is not None}
        leaves |= dict(net.named_parameters())
        found = []
        for one in (compiles, net):
            torch.manual_seed(SEED)
            values = values_of(one(x, state, **call))
            found.append(values | gradients(values, leaves))
        for key, value in found[1].items():
            if "initial" in key:  # sums over samples
                assert_close(found[0][key], value)
            else:
                assert torch.equal(found[0][key], value), key


@unlike_rows
def test_second_derivatives(name):
    """Of a gradient penalty, by everything; by several layers without clipping, which a second
    backward does layer by layer (see ``ops.clip_gradient``)."""
    row = ROWS[name]
    if row.options.get("num_layers", 1) > 1:
        row = replace(row, options={**row.options, "clip_gradient": None})
    net = row.make("c")
    given = given_of(row, net, T=3)
    leaves, found = leaves_of(net, given), []
    for values in (called(net, row, given), wanted(net, row, given)):
        first = gradients(values, leaves, create_graph=True)
        penalty = sum(d.square().sum() for d in first.values())
        found.append(torch.autograd.grad(penalty, [*leaves.values()], materialize_grads=True))  # type: ignore[arg-type]
    for key, got, want in zip(leaves, *found, strict=True):
        assert_close(got, want, msg=lambda text, key=key: f"{key}: {text}")


@unlike_rows
def test_forward_mode(name):
    """Tangents of x and of all parameters."""
    row = ROWS[name]
    net = row.make("c")
    given = given_of(row, net, T=3)
    x, *others = given.inputs
    own = dict(net.named_parameters())
    kept = dict(net.state_dict(keep_vars=True))
    moves = {key: value.detach().cos() for key, value in own.items()}

    def run(x: Tensor, own: Any, by_judge: bool) -> Any:
        moved = Given([x, *others], given.static, given.states, given.call)
        if by_judge:
            begin = {key: own.get(key, value) for key, value in kept.items()}
            return wanted(With(net, begin), row, moved)
        (inputs, state), call = arguments(row, moved)
        torch.manual_seed(SEED)
        return values_of(functional_call(net, own, (inputs, state), call))

    still = {key: value.detach() for key, value in own.items()}
    got = jvp(lambda x, own: run(x, own, False), (x.detach(), still), (x.detach().sin(), moves))[1]
    with forward_ad.dual_level():
        dual = {key: forward_ad.make_dual(value, moves[key]) for key, value in still.items()}
        want = run(forward_ad.make_dual(x.detach(), x.detach().sin()), dual, True)
        for key, value in want.items():
            tangent = forward_ad.unpack_dual(value).tangent
            assert_close(got[key], torch.zeros_like(value) if tangent is None else tangent)


class With:
    """A module seen with other weights."""

    def __init__(self, net: Any, weights: dict[str, Tensor]) -> None:
        self.num_layers, self.bidirectional = net.num_layers, net.bidirectional
        self.training, self.weights = net.training, weights

    def state_dict(self, keep_vars: bool = True) -> dict[str, Tensor]:
        return self.weights


@unlike_rows
def test_gradients_by_sample(name):
    """vmap of grad, of parameters and of what a sample is given."""
    row = ROWS[name]
    if row.draws_by_torch:
        pytest.skip("each sample would have a mask of its own")
    net = row.make("c")
    given = given_of(row, net, T=3)
    timed = {key: value for key, value in given.call.items() if isinstance(value, Tensor)}
    flat = [value for own in given.states or () for value in own]

    def of_sample(own: Any, x: Any, timed: Any, static: Any, flat: Any) -> Given:
        """Arguments of one sample, without the axis of samples."""
        rest = iter(flat)
        states = given.states and [[next(rest).unsqueeze(0) for _ in one] for one in given.states]
        call = given.call | {key: value.unsqueeze(1) for key, value in timed.items()}
        inputs = [value.unsqueeze(1) for value in x]
        return Given(inputs, [value.unsqueeze(0) for value in static], states, call)

    def loss(own: Any, *sample: Any) -> Tensor:
        (x, state), call = arguments(row, of_sample(own, *sample))
        values = values_of(functional_call(net, own, (x, state), call))
        return sum((value.nan_to_num().sin().sum() for value in values.values()), torch.zeros(()))

    parameters = {key: value.detach() for key, value in net.named_parameters()}
    sample = ([v.detach() for v in given.inputs], timed, [v.detach() for v in given.static],
              [v.detach() for v in flat])  # fmt: skip
    in_dims = (None, 1, 1, 0, 0)
    by_weights, by_x = vmap(grad(loss, argnums=(0, 1)), in_dims)(parameters, *sample)
    for at in range(given.inputs[0].shape[1]):
        one = of_sample(
            None, [v[:, at] for v in given.inputs], {k: v[:, at] for k, v in timed.items()},
            [v[at] for v in given.static], [v[at] for v in flat],
        )  # fmt: skip
        values = wanted(net, row, one)
        total = sum(value.sin().sum() for value in values.values())
        own = dict(net.named_parameters())
        found = torch.autograd.grad(total, [*own.values(), *given.inputs], materialize_grads=True)  # type: ignore[arg-type]
        for key, want in zip(own, found):
            assert_close(by_weights[key][at], want)
        for got, want in zip(by_x, found[len(own) :], strict=True):
            assert_close(got[at], want[:, at])


@pytest.mark.parametrize("first", [False, True], ids=["", "batch first"])
@every_row
def test_steps_and_streams(name, first):
    """One step at a time is the whole sequence, of a single sample too, and a stream goes on where
    it was."""
    row = ROWS[name]
    net = row.make("reference" if first else "c").train(not row.draws_by_torch)
    given = given_of(row, net)
    net.batch_first = first
    given.call = {k: v for k, v in given.call.items() if k in ("reset", "mask", "draws")}
    (x, state), call = arguments(row, given)
    want = judge(row, net, given)
    timed = {key: value for key, value in call.items() if key != "static"}
    more = {"static": call["static"]} if given.static else {}

    def stepped(x: Any, state: Any, timed: Any, more: Any) -> dict[str, Any]:
        rows = []
        for t in range(5):
            now = tuple(v[t] for v in x) if isinstance(x, tuple) else x[t]
            out, state = net.step(now, state, **more, **{key: v[t] for key, v in timed.items()})
            rows.append([*values_of((out, ())).values()])
        got = {f"out {k}": torch.stack(parts) for k, parts in enumerate(zip(*rows))}
        return got | values_of(((), state))

    compare(stepped(x, state, timed, more), want, leaves_of(net, given))
    single = None if given.states is None else [[v[0] for v in own] for own in given.states]
    own = {key: tuple(v[0] for v in value) for key, value in more.items()}
    timed_of_one = {key: value[:, 0] for key, value in timed.items()}
    alone = stepped(sampled(x), form_of(row, single), timed_of_one, own)
    for key, value in alone.items():
        if key.startswith("out"):
            assert_close(value, want[key][:, 0])

    def laid(value: Any) -> Any:
        return transposed(value) if first else value

    stream = elman.Stream(net.eval(), form_of(row, given.states), **more)
    timed.pop("draws", None)
    given.call.pop("draws", None)
    want = judge(row, net, given)
    for begin, end in ((0, 4), (4, 5)):
        cut = tuple(v[begin:end] for v in x) if isinstance(x, tuple) else x[begin:end]
        out = stream(laid(cut), **{key: laid(v[begin:end]) for key, v in timed.items()})
        for key, value in values_of((out, ())).items():
            assert not value.requires_grad
            assert_close(laid(value), want[key][begin:end])
    for key, value in values_of(((), stream.state)).items():
        assert_close(value, want[key])
    stream.reset([1])
    bare = Given(given.inputs, given.static, given.states, {})
    again = stream(laid(arguments(row, bare)[0][0]))
    begun = judge(row, net, bare)
    for key, value in values_of((again, ())).items():
        assert_close(laid(value)[:, 1], begun[key][:, 1])


@every_row
def test_copies(name):
    """Copied, pickled, saved as a whole, and by its state_dict, it is the same module."""
    row = ROWS[name]
    net = row.make("c")
    given = given_of(row, net)
    want = called(net, row, given)
    file, other = io.BytesIO(), row.make("c")
    torch.save(net, file)
    file.seek(0)
    other.reset_parameters()
    other.load_state_dict(net.state_dict())
    for again in (
        copy.deepcopy(net), pickle.loads(pickle.dumps(net)),
        torch.load(file, weights_only=False), other,
    ):  # fmt: skip
        assert repr(again) == repr(net)
        for key, value in called(again, row, given).items():
            assert torch.equal(value, want[key])
    assert row.shown in repr(net)


@pytest.mark.parametrize("name", some_rows(lambda row: row.explained))
def test_explained_and_recorded(name):
    """What runs is shown, and recorded so that it can be pinned."""
    row = ROWS[name]
    net, other = row.make("auto"), row.make("auto")
    given = given_of(row, net)
    (x, state), call = arguments(row, given)
    assert row.explained in elman.explain(net, x, state=state, **call, measure=False).all
    assert elman.draw(net).svg
    want = called(net, row, given)
    record = json.loads(json.dumps(elman.nn.choices(net)))
    assert elman.nn.pin(other, record) == []
    for key, value in called(other, row, given).items():
        assert torch.equal(value, want[key])
    assert elman.nn.choices(other).keys() == record.keys()


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["", "lengths"])
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.per])
def test_draws_of_a_seed(name, lengths):
    """A call draws what ``draws`` draws after the same seed, per step or per sequence; one that is
    given them asks nothing of the generator."""
    row = ROWS[name]
    net = row.make("c")
    net.dropout = net.weight_dropout = 0.0  # drawn by torch
    (x, state), call = arguments(row, given_of(row, net))
    call["lengths"] = lengths
    draws = call.pop("draws")  # after the seed 1
    for per, keys in zip(row.per, draws.split(2, -1), strict=True):
        assert (keys == keys[:1]).all() == (per == "sequence")
    before = torch.get_rng_state()
    want = values_of(net(x, state, draws=draws, **call))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    for key, value in values_of(net(x, state, **call)).items():
        assert_close(value, want[key])
    assert not torch.equal(values_of(net(x, state, **call))["out 0"], want["out 0"])
