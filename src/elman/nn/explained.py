"""From a module to what ``elman.explaining`` takes: its layers, as they would run on an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman import explaining
from elman.errors import InputError, rows
from elman.explaining import Explanation, Layer
from elman.frontend.cell import Cell
from elman.nn.asking import left_to_torch, wanted
from elman.nn.packing import Packing
from elman.nn.recurrent import Recurrent
from elman.nn.runner import Runner, sizes_of
from elman.plan.spec import Spec
from elman.tuning.choose import octave


def explain(what: Cell | nn.Module, x: Any = None, **options: Any) -> Explanation:
    """Show every stage: formula, canonical and backward step, program, engines, memory and work.

    ``print(elman.explain(net, x))``. Nothing is run on x itself: it gives sizes, dtype, device and
    which gradients are wanted; engines are measured on random data of that shape, as ``auto`` does.

    Args:
        what: a cell, or one of elman's modules.
        x: an example input of the module, as its ``forward`` takes it.
        options: for a cell ``input_size``, ``hidden_size``, ``steps``, ``batch``, ``dtype``,
            ``device``, ``training``, ``tape``, ``engine``, its dims; for both ``measure=False``.

    Returns:
        An object to print, with ``stages``, ``engines``, ``tape_bytes`` and ``flops``.

    Raises:
        InputError: no module of elman's, or no x for one.
        EngineError: the engine asked for by name cannot run this; the text says why.
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
    runners: Any = getattr(module, "runners", None)
    if not isinstance(runners, dict) or not runners:
        raise InputError(_no_layers(module))
    inputs = [x.data] if isinstance(x, PackedSequence) else x
    inputs = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    if not inputs or not all(isinstance(part, Tensor) for part in inputs):
        raise InputError(
            rows(
                f"explain needs an example input of this {type(module).__name__}",
                [("x", type(x).__name__)],
                "elman.explain(net, x), x being what net(x) takes",
            )
        )
    steps, batch = _sizes(module, x, inputs[0])
    like = inputs[0]
    parameters = list(module.parameters())
    dtype = parameters[0].dtype if parameters else like.dtype
    engine = wanted(module.engine)  # type: ignore[arg-type]
    elsewhere = _elsewhere(module, like, engine)
    layers: list[Layer] = []
    flows = [part.requires_grad for part in inputs]
    grad = torch.is_grad_enabled()
    below = flows[0]
    count = len(runners) // module.num_layers  # type: ignore[operator]
    for index, (name, runner) in enumerate(runners.items()):
        if index % count == 0 and index:
            below = below or any(_flows(module, list(runners)[:index]))
        of = _spec(module, name, runner, [below, *flows[1:]], grad, dtype, like.device.type)
        layers.append(
            Layer(
                name,
                runner.cell,
                of,
                steps,
                batch,
                engine,
                elsewhere,
                None if elsewhere else _chosen(runner, of, steps, batch, engine),
            )
        )
    return layers


def _no_layers(module: nn.Module) -> str:
    inside = [
        name
        for name, part in module.named_modules()
        if isinstance(getattr(part, "runners", None), dict)
    ]
    if inside:
        hint = f"elman.explain(model.{inside[0]}, x), x being that layer's input"
    elif any(isinstance(part, nn.RNNBase) for part in module.modules()):
        hint = "elman.accelerate(model) first: it is torch's own layer"
    else:
        hint = "elman.explain(elman.GRU(8, 16), x)"
    return rows(f"{type(module).__name__} is no recurrent module of elman's", [], hint)


def _sizes(module: Any, x: Any, first: Tensor) -> tuple[int, int]:
    """T and B of an input."""
    if isinstance(x, PackedSequence):
        return sizes_of(x.data, Packing.of(x).ragged)
    scalar = isinstance(module, Recurrent) and not module.cell.inputs[0].shape
    full = 2 if scalar else 3
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
    if isinstance(module, Recurrent):
        return None
    if engine == "aten":
        return "engine aten, asked for by name"
    return None if engine == "reference" else left_to_torch(like)


def _weights(module: Any, suffix: str, runner: Runner) -> Sequence[Tensor]:
    if isinstance(module, Recurrent):
        return [getattr(module, f"{weight.name}_{suffix}") for weight in runner.cell.weights]
    found = [getattr(module, name) for name in module._flat_weights_names if name.endswith(suffix)]
    return found


def _flows(module: Any, suffixes: Sequence[str]) -> list[bool]:
    return [
        weight.requires_grad
        for suffix in suffixes
        for weight in _weights(module, suffix, module.runners[suffix])
    ]


def _spec(
    module: Any,
    suffix: str,
    runner: Runner,
    inputs: Sequence[bool],
    grad: bool,
    dtype: torch.dtype,
    device: str,
) -> Spec:
    """What a layer's kernel is made for: the gradients that would flow."""
    cell = runner.cell
    needs = dict(zip((entry.name for entry in cell.inputs), inputs, strict=True))
    weights = _weights(module, suffix, runner)
    for entry, weight in zip(cell.weights, weights):
        needs[entry.name] = weight.requires_grad
    wants = frozenset(name for name, need in needs.items() if need and grad)
    name = str(dtype).removeprefix("torch.")
    return Spec(runner.dims, name, device, wants, bool(wants), runner.tape)


def _chosen(runner: Runner, spec: Spec, steps: int, batch: int, engine: str) -> Any:
    """What the layer has chosen already for a call like this one."""
    names = [entry.name for entry in (*runner.cell.inputs, *runner.cell.weights)]
    bits = 0
    for name in names:
        bits += bits + (name in spec.wants)
    dtype = getattr(torch, spec.dtype)
    key = (dtype, spec.device, bits, spec.training, octave(steps), octave(batch), False, engine)
    found = runner.choices.get(runner.show(key))
    return found if found is not None and engine in ("auto", found.engine) else None
