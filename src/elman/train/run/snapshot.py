"""A stepper's whole state as named tensors and facts, and back: what makes a resume exact."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from elman.train.distributed.gradients import divide_as, gather
from elman.train.loop.config import Config
from elman.train.loop.stepper import Stepper
from elman.train.run.forms import (
    Facts,
    check_state,
    check_weights,
    group_tensors,
    in_order,
    misfit,
)


def capture(stepper: Stepper) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copy weights, optimizer, carried state and random numbers; every process must call it."""
    tensors = {f"model.{name}": value for name, value in stepper.plain.state_dict().items()}
    numbers: dict[str, Any] = {}
    for index, values in stepper.optimizer.state_dict()["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers[f"{index}.{name}"] = value
    state = stepper.state
    kind = "none" if state is None else "tensor" if isinstance(state, Tensor) else "tuple"
    parts = {"none": [], "tensor": [state], "tuple": state}[kind]
    local = {f"carried.{k}": part for k, part in enumerate(parts)} | random_numbers()
    tensors |= {name: gather_processes(stepper.fabric, value) for name, value in local.items()}
    return copy_tensors(tensors), {"carried": kind, "optimizer": numbers}


def capture_weights(stepper: Stepper) -> dict[str, Tensor]:
    """Copy the weights alone; every process must call it."""
    weights = stepper.plain.state_dict()
    return copy_tensors({f"model.{name}": value for name, value in weights.items()})


def copy_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors to the CPU, divided ones whole.

    In one order in all processes, which gather together; that of a file that was read is any.
    """
    ordered = sorted(tensors.items())
    return {name: gather(value.detach()).cpu().clone() for name, value in ordered}


def restore(stepper: Stepper, tensors: dict[str, Tensor], facts: Facts, config: Config) -> int:
    """Put back what `capture` copied, by as many processes or others that share the same batch.

    Returns:
        How many processes there were.

    Raises:
        RunError: if the tensors are not those of this model.
    """
    check_state(tensors, facts, config, stepper.plain, stepper.optimizer)
    groups = group_tensors(tensors)
    restore_weights(stepper, tensors)
    remember(stepper.optimizer, groups.get("optimizer", {}) | facts.optimizer)
    rank, device = stepper.fabric.global_rank, stepper.fabric.device
    processes, world_size = len(groups["random"]["cpu"]), stepper.fabric.world_size
    carried = in_order(groups.get("carried", {}))
    carried_here = [rows_of_process(value, rank, world_size).to(device) for value in carried]
    stepper.state = None if facts.carried == "none" else tuple(carried_here)
    if facts.carried == "tensor":
        (stepper.state,) = carried_here
    if processes != world_size:
        return processes
    # Copies, because a row of a tensor is not aligned as torch wants a generator's state to be.
    random = {name: value[rank].clone() for name, value in groups["random"].items()}
    try:
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])
    except RuntimeError as error:
        raise misfit(f"the random numbers: {error}") from error
    return processes


def restore_weights(stepper: Stepper, tensors: dict[str, Tensor]) -> None:
    """Put back what `capture_weights` copied. Raises RunError: the tensors are not those of this
    model."""
    weights = group_tensors(tensors).get("model", {})
    check_weights(weights, stepper.plain)
    patterns = stepper.plain.state_dict()
    parts = {name: divide_as(value, patterns[name]) for name, value in weights.items()}
    stepper.plain.load_state_dict(parts)


def remember(optimizer: Any, values: dict[str, Any]) -> None:
    """Give an optimizer what it knew of each parameter, by "index.name"."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        index, _, name = key.partition(".")
        if isinstance(value, Tensor) and int(index) < len(parameters):
            value = divide_as(value, parameters[int(index)])
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


def gather_processes(fabric: Fabric, value: Tensor) -> Tensor:
    """Collect one tensor of every process, [processes, …]."""
    if fabric.world_size == 1:
        return value[None]
    value = value.to(fabric.device).contiguous()
    parts = [torch.empty_like(value) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(parts, value)
    return torch.stack(parts)
