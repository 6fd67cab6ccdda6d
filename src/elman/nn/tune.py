"""Benchmark the engines for a model and an input before its first training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from elman.errors import InputError
from elman.explaining.layers import Candidate, candidates_of, choice_of, engine_texts
from elman.nn.call.dense import check_model
from elman.nn.explain import layers_of
from elman.nn.modules.sequence import SequenceModule
from elman.tuning.choose import Choice, choose


@dataclass(frozen=True)
class Tuned:
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


def tune(model: nn.Module, x: Any, *, again: bool = False, **call: Any) -> Tuned:
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
    names, chosen = list[str](), []
    for name, module, arguments, options in _calls(model, x, call):
        if again:
            module._parts = module._make_parts()  # without plans and choices of earlier calls
        for layer in layers_of(module, *arguments, **options):
            if again and layer.elsewhere is None and layer.cell.states:
                choose(layer.job, layer.at_once, layer.batch, layer.engine, again=True)
            chosen.append((layer, choice_of(layer, measure=True)))
            names.append(f"{name}: " if name else "")
    candidates = [each for layer, choice in chosen for each in candidates_of(layer, choice)]
    sure = all(choice.sure for _, choice in chosen if isinstance(choice, Choice))
    lines = [
        line
        for name, pair in zip(names, chosen, strict=True)
        for k, line in enumerate(engine_texts([pair], measure=False))
        for line in ([f"{name}{line}"] if k == 0 else [line])
    ]
    return Tuned(tuple(candidates), sure, "\n".join(lines))


def _calls(
    model: nn.Module, x: Any, call: dict[str, Any]
) -> list[tuple[str, SequenceModule, tuple[Any, ...], dict[str, Any]]]:
    """The calls of elman's layers inside a call of the model: name, module, its arguments."""
    if isinstance(model, SequenceModule):
        return [("", model, (x,), call)]
    check_model("elman.tune", model)
    names = {part: name for name, part in model.named_modules() if isinstance(part, SequenceModule)}
    if not names:
        hint = "elman.accelerate(model) first, if its layers are torch's"
        raise InputError("tune finds no recurrent layer of elman's", hint)
    calls: dict[SequenceModule, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def note(part: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        calls.setdefault(part, (arguments, options))  # type: ignore[arg-type]

    handles = [part.register_forward_pre_hook(note, with_kwargs=True) for part in names]
    try:
        model(x, **call)
    finally:
        for handle in handles:
            handle.remove()
    return [(names[part], part, *arguments) for part, arguments in calls.items()]
