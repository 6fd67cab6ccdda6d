"""Checks of a checkpoint against the model and the settings of the run that it continues.

They come before any of it is used. Its hashes say that the bytes are those that were written,
not who wrote them: torch's fused optimizers read and write as many numbers of a moment as its
weight has, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import RunError
from elman.layers import Stack
from elman.nn.modules.sequence import SequenceModule
from elman.train.loop.config import Config
from elman.train.loop.metrics import Tally
from elman.train.loop.optimizer import optimizer_state

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KINDS = {"none": range(1), "tensor": range(1, 2), "tuple": range(1, 1000)}  # of a carried state
GROUPS = ("model", "optimizer", "carried", "random")


@dataclass(frozen=True)
class Facts:
    """The facts of a checkpoint besides its tensors.

    Attributes:
        carried: the kind of the carried state, of `KINDS`.
        optimizer: numbers of the optimizer's state, by "index.name".
        tally: sums of the run so far.
        choices: kernels of each layer.
    """

    carried: str
    optimizer: dict[str, int | float | None]
    tally: Tally
    choices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tally = self.tally
        if (tally.step and not tally.seconds > 0) or (tally.count and not tally.since_s > 0):
            raise ValueError("tally has steps that took no time")
        if tally.steps is not None and tally.steps < tally.step:
            raise ValueError("tally has more steps than its run")


def group_tensors(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Sort tensors by the first part of their names."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, inner = name.partition(".")
        groups.setdefault(group, {})[inner] = value
    return groups


def in_order(parts: Mapping[str, Tensor]) -> list[Tensor]:
    """Tensors whose names count them, as 0, 1, … 10."""
    return [parts[name] for name in sorted(parts, key=lambda name: (len(name), name))]


def check_sizes(config: Config, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that is larger than its weights, before it is built. Raises RunError: it has
    more layers than there are weights, or more units than the longest."""
    longest = max((size for value in weights.values() for size in value.shape), default=0)
    for name, most in (("layers", len(weights)), ("hidden", longest), ("embedding", longest)):
        size = getattr(config, name, 0)
        if size > most:
            raise misfit(f"{name} is {size}, and the weights are of {most} at most")


def check_weights(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse weights that are not exactly those of a model. Raises RunError: one is missing, too
    many, or of another shape or dtype."""
    expected = {name: form(value) for name, value in model.state_dict().items()}
    _check({name: form(value) for name, value in weights.items()}, expected)


def check_state(
    tensors: Mapping[str, Tensor], facts: Facts, config: Config, model: nn.Module, by: Any
) -> None:
    """Check the state that a run is to continue from.

    Args:
        tensors: all of a checkpoint.
        config: of the run.
        model, by: what they are for, and its optimizer.

    Raises:
        RunError: one is missing, too many, or of another shape or dtype.
    """
    groups = group_tensors(tensors)
    if unknown := sorted(set(groups) - set(GROUPS)):
        raise misfit(f"{unknown[0]} is no part of a checkpoint")
    check_weights(groups.get("model", {}), model)
    _check_memory(groups.get("optimizer", {}) | facts.optimizer, by, config)
    _check_random(groups.get("random", {}))
    _check_carried(groups, facts.carried, config, model)


def form(value: Any) -> str:
    """The shape and dtype of a tensor, in words."""
    if not isinstance(value, Tensor):
        return "nothing" if value is None else "a number"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def misfit(mismatch: str) -> RunError:
    """Build the error for a checkpoint of another model."""
    return RunError("the checkpoint is of another model", found=mismatch)


def _check(actual: Mapping[str, str], expected: Mapping[str, str], place: str = "") -> None:
    """Compare forms by name with the expected ones."""
    for name in expected:
        if name not in actual:
            raise misfit(f"{place}{name} is missing")
        if actual[name] != expected[name]:
            raise misfit(f"{place}{name} is {actual[name]}, not {expected[name]}")
    if extra := sorted(actual.keys() - expected.keys()):
        raise misfit(f"{place}{extra[0]} is one too many")


def _check_memory(values: Mapping[str, Any], optimizer: Any, config: Config) -> None:
    """Check the state of an optimizer: complete for a parameter, or absent if it had no gradient
    yet."""
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    names = optimizer_state(config.optimizer, config.momentum, config.nesterov)
    actual: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        index, _, name = key.partition(".")
        actual.setdefault(index, {})[name] = form(value)
    for index, forms in actual.items():
        if not index.isascii() or not index.isdigit() or int(index) >= len(parameters):
            raise misfit(f"optimizer.{index} is of no weight")
        weight = parameters[int(index)]
        alike = {name for name, value in names.items() if isinstance(value, Tensor) and value.dim()}
        expected = {name: form(weight if name in alike else value) for name, value in names.items()}
        _check(forms, expected, f"optimizer.{index}.")


def _check_random(states: Mapping[str, Tensor]) -> None:
    """Check the states of random number generators, [processes, bytes]."""
    if "cpu" not in states:
        raise misfit("random.cpu is missing")
    size, processes = torch.get_rng_state().numel(), states["cpu"].shape[:1]
    for name, value in states.items():
        right = value.dtype == torch.uint8 and value.dim() == 2 and value.shape[:1] == processes
        right = right and len(value) > 0 and (name == "cuda" or value.shape[1] == size)
        if name not in ("cpu", "cuda") or not right:
            raise misfit(f"random.{name} is {form(value)}")


def _check_carried(
    groups: Mapping[str, Mapping[str, Tensor]], kind: str, config: Config, model: nn.Module
) -> None:
    """Check the carried state of recurrent layers, [processes, layers, rows, …]."""
    parts, processes = groups.get("carried", {}), len(groups["random"]["cpu"])
    if kind not in KINDS or len(parts) not in KINDS[kind]:
        raise misfit(f"{len(parts)} carried states, which are called {kind!r}")
    if config.batch % processes:
        raise misfit(f"{processes} processes, for a batch of {config.batch}")
    shapes = [list(value.shape) for value in in_order(parts)]
    rows = config.batch // processes
    layers = [m.runtime for m in model.modules() if isinstance(m, SequenceModule)]
    expected = [
        [[processes, layer.signature.lead, rows, *size] for size in layer.state_sizes]
        for layer in layers
    ]
    stacks = [m.state_shapes(rows) for m in model.modules() if isinstance(m, Stack)]
    expected += [[[processes, *shape] for shape in shapes] for shapes in stacks]
    if parts and shapes not in expected:
        raise misfit(f"the carried state is {shapes}, not {expected}")
    dtypes = {torch.float32, *(value.dtype for value in model.parameters())}
    dtypes |= {torch.bfloat16, torch.float16} if "mixed" in config.precision else set()
    for name, value in parts.items():
        if value.dtype not in dtypes:
            raise misfit(f"carried.{name} is {form(value)}")
