"""A run of any task, from a configuration (or a folder to resume) to a result."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console

import elman.nn
from elman.errors import RunError
from elman.extras import require
from elman.train.distributed.launch import (
    Attempt,
    check_agreement,
    check_copies,
    detect_lost_process,
    find_attempt,
    launch,
    rows_of,
    vote,
    with_processes,
)
from elman.train.loop.config import Config
from elman.train.loop.display import Display
from elman.train.loop.layers import check_cell, refuse_twin
from elman.train.loop.loop import Loop, defer_signals
from elman.train.loop.metrics import MetricsFile, Row
from elman.train.loop.pace import ROUNDS, compare, next_step, settle, time_aside
from elman.train.loop.stepper import Stepper, make_stepper
from elman.train.loop.task import Baseline, Data
from elman.train.run import snapshot
from elman.train.run.checkpoint import Checkpoint, Writer, best_of, load_latest
from elman.train.run.folder import (
    RunFolder,
    check_inner,
    create_run,
    note_run,
    open_run,
    permit_cell,
)
from elman.train.run.forms import Facts as CheckpointFacts
from elman.train.run.forms import check_sizes, check_weights, group_tensors, misfit
from elman.train.run.loading import check_formula, write_spec
from elman.train.run.outcome import Outcome, conclude, describe_baseline
from elman.train.run.record import read_record
from elman.train.run.stored import DamageError, decode
from elman.train.tasks.registry import labels_of, task_of
from elman.tuning.machine import cores, processor
from elman.tuning.timing import time_interleaved
from elman.version import __version__


def machine_facts() -> dict[str, Any]:
    """Return processor, cores, systems and versions."""
    return {
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "elman": __version__,
    }


PACE_SHARE = 0.02  # of the whole time, spent on measuring the time of a step


def start(config: Config, out: Path, console: Console, *, comparing: bool = True) -> Outcome:
    """Train a new model into a new folder below `out`. Raises RunError: the data or the folder
    cannot be used; InputError: the configuration does not fit this machine."""
    began = time.perf_counter()
    attempt = find_attempt(config.timeout, out)
    if attempt.earlier_run is not None:
        cell = config.absolute().cell if ":" in config.cell else None
        return resume(attempt.earlier_run, console, comparing=comparing, attempt=attempt, cell=cell)
    config = with_processes(config)
    check_copies(config)
    check_packages(config)
    check_cell(config)
    fabric = launch(config, attempt)
    task, config = task_of(config), config.absolute()
    labels = labels_of(config)
    display = Display(console if fabric.global_rank == 0 else Console(quiet=True), labels)
    with detect_lost_process("see what the other processes say"):
        data = task.prepare(config)
        check_agreement(fabric, shared_facts(config, data))
        display.say(data.about())
        has_duration = config.steps is None and data.steps() is None
        config = with_steps(config, fabric, data)
        data = data.validating(config)
        facts = data.facts() | {
            "digest": data.digest,
            "size": data.size,
            "loss": labels.loss,
            "score": labels.score.title,
            "baseline": asdict(data.baseline()),
            "machine": machine_facts(),
            "comparing": comparing,
        }
        display.say(f"baseline: {describe_baseline(Baseline(**facts['baseline']), labels)}")
        stepper = build(config, fabric, data)  # what is refused leaves no folder behind
        path = str(create_run(out, task.name).path) if fabric.global_rank == 0 else ""
        folder = RunFolder(Path(fabric.broadcast(path)))
        loop = assemble(config, stepper, data, folder, display)
        if has_duration and fabric.world_size == 1:  # others would have to agree
            loop.end = began + 60 * config.minutes - time_aside(config)
    with folder.lock() if loop.first else nullcontext():
        if loop.first:
            folder.write("facts", facts)
            write_spec(folder, data, config)
            folder.write("config", config.to_json())
            note_run(folder, config)
            attempt.mark_run(folder.path)
        return train_and_conclude(loop, data, facts, began, comparing)


def resume(
    path: Path,
    console: Console,
    *,
    comparing: bool | None = None,
    attempt: Attempt | None = None,
    cell: str | None = None,
    trust: bool = False,
) -> Outcome:
    """Go on with a run from its last checkpoint, with the run's own configuration.

    Args:
        comparing: whether the speed is compared with torch.nn's; as the run began if None.
        attempt: of torchrun, if it is known already.
        cell: file.py:cell, in place of the file that the run names.
        trust: whether the file that the run names may be run, and links in its folder followed.

    Raises:
        RunError: if the folder is not a run, its data or its cell have changed, its cell is in a
            file that is not trusted, or no checkpoint is whole.
        InputError: if a cell is named and the run's is in no file.
    """
    began = time.perf_counter()
    folder = open_run(path)
    record = read_record(folder)
    config, facts = record.require()
    check_packages(config)
    if record.result is None:  # else nothing is run
        config = permit_cell(folder, config, cell, trust).absolute()
        check_inner(folder, trust)
        check_formula(folder, config)
    config = with_processes(config, resumed=True)
    attempt = attempt or find_attempt(config.timeout)
    fabric = launch(config, attempt)
    first, task = fabric.global_rank == 0, task_of(config)
    display = Display(console if first else Console(quiet=True), labels_of(config))
    if record.result is not None:
        display.say(f"the run is complete: {record.result.steps} of {config.steps} steps")
        return Outcome(folder, True, first, signal=None, result=record.result.content)
    with folder.lock() if first else nullcontext():
        if first:
            attempt.mark_run(folder.path)
        point, complaints = load_latest(folder.checkpoints)
        if point is not None:
            check_sizes(config, group_tensors(point.tensors).get("model", {}))
        data = task.prepare(config)
        with detect_lost_process("see what the other processes say"):
            check_agreement(fabric, shared_facts(config, data))
        if facts.digest != data.digest:
            raise RunError(
                "the data have changed since the run began",
                "elman train afresh",
                source=data.about(),
                then=facts.size,
                now=data.size,
            )
        loop = assemble(config, build(config, fabric, data), data, folder, display)
        for complaint in complaints:
            display.say(f"{complaint}\n  so    an older checkpoint is used")
        restore_loop(loop, point, facts.machine)
        comparing = facts.comparing if comparing is None else comparing
        return train_and_conclude(loop, data, facts.content, began, comparing)


def check_packages(config: Config) -> None:
    """Raise MissingPackageError without a package that is first needed when training is under
    way."""
    require("safetensors", "a run")
    if config.tensorboard:
        require("tensorboard", "--tensorboard")


def shared_facts(config: Config, data: Data) -> dict[str, Any]:
    """Collect the facts that must be the same in every process, by name; the path of the data may
    differ."""
    facts = {name: value for name, value in config.to_json().items() if name != "data"}
    return facts | {"data": f"{data.size}, digest {data.digest[:12]}"}


def with_steps(config: Config, fabric: Fabric, data: Data) -> Config:
    """Fix the number of steps and the intervals; measures a twin's steps if it must."""
    step_s = 1.0
    if config.steps is None:
        config = replace(config, steps=data.steps())
    if config.steps is None:
        twin = build(config, fabric, data)
        step = next_step(twin, data, rows_of(fabric, config.batch), 0.0)
        budget_s = PACE_SHARE * 60 * config.minutes
        timing = time_interleaved(
            {"step": step},
            budget_s,
            *ROUNDS,
            single=True,
            agreed=lambda over: vote(fabric, over)[0],
        )
        step_s = fabric.broadcast(statistics.median(timing["step"]))
    return settle(config, step_s, torch.get_num_threads())


def build(config: Config, fabric: Fabric, data: Data) -> Stepper:
    """Build the model of a run, and what makes its steps."""
    task = task_of(config)
    return make_stepper(fabric, task.build(config, data.spec), config, task.objective)


def assemble(
    config: Config, stepper: Stepper, data: Data, folder: RunFolder, display: Display
) -> Loop:
    """Collect everything that trains a model, before the first step."""
    fabric = stepper.fabric
    torch.manual_seed(config.seed + 1 + fabric.global_rank)  # each process drops other values
    return Loop(
        config=config,
        labels=labels_of(config),
        stepper=stepper,
        data=data,
        folder=folder,
        metrics=MetricsFile(folder.metrics),
        display=display,
        rows=rows_of(fabric, config.batch),
        observe=observer(config, folder),
        writer=Writer(folder.checkpoints),
    )


def restore_loop(loop: Loop, point: Checkpoint | None, old_facts: dict[str, Any]) -> None:
    """Restore a loop from a checkpoint of its run. Raises RunError: the checkpoint is not of this
    run."""
    say = loop.display.say
    if point is None:
        say("no checkpoint yet: the run starts from its first step")
        return
    facts = facts_of(point, loop.steps)
    resumed = snapshot.restore(loop.stepper, point.tensors, facts, loop.config)
    if resumed != loop.stepper.fabric.world_size:
        say(f"{resumed} processes then, {loop.stepper.fabric.world_size} now: dropout draws anew")
    for reason in elman.nn.pin(loop.stepper.plain, facts.choices):
        say(f"the recorded plan cannot be used, so results may differ in rounding: {reason}")
    machine = machine_facts()
    for name in ("processor", "torch", "elman"):
        before, after = old_facts.get(name), machine[name]
        if before != after:
            say(f"{name} was {before}, is {after}: results may differ in rounding")
    loop.tally = facts.tally
    try:
        loop.best = best_of(loop.folder.checkpoints)
        if loop.best is not None:
            check_weights(group_tensors(loop.best.weights).get("model", {}), loop.stepper.plain)
    except RunError as error:
        loop.best = None
        say(f"{error}\n  so    the best weights are those of a validation to come")
    loop.metrics = MetricsFile(loop.folder.metrics, point.metrics)
    if error := loop.metrics.rewrite():
        say(f"metrics.csv not written: {error.strerror}; tried again later")
    say(f"resumed at step {point.step} of {loop.steps}")


def facts_of(point: Checkpoint, steps: int) -> CheckpointFacts:
    """Read what a checkpoint holds besides tensors.

    Args:
        steps: of the whole run.

    Raises:
        RunError: it is not what a run writes there.
    """
    try:
        facts = decode(CheckpointFacts, point.facts)
    except DamageError as error:
        raise misfit(str(error)) from error
    step = facts.tally.step
    if step != point.step or step > steps or (step == steps and facts.tally.valid_loss is None):
        raise misfit(f"step {step} of {steps}, in the checkpoint of step {point.step}")
    return facts


def train_and_conclude(
    loop: Loop, data: Data, facts: dict[str, Any], began: float, comparing: bool
) -> Outcome:
    """Train to the end (or until interrupted) and write the result."""
    earlier = loop.tally.seconds
    with defer_signals() as request, detect_lost_process(f"elman resume {loop.folder.path}"):
        complete = loop.run(request)
    if not complete:
        loop.display.say(
            f"stopped at step {loop.tally.step} of {loop.steps}; to go on:\n"
            f"  elman resume {loop.folder.path}"
        )
        return Outcome(loop.folder, False, loop.first, signal=request.signal, result={})
    speed: dict[str, Any] = {"skipped": "not asked for"}
    if comparing:
        if refuse_twin(loop.config) is None:
            loop.display.say("measuring the speed, compared with torch.nn …")
        speed = compare(loop.stepper, task_of(loop.config), loop.config, data)
    return conclude(loop, facts, speed, began, earlier)


def observer(config: Config, folder: RunFolder) -> Callable[[Row], None]:
    """Return a callback for rows of metrics: TensorBoard's writer, if enabled."""
    if not config.tensorboard:
        return lambda row: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder.path / "tensorboard"))

    def write(row: Row) -> None:
        for name, value in vars(row).items():
            if name not in ("step", "items", "train_seconds") and value is not None:
                writer.add_scalar(name, value, row.step)
        writer.flush()

    return write
