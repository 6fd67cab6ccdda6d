"""How many steps a layer, or several at once, is given between two kept states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elman.engines.base import Job
from elman.errors import EngineError
from elman.plan.build import program
from elman.plan.checkpoint import Checkpoint, Sizes, fitting
from elman.plan.cost import state_bytes, tape_bytes
from elman.tuning.kernels import engine_for, first_engine, kernel_of
from elman.tuning.request import Request, bucket

if TYPE_CHECKING:
    from elman.nn.execute.layer import Runner


def in_spans(
    runners: Sequence[Runner],
    requests: Sequence[Request],
    sizes: tuple[int, int, int],
    checkpoint: Checkpoint,
) -> tuple[list[Request], int]:
    """What is asked of layers that run together, or of one, if not everything is kept.

    Args:
        runners, requests: of each layer and direction.
        sizes: of the call.
        checkpoint: of the call.

    Returns:
        The requests of one span, and how many steps that has; 0: everything is kept.

    Raises:
        EngineError: no engine says how many bytes a step keeps, or the named one does not.
        InputError: the budget is less than any way needs.
    """
    steps, batch, _ = sizes
    members, between = list(requests), checkpoint.steps
    if not between:
        jobs = [runner.job(member) for runner, member in zip(runners, members, strict=True)]
        engines = [_telling(job, member.engine) for job, member in zip(jobs, members, strict=True)]
        each = [
            _sizes(job, engine_names, batch)
            for job, engine_names in zip(jobs, engines, strict=True)
        ]
        of_all = Sizes(sum(member.state for member in each), sum(member.step for member in each))
        between = fitting(of_all, steps, checkpoint)
        members = [
            member._replace(engine=engine_names)
            for member, engine_names in zip(members, engines, strict=True)
        ]
    if between:
        members = [member._replace(steps=bucket(min(steps, between))) for member in members]
    return members, between


def _telling(job: Job, engine_name: str) -> str:
    """The engine that is asked for, if it follows the program, whose size is known; for ``auto``
    the first that does.

    Raises:
        EngineError: there is none.
    """
    named = engine_name != "auto"
    found = first_engine(job, lambda engine: engine.fuses)
    if named:
        engine = engine_for(engine_name, job)
        found = engine_name if isinstance(engine, str) or engine.fuses else None
    if found is None:
        engine_names = f"engine {engine_name} does" if named else "engines that can run this do"
        raise EngineError(
            f"{job.name}: {engine_names} not say how many bytes a step keeps, which "
            f'checkpoint="auto" has to know',
            "plan=elman.PlanOptions(checkpoint=100)",
        )
    return found


def _sizes(job: Job, engine: str, batch: int) -> Sizes:
    """What a step of so many samples keeps for its backward (bytes)."""
    if not job.spec.training:
        return Sizes(0, 0)
    kernel = kernel_of(job, engine)
    state, first = kernel.tape_bytes(0, batch), kernel.tape_bytes(1, batch)
    if state is None or first is None:
        of = program(job.pair, job.spec)
        state = batch * state_bytes(of)
        first = 2 * state + batch * tape_bytes(of)
    return Sizes(state, first - state)
