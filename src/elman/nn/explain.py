"""From a module to what ``elman.explaining`` takes: its layers, as they would run on an input."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman import compiler, explaining
from elman.engines.call import Call
from elman.errors import InputError, diagnostic
from elman.explaining import Explanation, Layer
from elman.frontend.cell import Cell
from elman.nn.packing import Packing
from elman.nn.sequence import SequenceModule
from elman.nn.spans import in_spans
from elman.nn.using import unserved, wanted
from elman.plan.checkpoint import EVERYTHING
from elman.tuning.request import Request


def explain(what: Cell | nn.Module, x: Any = None, **options: Any) -> Explanation:
    """Show every stage: formula, canonical and backward step, program, engines, memory and work.

    ``print(elman.explain(net, x))``. Nothing is run on x itself: it gives sizes, dtype, device and
    which gradients are wanted; engines are benchmarked on random data of that shape, as ``auto``
    does.

    Args:
        what: a cell, or one of elman's modules.
        x: an example input of the module, as its ``forward`` takes it.
        options: for a cell ``input_size``, ``hidden_size``, ``steps``, ``batch``, ``dtype``,
            ``device``, ``training``, ``tape``, ``without``, ``engine``, its dims; for both
            ``measure=False``.

    Returns:
        An object to print, with ``stages``, ``engines``, ``tape_bytes``, ``peak_bytes`` and
        ``flops``.

    Raises:
        InputError: no module of elman's, or no x for one.
        EngineError: the engine asked for by name cannot run this; the text says why.
        InputError: ``memory_budget`` is less than x needs.

    Example:
        >>> told = elman.explain(elman.cells.gru, measure=False)
        >>> "taped" in told.stages["program"]
        True
    """
    if isinstance(what, Cell):
        options["engine"] = wanted(options.get("engine", "auto"))
        return explaining.explain(what, **options)
    if isinstance(what, nn.Module):
        unknown = sorted(options.keys() - {"measure"})
        if unknown:
            raise InputError(f"a module has its own {', '.join(unknown)}: explain takes x alone")
        return explaining.explain(layers_of(what, x), **options)
    return explaining.explain(what, x, **options)


def layers_of(module: nn.Module, x: Any) -> list[Layer]:
    """The layers of a module, as they would run on x now.

    Args:
        module: an elman.RNN, GRU, LSTM or Recurrent.
        x: an input as its ``forward`` takes it.

    Raises:
        InputError: another module, or x is no input.
    """
    if not isinstance(module, SequenceModule):
        raise InputError(_no_layers(module))
    inputs = [x.data] if isinstance(x, PackedSequence) else x
    inputs = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    if not inputs or not all(isinstance(part, Tensor) for part in inputs):
        raise InputError(
            diagnostic(
                f"explain needs an example input of this {type(module).__name__}",
                [("x", type(x).__name__)],
                "elman.explain(net, x), x being what net(x) takes",
            )
        )
    steps, batch = _sizes(module, x, inputs[0])
    like = inputs[0]
    parameters = list(module.parameters())
    shaped = (parameters[0] if parameters else like).new_empty(steps, batch, 0)
    engine = wanted(module.engine)
    elsewhere = _elsewhere(module, like, engine)
    flows = [part.requires_grad for part in inputs]
    each_rules = [
        compiler.training_rules(runner.cell) if module.training else ()
        for runner in module.stack.runners
    ]
    requests: list[Request] = []
    below = trained = flows[0]
    directions = module.stack.directions
    for index, (weights, runner) in enumerate(
        zip(module._weights(), module.runners.values(), strict=True)
    ):
        if index % directions == 0:
            below = trained
        rules, takes = each_rules[index], module.stack.takes[index][1 : len(runner.cell.inputs)]
        own = [below, *[flows[k] for k in takes]]
        own += [False] * (len(runner.names(rules)) - len(runner.names()))
        request = runner.request(Call((shaped,), (), tuple(weights)), own, engine, rules)
        trained = trained or request.training
        requests.append(request)
    layers: list[Layer] = []
    asked = EVERYTHING if elsewhere else module._asked
    groups = module.stack.groups_for(bool(module.residual or (module.training and module.dropout)))
    for number, (group, count) in enumerate(groups):
        own = requests[len(layers) : len(layers) + count]
        between = 0
        if asked and any(request.training for request in own):
            limits = asked._replace(groups=len(groups))
            own, between = in_spans(group.runners, own, (steps, batch, 0), limits)
        members = slice(len(layers), len(layers) + count)
        names, each = [*module.runners][members], each_rules[members]
        for name, runner, request, rules in zip(names, group.runners, own, each, strict=True):
            spec = request.spec(runner.dims, runner.names(rules), runner.options)
            choice = None if elsewhere else runner.chosen(request)
            where = (name, runner.cell, spec, steps, batch, request.engine)
            layers.append(Layer(*where, elsewhere, choice, between, number, rules))
    return layers


def _no_layers(module: nn.Module) -> str:
    inside = [name for name, part in module.named_modules() if isinstance(part, SequenceModule)]
    if inside:
        hint = f"elman.explain(model.{inside[0]}, x), x being that layer's input"
    elif any(isinstance(part, nn.RNNBase) for part in module.modules()):
        hint = "elman.accelerate(model) first: it is torch's own layer"
    else:
        hint = "elman.explain(elman.GRU(8, 16), x)"
    return diagnostic(f"{type(module).__name__} is no recurrent module of elman's", [], hint)


def _sizes(module: Any, x: Any, first: Tensor) -> tuple[int, int]:
    """T and B of an input; of packed sequences how many a step has."""
    if isinstance(x, PackedSequence):
        packed = Packing.of(x).packed
        return packed.steps, packed.mean_batch
    full = module._rank
    if first.dim() not in (full, full - 1):
        raise InputError(
            f"x must have {full} dimensions (or {full - 1}, unbatched), got {first.dim()}"
        )
    if first.dim() == full - 1:
        return first.shape[0], 1
    steps, batch = first.shape[:2]
    return (batch, steps) if module.batch_first else (steps, batch)


def _elsewhere(module: Any, like: Tensor, engine: str) -> str | None:
    """Why torch's own layers run a module whatever its engines could do, or None."""
    if not isinstance(module, nn.RNNBase):
        return None
    if engine == "aten" and module.checkpoint is None and not module.without:
        return "engine aten, asked for by name"
    return None if engine == "reference" else unserved(like)
