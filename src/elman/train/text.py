"""The task `text`: a character model, from a configuration (or a run to resume) to a result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from rich.console import Console

import elman.nn
from elman.train import checkpoint, snapshot
from elman.train.comparison import compare
from elman.train.config import Config
from elman.train.display import Display
from elman.train.folder import RunFolder, create_run, open_run
from elman.train.interrupt import heeding_interrupts
from elman.train.launch import launch, rows_of
from elman.train.loop import Loop, Tally
from elman.train.machine import machine_facts
from elman.train.metrics import MetricsFile, Row
from elman.train.model import build_model
from elman.train.outcome import Outcome, conclude
from elman.train.pace import one_step, settle, time_in_turn
from elman.train.stepper import make_stepper
from elman.train.textdata import TextData, check_same, prepare

PACE_SHARE = 0.02  # of the whole time, spent on measuring the time of a step


def start(config: Config, out: Path, console: Console, *, comparing: bool = True) -> Outcome:
    """Train a new character model into a new folder below `out`.

    Raises:
        RunError: if the text or the folder cannot be used.
        InputError: if the configuration does not fit this machine.
    """
    began = time.perf_counter()
    fabric = launch(config)
    display = Display(console if fabric.global_rank == 0 else Console(quiet=True))
    config = config.absolute()
    data = prepare(config)
    display.say(data.about())
    config = with_steps(config, fabric, data)
    data = data.validating(config)
    facts = data.facts() | {"trigram_bpc": data.trigram_bpc(), "machine": machine_facts()}
    display.say(f"trigram baseline: {facts['trigram_bpc']:.3f} bits per character in validation")
    folder = shared_folder(fabric, out)
    loop = assemble(config, fabric, data, folder, display)
    with folder.lock() if loop.first else nullcontext():
        if loop.first:
            folder.write("facts", facts)
            folder.write("config", config.to_json())
        return carry_out(loop, data, facts, began, comparing)


def resume(path: Path, console: Console, *, comparing: bool = True) -> Outcome:
    """Go on with a run from its last checkpoint, with the run's own configuration.

    Raises:
        RunError: if the folder is no run, its text has changed, or no checkpoint is whole.
    """
    began = time.perf_counter()
    folder = open_run(path)
    config, facts, result = folder.config(), folder.read("facts"), folder.read("result")
    fabric = launch(config)
    first = fabric.global_rank == 0
    display = Display(console if first else Console(quiet=True))
    if result:
        display.say(f"the run is complete: {result['steps']} of {config.steps} steps")
        return Outcome(folder, True, first, signal=None, result=result)
    with folder.lock() if first else nullcontext():
        data = prepare(config)
        check_same(data, facts)
        loop = assemble(config, fabric, data, folder, display)
        take_up(loop, facts)
        return carry_out(loop, data, facts, began, comparing)


def with_steps(config: Config, fabric: Fabric, data: TextData) -> Config:
    """Fix the number of steps and the intervals; measures a twin's steps if it must."""
    step_s = 1.0
    if config.steps is None:
        twin = make_stepper(fabric, build_model(config, len(data.vocabulary)), config)
        step = one_step(twin, data.train, rows_of(fabric, config.batch), 0.0)
        timing = time_in_turn({"step": step}, budget_s=PACE_SHARE * 60 * config.minutes)
        step_s = fabric.broadcast(timing["step"].median_s)
    return settle(config, step_s, torch.get_num_threads())


def shared_folder(fabric: Fabric, out: Path) -> RunFolder:
    """Make the run folder in the first process and tell the others."""
    path = str(create_run(out, "text").path) if fabric.global_rank == 0 else ""
    return RunFolder(Path(fabric.broadcast(path)))


def assemble(
    config: Config, fabric: Fabric, data: TextData, folder: RunFolder, display: Display
) -> Loop:
    """Build the model and everything that trains it, before the first step."""
    stepper = make_stepper(fabric, build_model(config, len(data.vocabulary)), config)
    torch.manual_seed(config.seed + 1 + fabric.global_rank)  # each process drops other values
    return Loop(
        config=config,
        stepper=stepper,
        train=data.train,
        valid=data.valid,
        folder=folder,
        metrics=MetricsFile(folder.metrics),
        display=display,
        mine=rows_of(fabric, config.batch),
        observe=observer(config, folder),
    )


def take_up(loop: Loop, facts: dict[str, Any]) -> None:
    """Put a loop where the last whole checkpoint of its run was taken."""
    say = loop.display.say
    point, complaints = checkpoint.load_latest(loop.folder.checkpoints)
    for complaint in complaints:
        say(f"{complaint}\n  so    an older checkpoint is used")
    if point is None:
        say("no checkpoint yet: the run starts from its first step")
        return
    snapshot.restore(loop.stepper, point.tensors, point.facts)
    for reason in elman.nn.pin(loop.stepper.plain, point.facts["choices"]):
        say(f"the recorded plan cannot be used, so results may differ in rounding: {reason}")
    was, now = facts.get("machine", {}), machine_facts()
    for name in ("processor", "torch", "elman"):
        if was.get(name) != now[name]:
            say(f"{name} was {was.get(name)}, is {now[name]}: results may differ in rounding")
    loop.tally = Tally(**point.facts["tally"])
    loop.metrics = MetricsFile(loop.folder.metrics, point.metrics)
    if error := loop.metrics.rewrite():
        say(f"metrics.csv not written: {error.strerror}; tried again later")
    say(f"resumed at step {point.step} of {loop.steps}")


def carry_out(
    loop: Loop, data: TextData, facts: dict[str, Any], began: float, comparing: bool
) -> Outcome:
    """Train to the end (or until interrupted) and write down what came out."""
    earlier = loop.tally.seconds
    with heeding_interrupts() as wish:
        complete = loop.run(wish)
    if not complete:
        loop.display.say(
            f"stopped at step {loop.tally.step} of {loop.steps}; to go on:\n"
            f"  elman train --resume {loop.folder.path}"
        )
        return Outcome(loop.folder, False, loop.first, signal=wish.signal, result={})
    speed: dict[str, Any] = {"skipped": "not asked for"}
    if comparing:
        loop.display.say("measuring the speed beside torch.nn …")
        speed = compare(loop.stepper, loop.config, len(data.vocabulary), data.train)
    return conclude(loop, data.vocabulary, facts, speed, began, earlier)


def observer(config: Config, folder: RunFolder) -> Callable[[Row], None]:
    """Return what is called with every row of metrics: TensorBoard's writer, if asked for."""
    if not config.tensorboard:
        return lambda row: None
    from elman.train.board import board_writer

    return board_writer(folder.path / "tensorboard")
