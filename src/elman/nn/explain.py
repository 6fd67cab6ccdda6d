"""From a module to what ``elman.explaining`` takes: its layers, as they would run on an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman import explaining
from elman.engines.call import Call
from elman.errors import InputError, diagnostic
from elman.explaining import Explanation, Layer
from elman.frontend.cell import Cell
from elman.nn.arguments import Marks, Prepared
from elman.nn.dispatch import Rules, sizes_for_choosing
from elman.nn.draws import no_keys
from elman.nn.layers import TorchLayers
from elman.nn.options import Option, extended, rules_of
from elman.nn.outputs import Outputs, checked_outputs, rules_for
from elman.nn.sequence import SequenceModule
from elman.nn.spans import in_spans
from elman.nn.using import checked, unsuitable, wanted
from elman.plan.checkpoint import EVERYTHING
from elman.tuning.request import Request

_OF_CALLS = (
    "state",
    "lengths",
    "reset",
    "reset_to",
    "mask",
    "masked_output",
    "draws",
    "static",
    "outputs",
)


def explain(what: Cell | nn.Module, x: Any = None, **options: Any) -> Explanation:
    """Show every stage: formula, canonical and backward step, program, engines, memory and work.

    ``print(elman.explain(net, x))``. Nothing is run on x itself: it gives sizes, dtype, device and
    which gradients are wanted; engines are benchmarked on random data of that shape, as ``auto``
    does.

    Args:
        what: a cell, or one of elman's modules.
        x: an example input of the module, as its ``forward`` takes it.
        options: for a cell ``input_size``, ``hidden_size``, ``steps``, ``batch``, ``dtype``,
            ``device``, ``training``, ``tape``, ``without``, ``engine``, its dims; for a module what
            its ``forward`` takes beside x: ``state``, ``lengths``, ``reset``, ``reset_to``,
            ``mask``, ``masked_output``, ``draws``, ``static``, ``outputs``; for both
            ``measure=False``.

    Returns:
        An object to print, with ``stages``, ``engines``, ``tape_bytes``, ``peak_bytes``, ``flops``
        and ``executed_flops``.

    Raises:
        InputError: no module of elman's, no x for one, or an x for a cell.
        EngineError: the engine asked for by name cannot run this; the text says why.
        ShapeError, InputError: what ``forward`` would raise; ``memory_budget`` is less than x
            needs.

    Example:
        >>> explanation = elman.explain(elman.cells.gru, measure=False)
        >>> "taped" in explanation.stages["program"]
        True
    """
    if isinstance(what, Cell):
        if x is not None:
            meant = f"elman.explain(elman.Recurrent({what.name}, I, H), x), or steps=…, batch=…"
            raise InputError(diagnostic("explain takes no x of a cell", [], meant))
        options["engine"] = wanted(checked(options.get("engine", "auto")))
        return explaining.explain(what, **options)
    if isinstance(what, nn.Module):
        call = {name: options.pop(name) for name in _OF_CALLS if name in options}
        unknown = sorted(options.keys() - {"measure"})
        if unknown:
            raise InputError(
                f"a module has its own {', '.join(unknown)}: explain takes x and what else forward "
                "takes"
            )
        return explaining.explain(layers_of(what, x, **call), **options)
    return explaining.explain(what, x, **options)


def layers_of(
    module: nn.Module,
    x: Any,
    *,
    state: Any = None,
    lengths: Any = None,
    static: Any = None,
    outputs: Outputs = None,
    **marks: Any,
) -> list[Layer]:
    """The layers of a module, as they would run on x now.

    Args:
        module: an elman.RNN, GRU, LSTM or Recurrent.
        x, state, lengths, static, outputs: as its ``forward`` takes them.
        marks: :class:`elman.nn.arguments.Marks`, by name.

    Raises:
        InputError: another module, or x is not an input.
        ShapeError, InputError: as ``forward``.
    """
    if not isinstance(module, SequenceModule):
        raise InputError(_no_layers(module))
    parts = x if isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence) else [x]
    if not parts or not all(isinstance(part, (Tensor, PackedSequence)) for part in parts):
        raise InputError(
            diagnostic(
                f"explain needs an example input of this {type(module).__name__}",
                [("x", type(x).__name__)],
                "elman.explain(net, x), x being what net(x) takes",
            )
        )
    engine, outputs = wanted(module.engine), checked_outputs(outputs)
    given = Marks(**marks).checked()
    elsewhere = _elsewhere(module, x, engine, given, outputs)
    prepared = module._prepared(x, state, lengths, given, module._weights(), static)
    prepared = module._begun(prepared)
    options = module._options(prepared, no_keys)
    calls, every = _calls(module, prepared, options, outputs)
    sizes = sizes_for_choosing(calls[0])
    requests = _requests(module, calls, every, engine)
    layers: list[Layer] = []
    checkpoint = EVERYTHING if elsewhere else module._checkpoint
    groups = module.stack.groups_for(bool(module.residual or (module.training and module.dropout)))
    for number, (group, count) in enumerate(groups):
        members = slice(len(layers), len(layers) + count)
        own, between = requests[members], 0
        if checkpoint and any(request.training for request in own):
            limits = checkpoint._replace(groups=len(groups))
            own, between = in_spans(group.runners, own, (*sizes, 0), limits)
        names, each = [*module.runners][members], every[members]
        for name, runner, request, rules in zip(names, group.runners, own, each, strict=True):
            spec = request.spec(runner.dims, runner.names(rules), runner.options)
            choice = None if elsewhere else runner.chosen(request)
            where = (name, runner.cell, spec, *sizes, request.engine)
            layers.append(Layer(*where, elsewhere, choice, between, number, rules))
    return layers


def _calls(
    module: SequenceModule, prepared: Prepared, options: Sequence[Option], outputs: Outputs
) -> tuple[list[Call], list[Rules]]:
    """What each layer and direction is given, and how its step changes. The output of a layer below
    is not there yet: the module's input stands for it."""
    stack, packing = module.stack, prepared.layout.packing
    calls: list[Call] = []
    every: list[Rules] = []
    starts = stack.form.rows(prepared.states)
    count, directions = len(stack.runners), stack.directions
    for index, runner in enumerate(stack.runners):
        first = index - index % directions
        seen = [o for own in options if (o := own.above(first, runner.cell)) is not None]
        given = tuple([prepared.inputs[k] for k in stack.takes[index]])
        packed = None if packing is None else packing.packed
        call = Call(given, tuple(starts[index]), tuple(prepared.weights[index]), packed)
        calls.append(extended(call, seen, bool(index - first), index - first))
        every.append(rules_for(runner.cell, first + directions == count, outputs) + rules_of(seen))
    return calls, every


def _requests(
    module: SequenceModule, calls: Sequence[Call], every: Sequence[Rules], engine: str
) -> list[Request]:
    """What is asked of each layer and direction."""
    requests: list[Request] = []
    below = trained = calls[0].inputs[0].requires_grad
    for index, (runner, call, rules) in enumerate(
        zip(module.stack.runners, calls, every, strict=True)
    ):
        if index % module.stack.directions == 0:
            below = trained
        first, fixed = len(runner.cell.inputs), len(runner.cell.static)
        static = call.inputs[first : first + fixed]  # further states of the step, see Runner.held
        inputs = (*call.inputs[:first], *call.inputs[first + fixed :])
        call = call._replace(inputs=inputs, states=(*call.states, *static))
        flows = [below, *[part.requires_grad for part in inputs[1:]]]
        request = runner.request(call, flows, engine, rules)
        trained = trained or request.training
        requests.append(request)
    return requests


def _no_layers(module: nn.Module) -> str:
    inside = [name for name, part in module.named_modules() if isinstance(part, SequenceModule)]
    if inside:
        hint = f"elman.explain(model.{inside[0]}, x), x being that layer's input"
    elif any(isinstance(part, nn.RNNBase) for part in module.modules()):
        hint = "elman.accelerate(model) first: it is torch's own layer"
    else:
        hint = "elman.explain(elman.GRU(8, 16), x)"
    return diagnostic(f"{type(module).__name__} is not a recurrent module of elman", [], hint)


def _elsewhere(
    module: SequenceModule, x: Any, engine: str, marks: Marks, outputs: Outputs
) -> str | None:
    """Why torch's own layers run a module whatever its engines could do, or None."""
    if not isinstance(module, TorchLayers):
        return None
    more = module._beyond_torch(engine, marks, outputs)
    if engine == "aten" and not more:
        return "engine aten, asked for by name"
    return unsuitable(x, engine, bool(more))
