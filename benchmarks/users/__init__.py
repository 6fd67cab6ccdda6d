"""Recurrent models as published projects run them today, a step at a time, and the same on elman.

Each project's loop is written anew, here or in ``examples/projects``, as that project writes it:
the same operations in the same order on the same shapes, none of its lines. The kind of a case
names the project.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.cases import KindCase, Way
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem
from benchmarks.users.heads import HEADS, SLSTM
from benchmarks.users.models import CFC, DREAMER, EALSTM, HASTE, LIGRU
from benchmarks.users.project import ENGINES, Project, draw_project, enter_project
from benchmarks.users.resets import RESETS
from benchmarks.users.spikes import SPIKING
from benchmarks.users.world_model import WORLD_MODEL

PROJECTS: dict[str, Project] = {
    "resets": RESETS,
    "dreamer": DREAMER,
    "speechbrain": LIGRU,
    "ncps": CFC,
    "snntorch": SPIKING,
    "neuralhydrology": EALSTM,
    "haste": HASTE,
    "dreamer rssm": WORLD_MODEL,
    "heads": HEADS,
    "tirex": SLSTM,
}
WAYS = {*ENGINES, *(way for project in PROJECTS.values() for way in project.ways)}


def draw_user(case: KindCase, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as the project's loop initialises them."""
    return draw_project(PROJECTS[case.kind], case, seed)


def enter_user(name: str, problem: Problem, half: torch.dtype | None = None) -> Contestant | str:
    """A contestant, or why it is absent: one of the project's ways, or elman on an engine; its
    forward runs under autocast for ``half``, if given."""
    case: Any = problem.case
    return enter_project(PROJECTS[case.kind], name, problem, half)


USER = Way("users", measure_steps, draw_user, enter_user, dense=True)
FORECAST = Way("forecast", measure_steps, draw_user, enter_user, backward=False)
