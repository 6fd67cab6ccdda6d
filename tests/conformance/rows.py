"""Every option of a call and of a module as one row: how a module is made, what its calls are
given, and which formula judges it. The checks are in ``test_options``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import elman
from conformance.formulas import GRU, LSTM, NOISY, RICH, SPIKING, TORCHS, noisy, rich, spiking
from conformance.judge import Formula, judged
from elman import PlanOptions, cells
from elman.frontend.cell import Cell

F64 = torch.float64
I, H, S = 12, 6, 3  # of x, of a state, of a static input: two directions are as wide as x, so that
# a second layer has the first one's kernels; layers of unlike sizes are rows of their own
FORMULAS = {cells.gru: GRU, cells.lstm: LSTM, rich: RICH, noisy: NOISY, spiking: SPIKING}
FLAGS = "flags"  # one flag for each step


@dataclass(frozen=True)
class Row:
    """An option, or several.

    Attributes:
        of: a layer of torch's by name, a cell, or a cell for each layer.
        options: of the module.
        call: of its calls; ``FLAGS`` is replaced by random ones.
        per: how often the cell draws, "step" or "sequence"; calls are given their draws.
        has_state: whether calls are given a state.
        refuses: engines that cannot run it, with what they say.
        shown: words of the module's ``repr``.
        explained: words of what ``explain`` prints, or of records.
    """

    of: str | Cell | tuple[Cell, ...] = "GRU"
    options: Mapping[str, Any] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)
    per: tuple[str, ...] = ()
    has_state: bool = True
    refuses: Mapping[str, str] = field(default_factory=dict)
    shown: str = ""
    explained: str = ""

    @property
    def is_layered(self) -> bool:
        """Whether layers have states of their own."""
        return isinstance(self.of, tuple)

    @property
    def draws_by_torch(self) -> bool:
        """Whether a call asks torch's generator for more than the keys of draws."""
        return any(self.options.get(name) for name in ("dropout", "weight_dropout"))

    def make(self, engine: str = "c", **options: Any) -> Any:
        """A module with random weights and initial states, always the same."""
        torch.manual_seed(0)
        options = {"dtype": F64, "engine": engine, **self.options, **options}
        if isinstance(self.of, str):
            net = getattr(elman, self.of)(I, H, **options)
        elif isinstance(self.of, tuple):
            net = elman.Recurrent([*self.of], I, [H, H + 2], **options)
        else:
            sizes = {"S": S} if self.of.static else {}
            net = elman.Recurrent(self.of, I, H, **sizes, **options)
        with torch.no_grad():
            for name, value in net.state_dict().items():
                if name.startswith("initial_"):
                    value.normal_()
        return net

    def formulas(self, layers: int) -> list[Formula]:
        """Of each layer."""
        if isinstance(self.of, tuple):
            return [FORMULAS[one] for one in self.of]
        return [TORCHS[self.of] if isinstance(self.of, str) else FORMULAS[self.of]] * layers


NOT_LINEAR = "clips gradients"
NOT_ATEN = {"aten": "engine aten cannot run"}


def row(of: Any = "GRU", options: Any = None, call: Any = None, **more: Any) -> Row:
    """A row that torch's own layer cannot run."""
    return Row(of, options or {}, call or {}, refuses=more.pop("refuses", NOT_ATEN), **more)


ROWS: dict[str, Row] = {
    "plain": Row("GRU"),
    "lstm": Row("LSTM", has_state=False),
    "reset": row(call={"reset": FLAGS, "reset_to": "zeros"}, explained="reset"),
    "reset to initial": row("LSTM", call={"reset": FLAGS, "reset_to": "initial"}),
    "reset to learned": row("GRU", {"learn_initial": True}, {"reset": FLAGS}),
    "mask": row("LSTM", call={"mask": FLAGS}, explained="mask"),
    "mask, zeros": row(call={"mask": FLAGS, "masked_output": "zeros"}),
    "mask, reset": row(
        cells.gru, call={"mask": FLAGS, "reset": FLAGS, "reset_to": "initial", "outputs": "states"}
    ),
    "outputs": row("LSTM", call={"outputs": "states"}, explained="states"),
    "learn_initial": Row(
        "LSTM", {"learn_initial": True}, has_state=False, shown="learn_initial=True"
    ),
    "zoneout": row("LSTM", {"zoneout": {"h": 0.3, "c": 0.1}}, per=("step",), shown="zoneout={'h'"),
    "recurrent_dropout": row(
        "GRU", {"recurrent_dropout": 0.4}, per=("sequence",), shown="recurrent_dropout=0.4"
    ),
    "recurrent_dropout per step": row(
        "RNN", {"recurrent_dropout": 0.4, "recurrent_dropout_per": "step"}, per=("step",)
    ),
    "draws": row(
        noisy, {"plan": PlanOptions("save")}, per=("step", "sequence"), explained="uniform"
    ),
    "draws, zoneout, mask": row(
        "GRU", {"zoneout": 0.3, "recurrent_dropout": 0.4}, {"mask": FLAGS, "reset": FLAGS},
        per=("step", "sequence"),
    ),
    "weight_dropout": Row("GRU", {"weight_dropout": 0.5}, shown="weight_dropout=0.5"),
    "dropout": Row("GRU", {"num_layers": 2, "dropout": 0.4}, shown="dropout=0.4"),
    "dropout of all": Row("LSTM", {"num_layers": 3, "dropout": 1.0}, has_state=False),
    "clip_gradient": row(
        "GRU", {"clip_gradient": 0.1}, shown="clip_gradient=0.1", explained="clip_gradient",
        refuses=NOT_ATEN | {"deer": NOT_LINEAR},
    ),
    "precision": Row("GRU", {"precision": "bf16"}, shown="precision='bf16'"),
    "residual": Row("LSTM", {"num_layers": 2, "residual": True}, shown="residual=True"),
    "heads": row("GRU", {"heads": 2}, shown="heads=2"),
    "checkpoint": Row("LSTM", {"plan": PlanOptions(checkpoint=2)}, shown="checkpoint=2"),
    "layers of their own": row(
        (cells.gru, cells.lstm), {"heads": 2}, explained="l1, lstm:",
        shown="[gru, lstm], 12, [6, 8]",
    ),
    "layers of sizes": Row((cells.gru, cells.gru), {"learn_initial": True}, shown="12, [6, 8]"),
    "layers of their own, drawn": row(
        (cells.gru, cells.lstm), {"zoneout": {"c": 0.4}, "learn_initial": True},
        {"reset": FLAGS, "outputs": "states"}, per=("step",),
    ),
    "rich": row(rich, call={"outputs": "states"}, explained="once per sequence"),
    "rich, reset, mask": row(
        rich, {"plan": PlanOptions(checkpoint=3)}, {"reset": FLAGS, "mask": FLAGS}, has_state=False
    ),
    "rich, recomputed": row(rich, {"plan": PlanOptions("recompute")}),
    "rich, mask": row(rich, call={"mask": FLAGS, "masked_output": "zeros", "outputs": "states"}),
    "spikes": row(spiking, refuses=NOT_ATEN | {"deer": NOT_LINEAR}, explained="spike"),
    "together": row(
        "LSTM",
        {
            "num_layers": 2, "heads": 2, "residual": True, "zoneout": {"c": 0.3},
            "recurrent_dropout": 0.2, "weight_dropout": 0.2, "clip_gradient": 0.5,
            "learn_initial": True, "plan": PlanOptions(checkpoint=4), "dropout": 0.2,
        },
        {"reset": FLAGS, "mask": FLAGS, "outputs": "states"}, per=("step", "sequence"),
        refuses=NOT_ATEN | {"deer": NOT_LINEAR},
    ),
}  # fmt: skip


@dataclass
class Given:
    """Arguments of a call, time first, with batch: what a module and the judge are given alike.

    Attributes:
        inputs [T, B, n], static [B, n], states [B, n]: of each layer and direction.
        call: ``call`` of the row with its flags [T, B] and draws [T, B, lead, n].
    """

    inputs: list[Tensor]
    static: list[Tensor]
    states: list[list[Tensor]] | None
    call: dict[str, Any]

    @property
    def leaves(self) -> dict[str, Tensor]:
        """What has a gradient, by name."""
        found = {f"x{k}": value for k, value in enumerate(self.inputs)}
        found |= {f"static{k}": value for k, value in enumerate(self.static)}
        for at, own in enumerate(self.states or ()):
            found |= {f"state{at} {k}": value for k, value in enumerate(own)}
        return found


def given_of(row: Row, net: Any, T: int = 5, B: int = 3, seed: int = 1) -> Given:
    """Random arguments of a module's call; the first sample has a reset before its first step, of
    the second no step counts, of the last all do."""
    source = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, dtype=F64).requires_grad_()

    def flags(share: float) -> Tensor:
        return torch.rand(T, B, generator=source) < share

    inputs, static = [drawn(T, B, I)], []
    if row.of is rich:
        inputs, static = [*inputs, drawn(T, B)], [drawn(B, S), drawn(B)]
    call = dict(row.call)
    if "reset" in call:
        call["reset"] = flags(0.4)
        call["reset"][0, 0] = True
    if "mask" in call:
        call["mask"] = flags(0.6)
        call["mask"][:, 1:2] = False
        call["mask"][:, -1] |= B > 2
    if row.per and net.training:
        torch.manual_seed(seed)
        call["draws"] = net.draws(T, B)
    states = None
    if row.has_state:
        states = [[drawn(B, *value.shape[1:]) for value in own] for own in begin_of(row, net, B)]
    return Given(inputs, static, states, call)


def begin_of(row: Row, net: Any, B: int) -> list[list[Tensor]]:
    """What sequences of a module begin with by themselves [B, n], by layer and direction."""
    ways, kept = 1 + net.bidirectional, net.state_dict(keep_vars=True)
    found = []
    for number, formula in enumerate(row.formulas(net.num_layers)):
        size = H + 2 * number if row.is_layered else H
        for back in range(ways):
            own = []
            for name in formula.states:
                shared = kept.get(f"initial_{name}")
                suffix = f"_l{number}{'_reverse' * back}"
                one = kept.get(f"initial_{name}{suffix}")
                value = shared[number * ways + back] if shared is not None else one
                if one is not None:
                    value = one[0] if one.dim() > 1 else one
                if value is None:
                    value = torch.zeros(() if (row.of is rich and name == "n") else size, dtype=F64)
                own.append(value.expand(B, *value.shape))
            found.append(own)
    return found


def form_of(row: Row, states: list[list[Tensor]] | None) -> Any:
    """States of each layer and direction as a module takes them."""
    if states is None:
        return None
    if row.is_layered:
        return [tuple(own) if len(own) > 1 else own[0] for own in states]
    parts = [torch.stack(values) for values in zip(*states)]
    return tuple(parts) if len(parts) > 1 else parts[0]


def judge(row: Row, net: Any, given: Given, weights: Any = None, **changes: Any) -> dict[str, Any]:
    """Values by name, of a call of a module with these arguments."""
    call = {**given.call, **changes}
    outputs = call.pop("outputs", None)
    if "reset" in call:
        call.setdefault("reset_to", None)
    elif "reset_to" in call:
        del call["reset_to"]
    weights = dict(net.state_dict(keep_vars=True)) if weights is None else weights
    values, behind, last = judged(
        row.formulas(net.num_layers), {**row.options, "bidirectional": net.bidirectional}, weights,
        given.inputs, begin_of(row, net, given.inputs[0].shape[1]), state=given.states, per=row.per,
        static=given.static, trains=net.training, **call,
    )  # fmt: skip
    return named(values, behind if outputs else [], _flat(form_of(row, last)))


def named(outputs: Any, states: Any, last: Any) -> dict[str, Any]:
    """Values by name."""
    found = {f"out {k}": value for k, value in enumerate(outputs)}
    found |= {f"state {k}": value for k, value in enumerate(states)}
    return found | {f"last {k}": value for k, value in enumerate(last)}


def values_of(results: Any) -> dict[str, Any]:
    """What a module returns, by the same names."""
    out, *states, last = results
    return named(_flat(out), _flat(states), _flat(last))


def _flat(value: Any) -> list[Any]:
    """Tensors, packed ones too, of a nested result."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "batch_sizes"):
        return [one for part in value for one in _flat(part)]
    return [value]


def arguments(row: Row, given: Given) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments of a module's call, time first. What a mask leaves out is
    NaN."""
    call, inputs = dict(given.call), list(given.inputs)
    if "mask" in call:
        inputs = [
            torch.where(call["mask"].view(*call["mask"].shape, *[1] * (v.dim() - 2)), v, torch.nan)
            for v in inputs
        ]
    if given.static:
        call["static"] = tuple(given.static)
    x = tuple(inputs) if len(inputs) > 1 else inputs[0]
    return (x, form_of(row, given.states)), call


def gradients(values: dict[str, Any], leaves: Mapping[str, Tensor], **more: Any) -> dict[str, Any]:
    """Of a fixed mix of all values, by name; zeros where there is none."""
    source = torch.Generator().manual_seed(7)
    mix = [torch.randn(v.shape, generator=source, dtype=v.dtype) for v in values.values()]
    loss = sum((value * d).sum() for value, d in zip(values.values(), mix))
    found = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True, **more)  # type: ignore[arg-type]
    return {f"d {name}": grad for name, grad in zip(leaves, found)}
