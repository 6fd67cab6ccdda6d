"""A word model's whole training step: embedding, layers, read-out, loss, clipping and update."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import OURS, Case, Way
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem, Results

if TYPE_CHECKING:
    from elman.train.tasks.text.model import LanguageModel

WORDS = 10_000  # that are known, as of the Penn Treebank
LANGUAGES = ("torch", OURS)  # whose recurrent layers
_RATE, _CLIP = 1e-3, 0.25


def draw_language(case: Case, seed: int = 0) -> Problem:
    """Draw words x [T, B] and the ones after them, dy [T, B], as floats; and weights."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (case.T + 1, case.B), generator=source)
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        weights = _model(case, baseline=True).state_dict()
    weights = {name: value.to(dtype) for name, value in weights.items()}
    return Problem(case, ids[:-1].to(dtype), ids[1:].to(dtype), weights)


def _model(case: Case, baseline: bool) -> LanguageModel:
    # deferred: the worker of every other case should not pay for the trainer
    from elman.train.tasks.text.config import TextConfig
    from elman.train.tasks.text.model import TextSpec, build_model

    sizes = {"cell": case.cell, "layers": case.layers, "hidden": case.H, "embedding": case.H}
    config = TextConfig.of({"preset": "small", **sizes})
    return build_model(config, TextSpec([""] * (WORDS - 1)), baseline=baseline)


def predicted(name: str, problem: Problem) -> Contestant:
    """A contestant: the model on torch's recurrent layers, or on elman's."""
    with torch.random.fork_rng(devices=[]):
        model = _model(problem.case, baseline=name != OURS)
    model.to(next(iter(problem.weights.values())).dtype).load_state_dict(dict(problem.weights))
    ids, targets = problem.x.long(), problem.dy.long()
    optimizer = torch.optim.SGD(model.parameters(), _RATE, fused=True)

    def backward() -> Tensor:
        optimizer.zero_grad()
        loss, _ = model(ids, None, targets)
        loss.backward()
        return loss

    def run() -> None:
        backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()

    def results() -> Results:
        values = {"loss": backward().detach()}
        grads = ((name, weight.grad) for name, weight in model.named_parameters())
        return values | {f"gradient of {k}": grad.clone() for k, grad in grads if grad is not None}

    facts = partial(elman.nn.choices, model) if name == OURS else dict
    return Contestant(run, results, tuple(problem.weights), facts)


LANGUAGE = Way("language", measure_steps, draw_language, predicted)
