"""Inspection of modules: ``explain`` and ``tune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from elman import explaining
from elman.errors import InputError
from elman.explaining import Explanation, Layer
from elman.explaining.layers import Candidate, candidates_of, choice_of, engine_texts
from elman.frontend.cell import Cell
from elman.nn.call.plan import plan_call
from elman.nn.engine_choice import check_engine, requested_engine, unsupported_reason
from elman.nn.execute.layer import sizes_for_choosing
from elman.nn.layout.dense import check_model
from elman.nn.modules.sequence import SequenceModule, StepModule
from elman.nn.modules.torch_layers import TorchLayers
from elman.nn.options.draws import no_keys
from elman.nn.options.registry import NAMES, CallOptions, select_options
from elman.plan.checkpoint import EVERYTHING
from elman.tuning.choose import Choice

_RECURRENT: Any = (SequenceModule, StepModule)


def explain(subject: Cell | nn.Module, x: Any = None, **options: Any) -> Explanation:
    """Explain a cell or module: engine, speed, memory and timed engines; every stage by ``.all``.

    Use ``print(elman.explain(net, x))``. x supplies sizes, dtype, device and the wanted gradients;
    the module does not run on it. Engines are timed on random data of that shape, as ``auto`` does.

    Args:
        subject: a cell, or one of elman's modules.
        x: an example input of the module's ``forward``.
        options: for a cell ``input_size``, ``hidden_size``, ``steps``, ``batch``, ``dtype``,
            ``device``, ``training``, ``plan``, ``engine`` and dims; for a module the other
            arguments of its ``forward``: ``state``, ``lengths``, ``reset``, ``reset_to``,
            ``mask``, ``masked_output``, ``draws``, ``static``, ``outputs``; for both
            ``measure=False``.

    Returns:
        An object to print, with ``summary``, ``stages``, ``engines``, ``tape_bytes``,
        ``peak_bytes``, ``flops`` and ``executed_flops``.

    Raises:
        InputError: the subject is another object, a module without x, or a cell with x.
        EngineError: the named engine cannot run this; the text says why.
        ShapeError, InputError: see ``forward``; or ``memory_budget`` is less than x needs.

    Example:
        >>> explanation = elman.explain(elman.cells.gru, measure=False)
        >>> "taped" in explanation.stages["program"]
        True
    """
    if isinstance(subject, Cell):
        if x is not None:
            suggestion = (
                f"elman.explain(elman.Recurrent({subject.name}, I, H), x), or steps=…, batch=…"
            )
            raise InputError("explain takes no x of a cell", suggestion)
        options["engine"] = requested_engine(check_engine(options.get("engine", "auto")))
        return explaining.explain(subject, **options)
    if isinstance(subject, nn.Module):
        arguments = ("state", *NAMES)
        call = {name: options.pop(name) for name in arguments if name in options}
        unknown = sorted(options.keys() - {"measure"})
        if unknown:
            raise InputError(
                f"a module has its own {', '.join(unknown)}: explain takes x and what else forward "
                "takes"
            )
        return explaining.explain(layers_of(subject, x, **call), **options)
    return explaining.explain(subject, x, **options)


def layers_of(
    module: nn.Module, x: Any, state: Any = None, **options: Unpack[CallOptions]
) -> list[Layer]:
    """The layers of a module, with the choices that a call on x would make now.

    Args:
        module: an elman.RNN, GRU, LSTM or Recurrent.
        x, state, options: arguments of its ``forward``.

    Raises:
        InputError: it is another module, or x is not an input.
        ShapeError, InputError: see ``forward``.
    """
    if isinstance(module, StepModule):
        module, x, state, options = module.layer_call(x, state, **options)
    if not isinstance(module, SequenceModule):
        raise _no_layers(module)
    several = isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence)
    inputs = x if several and not isinstance(module, TorchLayers) else [x]
    if not inputs or not all(isinstance(part, (Tensor, PackedSequence)) for part in inputs):
        raise InputError(
            f"explain needs an example input of this {type(module).__name__}",
            "elman.explain(net, x), x being what net(x) takes",
            x=type(x).__name__,
        )
    engine, call_options = requested_engine(module.engine), select_options(options)
    elsewhere = _elsewhere(module, x, engine, call_options)
    if module.runtime.heads is not None:
        x, state, _ = module.runtime.heads.enter(module, x, state, call_options)
    plan, arguments = plan_call(module, x, state, call_options, engine)
    settings, call = plan.settings, plan.enter(module, arguments, no_keys)
    if elsewhere:
        settings = settings._replace(checkpoint=EVERYTHING)
    names, layers = [*module.runners], list[Layer]()
    for number, question in enumerate(module.stack.ask(call, settings)):
        sizes = sizes_for_choosing(question.calls[0])
        for runner, request in zip(question.group.runners, question.requests, strict=True):
            spec = request.spec(runner.dims, runner.names(request.rules), runner.options)
            choice = None if elsewhere else runner.chosen(request)
            where = (names[len(layers)], runner.cell, spec, *sizes, request.engine)
            between = question.between
            kind = request.dtype, request.device, request.engine
            _, unrounded = runner.precision(*kind, sizes[1])
            rest = (elsewhere, choice, between, number, request.rules, unrounded)
            layers.append(Layer(*where, *rest))
    return layers


def _no_layers(module: nn.Module) -> InputError:
    inside = [name for name, part in module.named_modules() if isinstance(part, _RECURRENT)]
    if inside:
        hint = f"elman.explain(model.{inside[0]}, x), x being that layer's input"
    elif any(isinstance(part, nn.RNNBase) for part in module.modules()):
        hint = "elman.accelerate(model) first: it is torch's own layer"
    else:
        hint = "elman.explain(elman.GRU(8, 16), x)"
    return InputError(f"{type(module).__name__} is not a recurrent module of elman", hint)


def _elsewhere(
    module: SequenceModule, x: Any, engine: str, options: Mapping[str, Any]
) -> str | None:
    """The reason why torch's own layers run a call, whatever engines there are; None if they do
    not."""
    if not isinstance(module, TorchLayers):
        return None
    reasons = module._options_beyond_torch(engine, options)
    if engine == "aten" and not reasons:
        return "engine aten, asked for by name"
    return unsupported_reason(x, engine, bool(reasons), module._type)


@dataclass(frozen=True)
class TuningResult:
    """The engines of a model's recurrent layers, timed; ``print`` it.

    Attributes:
        candidates: every engine and schedule of every layer, fastest first, then those that cannot
            run, with the reason.
        sure: whether more measurements would hardly change a choice. If not, other programs took
            the cores, and later processes go on benchmarking.
        text: the table.
    """

    candidates: Sequence[Candidate]
    sure: bool
    text: str

    def __str__(self) -> str:
        return self.text


def tune(model: nn.Module, x: Any, *, again: bool = False, **call: Any) -> TuningResult:
    """Benchmark the engines for a model and an input, and remember the fastest on this machine.

    This is the work of the first call with ``engine="auto"``, in advance: use it before a run whose
    first steps are timed. The model runs one forward. Choices apply to the current mode
    (``train()`` or ``eval()``), gradients on or off, dtype, device and sizes. The command is
    ``elman tune``.

    Args:
        model: an ``elman.RNN``, ``GRU``, ``LSTM`` or ``Recurrent``, or a model that contains some.
            A model runs once on x to find the inputs of its layers.
        x: an example input of ``model(x)``.
        again: repeat earlier measurements.
        call: further arguments of the call by name, such as ``lengths=`` or ``reset=``.

    Returns:
        The candidates of each layer with their times; ``print`` it.

    Raises:
        InputError: the model has no recurrent layer of elman.
        ShapeError, InputError: as the call itself.
        EngineError: a layer names an engine that cannot run it.

    Example:
        >>> tuned = elman.tune(elman.GRU(8, 16), torch.randn(20, 4, 8))
        >>> tuned.candidates[0].chosen
        True
    """
    layers: list[tuple[str, Layer]] = []
    for name, module, arguments, options in _calls(model, x, call):
        if again and isinstance(module, SequenceModule):
            module._runtime = module._make_runtime()  # without plans and choices of earlier calls
        prefix = f"{name}: " if name else ""
        layers += [(prefix, layer) for layer in layers_of(module, *arguments, **options)]
    return tune_layers(layers, again)


def tune_layers(layers: Sequence[tuple[str, Layer]], again: bool = False) -> TuningResult:
    """Benchmark the engines for layers, each with the prefix of its lines in the table.

    Raises:
        EngineError: a layer names an engine that cannot run it.
    """
    pairs = [(layer, choice_of(layer, measure=True, again=again)) for _, layer in layers]
    lines: list[str] = []
    for (prefix, _), pair in zip(layers, pairs, strict=True):
        first, *further = engine_texts([pair], measure=False)
        lines += [prefix + first, *further]
    rows = tuple(row for layer, choice in pairs for row in candidates_of(layer, choice))
    sure = all(choice.sure for _, choice in pairs if isinstance(choice, Choice))
    return TuningResult(rows, sure, "\n".join(lines))


def _calls(
    model: nn.Module, x: Any, call: dict[str, Any]
) -> list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """The calls of elman's layers inside a call of the model: name, module, its arguments."""
    if isinstance(model, _RECURRENT):
        return [("", model, (x,), call)]
    check_model("elman.tune", model)
    names = {part: name for name, part in model.named_modules() if isinstance(part, _RECURRENT)}
    if not names:
        hint = "elman.accelerate(model) first, if its layers are torch's"
        raise InputError("tune finds no recurrent layer of elman's", hint)
    calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def note(part: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        calls.setdefault(part, (arguments, options))  # type: ignore[arg-type]

    handles = [part.register_forward_pre_hook(note, with_kwargs=True) for part in names]
    try:
        model(x, **call)
    finally:
        for handle in handles:
            handle.remove()
    return [(names[part], part, *arguments) for part, arguments in calls.items()]
