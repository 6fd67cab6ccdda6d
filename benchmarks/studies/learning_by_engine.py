"""Do all engines learn alike, and how long do they take? A model of the trainer by each: a study.

Each contestant does a few training steps from the same weights on the same batches, interleaved;
elman then goes on to the last step. As all losses are the same, what the others would need for the
same accuracy follows from the time of their steps.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from benchmarks.cases import OURS, Effort, TrainedCase, Way
from benchmarks.rows import curve, study
from elman.errors import EngineError, InputError, VerifyError
from elman.measuring.timing import quartiles

if TYPE_CHECKING:
    from benchmarks.studies.trainer_models import Learner

DIFFERENT = "torch"  # has no heads: of equal size in one head, its losses are others
MOST = 10  # timed steps of each contestant
VALIDATIONS = 10
# Relative difference of a loss from the float64 run's. The first step's is rounding; an update by
# Adam divides by the gradient's own size, so that later ones grow with every step.
FIRST, LATER = 1e-5, 1e-2


def measure_learning(case: TrainedCase, effort: Effort) -> dict[str, Any]:
    """Train by all contestants a few interleaved steps, by elman all.

    Args:
        case: a kind of ``trainer_models.STUDIES``; T steps per sequence, B sequences, H units in
            heads.
        effort: how long each contestant is timed (s); one step at least, after one untimed.

    Raises:
        NoDataError: there are no data.
        InputError: they are of another length.
        VerifyError: a contestant learns something else.
        EngineError: the baseline cannot run the case.
    """
    # deferred: the worker of every other case should not pay for the trainer
    from benchmarks.studies.trainer_models import config_of
    from elman.train.tasks.registry import task_of

    config = config_of(case)
    data = task_of(config).prepare(config)
    longest = data.facts()["steps"]
    if longest != [case.T, case.T]:
        raise InputError(f"{case.name}: the sequences of {config.data} have {longest} steps")
    learners, absent = _begin(case, config, data)
    _time(case, effort, [*learners.values()])
    off = _compare(case, learners, config, data)
    learners[OURS].learn(max(1, case.steps // VALIDATIONS))
    return _row(case, learners, off, data.baseline().score or 0.0) | {"absent": absent}


def _begin(case: TrainedCase, config: Any, data: Any) -> tuple[dict[str, Learner], dict[str, str]]:
    """All contestants after their first step; why others are absent."""
    from benchmarks.studies.trainer_models import learner, model_of
    from elman.train.distributed.launch import launch
    from elman.train.tasks.registry import task_of

    fabric = launch(config)
    weights = task_of(config).build(config, data.spec).state_dict()
    present: dict[str, Learner] = {}
    absent: dict[str, str] = {}
    for name in case.contestants:
        model = model_of(name, config, data, weights)
        if isinstance(model, str):
            absent[name] = model
            continue
        model_learner = learner(config, data, model, fabric)
        try:
            model_learner.step()
        except EngineError as refused:
            absent[name] = str(refused)
        else:
            present[name] = model_learner
    if case.baseline not in present:
        raise EngineError(absent[case.baseline])
    return present, absent


def _time(case: TrainedCase, effort: Effort, learners: list[Learner]) -> None:
    """Further interleaved steps: one of each, then those of which another one is affordable."""
    for step in range(min(MOST, case.steps - 1)):
        for contestant in learners:
            spent = sum(contestant.seconds[1:])
            if not step or (
                len(contestant.losses) == step + 1
                and spent + contestant.seconds[-1] <= effort.seconds
            ):
                contestant.step()


def _compare(
    case: TrainedCase, present: dict[str, Learner], config: Any, data: Any
) -> dict[str, float]:
    """The largest relative difference of each contestant's losses from the baseline's in float64.

    Raises:
        VerifyError: it is not a rounding error.
    """
    from benchmarks.studies.trainer_models import learner, model_of
    from elman.train.distributed.launch import launch
    from elman.train.tasks.registry import task_of

    double = replace(config, precision="64-true")
    weights = task_of(config).build(config, data.spec).state_dict()
    model = model_of(case.baseline, double, data, weights)
    assert not isinstance(model, str), "the baseline has run"
    oracle = learner(double, data, model, launch(double))
    alike = {
        n: contestant for n, contestant in present.items() if case.heads == 1 or n != DIFFERENT
    }
    for _ in range(max(len(contestant.losses) for contestant in alike.values())):
        oracle.step()
    errors = {}
    for name, contestant in alike.items():
        pairs = zip(contestant.losses, oracle.losses)
        off = [abs(loss - want) / max(abs(want), 1e-12) for loss, want in pairs]
        if not (off[0] <= FIRST and max(off) <= LATER):
            texts = ", ".join(f"{value:.1e}" for value in off)
            raise VerifyError(
                f"{case.name}: {name} learns other than {case.baseline} in float64: losses differ "
                f"by {texts}"
            )
        errors[name] = max(off)
    return errors


def _row(
    case: TrainedCase, present: dict[str, Learner], off: dict[str, float], chance: float
) -> dict[str, Any]:
    scores = present[OURS].scores
    seconds = {name: quartiles(contestant.seconds[1:]) for name, contestant in present.items()}
    accuracy = scores[-1][2]
    took = ", ".join(f"{name} {contestant.median:.3g} s" for name, contestant in seconds.items())
    lines = {
        name: [(step * contestant.median, score) for step, _, score in scores]
        for name, contestant in seconds.items()
        if name in off
    }
    title = f"{case.name}: accuracy by time of training"
    return study(
        f"accuracy {accuracy:.1%} after {case.steps} steps ({chance:.1%} by chance); "
        f"losses within {max(off.values()):.1e}; a step: {took}",
        seconds={name: asdict(contestant) for name, contestant in seconds.items()},
        first={name: contestant.seconds[0] for name, contestant in present.items()},
        losses={name: contestant.losses[: MOST + 1] for name, contestant in present.items()},
        off=off,
        scores=[list(score) for score in scores],
        accuracy=accuracy,
        chance=chance,
        plots=[curve(title, "seconds of training steps", "accuracy", "x", lines)],
    )


LEARNING = Way("learning", measure_learning)
