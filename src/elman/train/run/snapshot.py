"""A stepper's whole state as named tensors and facts, and back: what makes a resume exact.

The form of what a checkpoint holds is checked before any of it is used. Its hashes say that the
bytes are those that were written, not who wrote them: torch's fused optimizers read and write as
many numbers of a moment as its weight has, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from elman.errors import RunError
from elman.nn.modules.sequence import SequenceModule
from elman.train.distributed.gradients import divided_as, whole
from elman.train.loop.config import Config
from elman.train.loop.metrics import Tally
from elman.train.loop.optimizer import MEMORY
from elman.train.loop.stepper import Stepper

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
KINDS = {"none": range(1), "tensor": range(1, 2), "tuple": range(1, 1000)}  # of a carried state
GROUPS = ("model", "optimizer", "carried", "random")


@dataclass(frozen=True)
class Facts:
    """What a checkpoint holds besides tensors.

    Attributes:
        carried: the kind of the carried state, of `KINDS`.
        optimizer: numbers that the optimizer remembers, by "index.name".
        tally: what the run has come to.
        choices: what runs each layer.
    """

    carried: str
    optimizer: dict[str, int | float | None]
    tally: Tally
    choices: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tally = self.tally
        if (tally.step and not tally.seconds > 0) or (tally.count and not tally.since_s > 0):
            raise ValueError("tally has steps that took no time")


def grouped(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Sort tensors by the first part of their names."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = value
    return groups


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
    wanted = {name: form(value) for name, value in model.state_dict().items()}
    _check({name: form(value) for name, value in weights.items()}, wanted)


def check_state(
    tensors: Mapping[str, Tensor], facts: Facts, config: Config, model: nn.Module, by: Any
) -> None:
    """Refuse what a run cannot go on with.

    Args:
        tensors: all of a checkpoint.
        config: of the run.
        model, by: what they are for, and its optimizer.

    Raises:
        RunError: one is missing, too many, or of another shape or dtype.
    """
    groups = grouped(tensors)
    if unknown := sorted(set(groups) - set(GROUPS)):
        raise misfit(f"{unknown[0]} is no part of a checkpoint")
    check_weights(groups.get("model", {}), model)
    _check_memory(groups.get("optimizer", {}) | facts.optimizer, by)
    _check_random(groups.get("random", {}))
    _check_carried(groups, facts.carried, config, model)


def form(value: Any) -> str:
    """The shape and dtype of a tensor, in words."""
    if not isinstance(value, Tensor):
        return "nothing" if value is None else "a number"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def misfit(found: str) -> RunError:
    """Build the error for what belongs to another model."""
    return RunError("the checkpoint is of another model", found=found)


def _check(there: Mapping[str, str], wanted: Mapping[str, str], place: str = "") -> None:
    """Refuse forms by name that are not those that are wanted."""
    for name in wanted:
        if name not in there:
            raise misfit(f"{place}{name} is missing")
        if there[name] != wanted[name]:
            raise misfit(f"{place}{name} is {there[name]}, not {wanted[name]}")
    if extra := sorted(there.keys() - wanted.keys()):
        raise misfit(f"{place}{extra[0]} is one too many")


def _check_memory(values: Mapping[str, Any], optimizer: Any) -> None:
    """Refuse what an optimizer cannot go on with: of a parameter all that it remembers, or nothing
    if it had no gradient yet."""
    parameters = [(one, group) for group in optimizer.param_groups for one in group["params"]]
    there: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        index, _, name = key.partition(".")
        there.setdefault(index, {})[name] = form(value)
    for index, forms in there.items():
        if not index.isascii() or not index.isdigit() or int(index) >= len(parameters):
            raise misfit(f"optimizer.{index} is of no weight")
        parameter, group = parameters[int(index)]
        wanted = {name: form(like(parameter, group)) for name, like in memory_of(optimizer).items()}
        _check(forms, wanted, f"optimizer.{index}.")


def memory_of(optimizer: Any) -> Any:
    """The row of `MEMORY` of an optimizer, which Fabric may have wrapped."""
    return MEMORY[type(getattr(optimizer, "optimizer", optimizer))]


def _check_random(states: Mapping[str, Tensor]) -> None:
    """Refuse what are no states of random numbers, [processes, bytes]."""
    if "cpu" not in states:
        raise misfit("random.cpu is missing")
    size = torch.get_rng_state().numel()
    for name, value in states.items():
        count = size if name == "cpu" else value.shape[-1] if value.dim() else 0
        wanted = f"uint8 {[max(1, len(states['cpu'])) if states['cpu'].dim() else 1, count]}"
        if name not in ("cpu", "cuda") or form(value) != wanted:
            raise misfit(f"random.{name} is {form(value)}, not {wanted}")


def _check_carried(
    groups: Mapping[str, Mapping[str, Tensor]], kind: str, config: Config, model: nn.Module
) -> None:
    """Refuse what is no state of recurrent layers, [processes, layers, rows, …]."""
    parts, processes = groups.get("carried", {}), len(groups["random"]["cpu"])
    if kind not in KINDS or len(parts) not in KINDS[kind]:
        raise misfit(f"{len(parts)} carried states, which are called {kind!r}")
    if config.batch % processes:
        raise misfit(f"{processes} processes, for a batch of {config.batch}")
    there = [list(value.shape) for _, value in sorted(parts.items())]
    rows = config.batch // processes
    layers = [one.parts.signature for one in model.modules() if isinstance(one, SequenceModule)]
    known = [[[processes, one.lead, rows, *size] for _, size in one.states] for one in layers]
    if parts and there not in known:
        raise misfit(f"the carried state is {there}, not {known}")
    dtypes = {value.dtype for value in model.parameters()}
    dtypes |= {torch.bfloat16, torch.float16} if "mixed" in config.precision else set()
    for name, value in parts.items():
        if value.dtype not in dtypes:
            raise misfit(f"carried.{name} is {form(value)}")


def capture(stepper: Stepper) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copy weights, optimizer, carried state and random numbers; every process must call it."""
    tensors = named_weights(stepper)
    numbers: dict[str, Any] = {}
    for index, values in stepper.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    kind, parts = taken_apart(stepper.state)
    local = {f"carried.{k}": part for k, part in enumerate(parts)} | random_numbers()
    tensors |= {name: gathered(stepper.fabric, value) for name, value in local.items()}
    return copied(tensors), {"carried": kind, "optimizer": numbers}


def capture_weights(stepper: Stepper) -> dict[str, Tensor]:
    """Copy the weights alone; every process must call it."""
    return copied(named_weights(stepper))


def named_weights(stepper: Stepper) -> dict[str, Tensor]:
    """The weights as checkpoints name them; of a divided model this process's part."""
    return {f"model.{name}": value for name, value in stepper.plain.state_dict().items()}


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, divided ones whole.

    In one order in all processes, which gather together; that of a file that was read is any.
    """
    ordered = sorted(tensors.items())
    return {name: whole(value.detach()).cpu().clone() for name, value in ordered}


def restore(stepper: Stepper, tensors: dict[str, Tensor], facts: Facts, config: Config) -> int:
    """Put back what `capture` copied, by as many processes or others that share the same batch.

    Returns:
        How many processes there were.

    Raises:
        RunError: if the tensors are not those of this model.
    """
    check_state(tensors, facts, config, stepper.plain, stepper.optimizer)
    groups = grouped(tensors)
    restore_weights(stepper, tensors)
    remember(stepper.optimizer, groups.get("optimizer", {}) | facts.optimizer)
    rank, device = stepper.fabric.global_rank, stepper.fabric.device
    then, now = len(groups["random"]["cpu"]), stepper.fabric.world_size
    carried = [value for _, value in sorted(groups.get("carried", {}).items())]
    mine = [rows_of_process(value, rank, now).to(device) for value in carried]
    stepper.state = put_together(facts.carried, mine)
    if then != now:
        return then
    # Copies, because a row of a tensor is not aligned as torch wants a generator's state to be.
    random = {name: value[rank].clone() for name, value in groups["random"].items()}
    try:
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])
    except RuntimeError as error:
        raise misfit(f"the random numbers: {error}") from error
    return then


def restore_weights(stepper: Stepper, tensors: dict[str, Tensor]) -> None:
    """Put back what `capture_weights` copied. Raises RunError: the tensors are not those of this
    model."""
    weights = grouped(tensors).get("model", {})
    check_weights(weights, stepper.plain)
    stepper.plain.load_state_dict(divided(weights, stepper.plain))


def divided(weights: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Cut out of whole weights what this process holds, if a model is divided."""
    held = model.state_dict()
    return {
        name: divided_as(value, held[name]) if name in held else value
        for name, value in weights.items()
    }


def remember(optimizer: Any, values: dict[str, Any]) -> None:
    """Give an optimizer what it knew of each parameter, by "index.name"."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        index, _, name = key.partition(".")
        if isinstance(value, Tensor) and int(index) < len(parameters):
            value = divided_as(value, parameters[int(index)])
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def rows_of_process(value: Tensor, rank: int, processes: int) -> Tensor:
    """Cut one process's rows out of a carried state of all, [then, layers, batch / then, …].

    Returns:
        [layers, batch / processes, …]; a copy.
    """
    if len(value) == processes:
        return value[rank].clone()
    return torch.cat(list(value), dim=1).chunk(processes, dim=1)[rank].clone()


def random_numbers() -> dict[str, Tensor]:
    """Return the states of torch's generators."""
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def gathered(fabric: Fabric, value: Tensor) -> Tensor:
    """Collect one tensor of every process, [processes, …]."""
    if fabric.world_size == 1:
        return value[None]
    value = value.to(fabric.device).contiguous()
    parts = [torch.empty_like(value) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, value)
    return torch.stack(parts)


def taken_apart(state: Any) -> tuple[str, list[Tensor]]:
    """Split a carried state into its kind and its tensors."""
    if state is None:
        return "none", []
    if isinstance(state, Tensor):
        return "tensor", [state]
    return "tuple", list(state)


def put_together(kind: str, parts: list[Tensor]) -> Any:
    """Undo `taken_apart`."""
    return {"none": None, "tensor": parts[0] if parts else None, "tuple": tuple(parts)}[kind]
