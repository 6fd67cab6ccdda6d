"""Ways to run a module or a function that must not matter, compared with how it was run first.

Arguments and results are kept time-major, with a batch ([T, B, ..] of each step, states with B
behind layers · directions), as float64 on engine reference; each way lays them out as it needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

import elman

F64 = torch.float64
WAYS = 3  # compared for each combination
TORCHS = ("num_layers", "bidirectional", "batch_first", "dropout", "bias", "nonlinearity",
          "proj_size")  # fmt: skip
DROPS = ("dropout", "recurrent_dropout", "weight_dropout")
Values = dict[str, Tensor]
Way = tuple[str, Callable[[], Values]]


class DifferenceError(Exception):
    """Results differ, or share memory."""


class Case(NamedTuple):
    """A combination.

    Attributes:
        build: makes the module, with further options.
        rest: sizes and seed.
        made, called: options in use.
    """

    build: Callable[..., Any]
    rest: dict[str, Any]
    made: dict[str, Any]
    called: dict[str, Any]


class Call(NamedTuple):
    """Arguments of a call, time-major.

    Attributes:
        inputs [T, B, ..], static [B, ..]: of the module.
        states: one after another; none if the call is given none.
        steps [T, B, ..]: ``reset``, ``mask``, ``draws``.
        lengths [B]: of sequences, if given.
        words: further options of the call.
        form: ``batch``, ``single`` or ``packed``.
    """

    inputs: list[Tensor]
    static: list[Tensor]
    states: list[Tensor]
    steps: dict[str, Tensor]
    lengths: Tensor | None
    words: dict[str, Any]
    form: str

    @property
    def leaves(self) -> list[Tensor]:
        """Tensors whose gradients are compared."""
        return [*self.inputs, *self.static, *self.states]

    def part(self, begin: int, end: int) -> Call:
        """Some steps, without a state."""
        return self._replace(
            inputs=[x[begin:end] for x in self.inputs],
            steps={name: value[begin:end] for name, value in self.steps.items()},
        )

    def sample(self, index: int, states_axis: int) -> Call:
        """One sample as a batch of one."""
        at = slice(index, index + 1)
        return self._replace(
            inputs=[x[:, at] for x in self.inputs],
            static=[value[at] for value in self.static],
            states=[value.narrow(states_axis, index, 1) for value in self.states],
            steps={name: value[:, at] for name, value in self.steps.items()},
            lengths=None if self.lengths is None else self.lengths[at],
        )


def normal(source: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=source, dtype=F64).requires_grad_()


def arguments(net: Any, case: Case) -> Call:
    """The arguments of a combination's call."""
    called, source = case.called, torch.Generator().manual_seed(case.rest["seed"])
    form = called.get("form", "batch")
    T, B = case.rest["T"], 1 if form == "single" else case.rest["B"]
    runtime, rows = net.runtime, random.Random(case.rest["seed"])
    inputs = [normal(source, T, B, *size) for size in runtime.input_sizes]
    static = [normal(source, B, *size) for size in runtime.static_sizes]
    lead = [len(net.runners)] if runtime.signature.form.alike else []
    states = [normal(source, *lead, B, *size) for size in runtime.state_sizes]
    steps: dict[str, Tensor] = {}
    if called.get("reset"):
        steps["reset"] = torch.rand(T, B, generator=source) < 0.3
    if called.get("mask"):
        steps["mask"] = torch.rand(T, B, generator=source) < 0.7
    if called.get("draws"):
        steps["draws"] = net.draws(T, B)
        if net.batch_first:
            steps["draws"] = steps["draws"].transpose(0, 1)
    lengths = torch.tensor([rows.randint(1, T) for _ in range(B)])
    words = {k: called[k] for k in ("reset_to", "masked_output", "outputs") if k in called}
    given = called.get("lengths") or form == "packed"
    if form == "packed" and called.get("lengths"):
        words["lengths"] = lengths
    return Call(inputs, static, states if called.get("state") else [], steps,
                lengths if given else None, words, form)  # fmt: skip


def _axis_of_batch(net: Any) -> int:
    return 1 if net.runtime.signature.form.alike else 0


def _nested(net: Any, states: list[Tensor], single: bool) -> Any:
    """States as the caller of a module has them."""
    form, axis = net.runtime.signature.form, _axis_of_batch(net)
    rows = [value.squeeze(axis) for value in states] if single else states
    return form.nest(rows if form.alike else [value.unsqueeze(0) for value in rows])


def call_of(net: Any, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the module takes them."""
    single, lengths = call.form == "single", call.lengths

    def lay(value: Tensor) -> Any:
        if call.form == "packed":
            return pack_padded_sequence(value, lengths, enforce_sorted=False)
        return value[:, 0] if single else value.transpose(0, 1) if net.batch_first else value

    def few(values: list[Any]) -> Any:
        return values[0] if len(values) == 1 else tuple(values)

    more: dict[str, Any] = {name: lay(value) for name, value in call.steps.items()}
    more |= call.words
    if call.static:
        more["static"] = few([value[0] if single else value for value in call.static])
    if lengths is not None and call.form != "packed":
        more["lengths"] = lengths
    state = (_nested(net, call.states, single),) if call.states else ()
    return (few([lay(x) for x in call.inputs]), *state), more


def run(net: Any, call: Call) -> tuple[dict[str, list[Tensor]], Any]:
    """Results by kind, time-major, and the last states as the module returns them."""
    single, T = call.form == "single", call.inputs[0].shape[0]
    given, more = call_of(net, call)
    torch.manual_seed(7)
    out, *sequences, last = net(*given, **more)

    def lay(value: Any) -> Tensor:
        if isinstance(value, PackedSequence):
            return pad_packed_sequence(value, total_length=T)[0]
        return value.unsqueeze(1) if single else value.transpose(0, 1) if net.batch_first else value

    def flat(values: Any) -> list[Any]:
        return tree_leaves(values, is_leaf=lambda value: isinstance(value, PackedSequence))

    groups = {"output": flat(out), **dict(zip(["state"], map(flat, sequences)))}
    results = {kind: [lay(value) for value in values] for kind, values in groups.items()}
    axis = _axis_of_batch(net)
    results["last"] = [value.unsqueeze(axis) if single else value for value in tree_leaves(last)]
    memory = [getattr(value, "data", value) for value in (*flat(out), *flat(sequences))]
    check_memory([*memory, *tree_leaves(last)])
    return results, last


def check_memory(results: list[Tensor]) -> None:
    """Check that no two results have elements in common. Raises DifferenceError."""
    marked = [value.data for value in results if value.numel()]  # whose versions autograd ignores
    kept = [value.clone() for value in marked]
    for k, value in enumerate(marked):
        value.fill_(-7.0)
        for other, was in zip(marked[k + 1 :], kept[k + 1 :], strict=True):
            if not torch.equal(other, was):
                raise DifferenceError("two results share memory")
    for value, was in zip(marked, kept, strict=True):
        value.copy_(was)


def with_gradients(
    net: nn.Module, results: dict[str, list[Tensor]], leaves: list[Tensor]
) -> Values:
    """Results by name, and the gradients of a sum of all of them."""
    values = {f"{kind} {k}": v for kind, group in results.items() for k, v in enumerate(group)}
    loss: Any = 0.0
    for name, value in values.items():
        source = torch.Generator().manual_seed(sum(map(ord, name)))
        loss = loss + (value * torch.randn(value.shape, generator=source, dtype=F64)).sum()
    weights = dict(net.named_parameters())
    wanted = {**{f"argument {k}": leaf for k, leaf in enumerate(leaves)}, **weights}
    grads = torch.autograd.grad(loss, [*wanted.values()], materialize_grads=True, allow_unused=True)
    return {**values, **{f"gradient of {name}": d for name, d in zip(wanted, grads, strict=True)}}


def compare(way: str, got: Values, want: Values) -> None:
    """Compare what both have. Raises DifferenceError."""
    for name, value in got.items():
        if name not in want:
            continue
        other = want[name]
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        if value.shape != other.shape:
            raise DifferenceError(f"{way}: {name} is {[*value.shape]}, was {[*other.shape]}")
        error = float((value - other).detach().abs().max()) if other.numel() else 0.0
        if not error <= 1e-9 * scale:
            raise DifferenceError(f"{way}: {name} differs by {error:.2e}")


def check_ways(case: Case, ways: list[Way], want: Values) -> int:
    """Compare some of the ways; how many."""
    source = random.Random(case.rest["seed"])
    picked = source.sample(ways, min(WAYS, len(ways)))
    for name, results in picked:
        try:
            got = results()
        except DifferenceError as problem:
            raise DifferenceError(f"{name}: {problem}") from None
        except Exception as error:
            problem = f"{name}: {type(error).__name__}: {error}"
            raise DifferenceError(problem) from error
        compare(name, got, want)
    return len(picked)


def check_module(case: Case) -> int:
    """Run a recurrent module, and again in some ways; how many."""
    net = case.build()
    net.engine = "reference"
    call = arguments(net, case)
    results, _ = run(net, call)
    want = with_gradients(net, results, call.leaves)
    return check_ways(case, list(ways_of_module(case, net, call)), want)


def ways_of_module(case: Case, net: Any, call: Call) -> Iterator[Way]:
    """Ways to run a recurrent module that must not matter."""
    made, T = case.made, call.inputs[0].shape[0]
    loose = net.training and bool(made.get("weight_dropout") or made.get("dropout"))
    drawn = net.training and bool(net.runtime.draws) and "draws" not in call.steps
    plain = not net.bidirectional and call.lengths is None and call.form != "packed"
    plain = plain and not loose and not drawn
    states = "outputs" in call.words

    def again(other: Any, given: Call = call, gradients: bool = True) -> Values:
        other.engine = "reference" if other.engine == "auto" else other.engine
        found, _ = run(other, given)
        if not gradients:
            return {f"{kind} {k}": v for kind, vs in found.items() for k, v in enumerate(vs)}
        return with_gradients(other, found, given.leaves)

    def like(**more: Any) -> Any:
        other = case.build(**more)
        other.load_state_dict(net.state_dict(), strict=False)
        return other

    def started(other: Any) -> Any:
        """With the initial states of the first, zeros if it has none."""
        with torch.no_grad():
            for name, value in other.named_parameters():
                if name not in net.state_dict():
                    value.zero_()
        return other

    yield "a copy", lambda: again(deepcopy(net))
    yield "another plan", lambda: again(like(plan=elman.PlanOptions("save", checkpoint=3)))
    if case.rest["seed"] % 12 == 0:
        yield "engine c", lambda: again(like(engine="c"))
    if call.form == "batch":
        yield "batch_first", lambda: again(like(batch_first=not net.batch_first))
    if call.form == "single":
        yield "a batch of one", lambda: again(net, call._replace(form="batch"))
    elif call.inputs[0].shape[1] == 1 and call.form == "batch" and call.lengths is None:
        yield "unbatched", lambda: again(net, call._replace(form="single"))
    if call.form == "packed" and not loose and not drawn:  # keys are drawn for other rows
        yield "lengths", lambda: again(net, call._replace(form="batch"))
    words = {k: v for k, v in call.words.items() if k != "outputs"}
    words |= {} if states else {"outputs": "states"}
    yield "other outputs", lambda: again(net, call._replace(words=words), gradients=False)
    if call.form == "batch" and call.lengths is None and not loose:
        full = torch.full((call.inputs[0].shape[1],), T)
        yield "full lengths", lambda: again(net, call._replace(lengths=full))
    shape = call.inputs[0].shape[:2]
    if "mask" not in call.steps:
        mask = {**call.steps, "mask": torch.ones(shape)}
        yield "a mask of ones", lambda: again(net, call._replace(steps=mask))
    if "reset" not in call.steps:
        reset = {**call.steps, "reset": torch.zeros(shape)}
        yield "no resets", lambda: again(net, call._replace(steps=reset))
    idle = all(runner.cell.idle for runner in net.runners.values())
    limit = {} if "clip_gradient" in made or idle else {"clip_gradient": 1e30}
    neutral: dict[str, Any] = {**limit}
    if "residual" not in made and net.num_layers == 1:
        neutral["residual"] = True
    heads = net.runtime.heads
    if "learn_initial" not in made and not idle and (heads is None or heads.count == 1):
        neutral["learn_initial"] = True
    yield f"with {neutral}", lambda: again(started(like(**neutral)))
    if not net.training:
        none = {name: 0.0 for name in DROPS if name in made}
        yield "without dropout", lambda: again(like(**none))
    if plain and T > 1 and call.words.get("reset_to") != "initial" and not states:
        yield "in chunks", lambda: in_chunks(net, call)
        if call.form == "batch":
            yield "by steps", lambda: by_steps(net, call)
        if not {*call.words, "draws"} & {*call.words, *call.steps} and not call.words:
            yield "as a stream", lambda: as_stream(net, call)
    if not loose and not drawn and call.form == "batch" and call.lengths is None:
        yield "sample by sample", lambda: by_samples(net, call)
    if {*made} <= {*TORCHS} and isinstance(net, nn.RNNBase) and not loose and not call.steps:
        if not call.words and call.lengths is None:
            yield "torch's layer", lambda: again(torchs(case, net))


def torchs(case: Case, net: Any) -> Any:
    """A drop-in by torch's own layer."""
    other = deepcopy(net)
    layer = getattr(nn, case.rest["target"])
    other.forward = lambda *given, **more: layer.forward(net, *given, **more)
    other.named_parameters = net.named_parameters
    return other


def in_chunks(net: Any, call: Call) -> Values:
    """Two calls, the second from the first one's last states."""
    cut = call.inputs[0].shape[0] // 2
    first, after = run(net, call.part(0, cut))
    states = tree_leaves(after)
    states = [v.unsqueeze(_axis_of_batch(net)) for v in states] if call.form == "single" else states
    second, _ = run(net, call.part(cut, call.inputs[0].shape[0])._replace(states=states))
    pairs = zip(first["output"], second["output"], strict=True)
    joined = {"output": [torch.cat(pair) for pair in pairs]}
    return with_gradients(net, {**joined, "last": second["last"]}, call.leaves)


def by_steps(net: Any, call: Call) -> Values:
    """Step by step."""
    given, more = call_of(net, call)
    state = given[1] if len(given) > 1 else None
    static = {"static": more["static"]} if "static" in more else {}
    if {*more} - {"static", "reset", "mask", "draws"}:
        return {}
    rows: list[list[Tensor]] = []
    for t in range(call.inputs[0].shape[0]):
        row = tuple(x[t] for x in call.inputs)
        flags = {name: value[t] for name, value in call.steps.items()}
        out, state = net.step(row if len(row) > 1 else row[0], state, **flags, **static)
        rows.append(tree_leaves(out))
    outputs = [torch.stack(each) for each in zip(*rows, strict=True)]
    return with_gradients(net, {"output": outputs, "last": tree_leaves(state)}, call.leaves)


def as_stream(net: Any, call: Call) -> Values:
    """A Stream in chunks, which has no gradients."""
    given, more = call_of(net, call)
    state = given[1] if len(given) > 1 else None
    stream = elman.Stream(net, state, static=more.get("static"))
    chunks = []
    for begin, end in ((0, 1), (1, call.inputs[0].shape[0])):
        (x, *_), flags = call_of(net, call.part(begin, end))
        chunks.append(tree_leaves(stream(x, **{k: flags[k] for k in call.steps})))
    axis = 1 if net.batch_first and call.form == "batch" else 0
    outs = [torch.cat(each, axis) for each in zip(*chunks, strict=True)]
    outs = [value.transpose(0, 1) for value in outs] if axis else outs
    outs = [value.unsqueeze(1) for value in outs] if call.form == "single" else outs
    return {f"output {k}": value for k, value in enumerate(outs)}


def by_samples(net: Any, call: Call) -> Values:
    """Each sample by itself."""
    axis, B = _axis_of_batch(net), call.inputs[0].shape[1]
    each = [run(net, call.sample(k, axis))[0] for k in range(B)]
    joined = {
        kind: [
            torch.cat(parts, axis if kind == "last" else 1)
            for parts in zip(*[one[kind] for one in each], strict=True)
        ]
        for kind in each[0]
    }
    return with_gradients(net, joined, call.leaves)
