"""Whole training steps of language models: embedding, layers, read-out, loss and update.

``LANGUAGE`` is the word model of ``elman train text``. ``BYTES`` is the byte model with which
RLtools times its GRU (``tests/src/nn/layers/gru``, ``pytorch/model.py`` at commit 24d0023): an
embedding as wide as the input, one GRU, two linear layers, and Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import OURS, Case, KindCase, Way
from benchmarks.measures.training import measure_steps
from benchmarks.peers.loops import stepwise
from benchmarks.problem import Contestant, Problem, Results

if TYPE_CHECKING:
    from elman.train.tasks.text.model import LanguageModel

WORDS = {"": 10_000, "wikitext": 33_278}  # known ones of the Penn Treebank, and of WikiText-2
BYTE_VALUES = 256
LANGUAGES = ("torch", "loop", OURS)  # whose recurrent layers
_RATE, _CLIP = 1e-3, 0.25


class ByteModel(nn.Module):
    """Logits of the next byte.

    Args:
        layer: recurrent, of I inputs.
    """

    def __init__(self, layer: nn.GRU | elman.nn.GRU) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTE_VALUES, layer.input_size)
        self.layer = layer
        self.projection = nn.Linear(layer.hidden_size, layer.input_size)
        self.readout = nn.Linear(layer.input_size, BYTE_VALUES)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [T, B, 256] of bytes [T, B]."""
        return self.readout(self.projection(self.layer(self.embedding(ids))[0]))


def _byte_model(case: Case, baseline: bool) -> ByteModel:
    layer = (nn if baseline else elman.nn).GRU(case.input_size, case.H, case.layers)
    return ByteModel(layer)


def _word_model(case: Case, baseline: bool) -> LanguageModel:
    # deferred: the worker of every other case should not pay for the trainer
    from elman.train.tasks.text.config import TextConfig
    from elman.train.tasks.text.model import TextSpec, build_model

    sizes = {"cell": case.cell, "layers": case.layers, "hidden": case.H, "embedding": case.H}
    config = TextConfig.of({"preset": "small", **sizes})
    known = [""] * (_words(case) - 1)
    return build_model(config, TextSpec(known), baseline=baseline)


def _words(case: Case) -> int:
    return WORDS[case.kind if isinstance(case, KindCase) else ""]


def _draw(
    case: Case, make: Callable[[Case, bool], nn.Module], values: int, seed: int = 0
) -> Problem:
    """Draw tokens x [T, B] and the ones after them, dy [T, B], as floats; and weights."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(values, (case.T + 1, case.B), generator=source)
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = make(case, True).state_dict()
    weights = {name: value.to(dtype) for name, value in weights.items()}
    return Problem(case, ids[:-1].to(dtype), ids[1:].to(dtype), weights)


def draw_words(case: Case) -> Problem:
    """A word model's problem: words as floats [T, B], and the weights."""
    return _draw(case, _word_model, _words(case))


def draw_bytes(case: Case) -> Problem:
    """A byte model's problem: bytes as floats [T, B], and the weights."""
    return _draw(case, _byte_model, BYTE_VALUES)


def predict_words(name: str, problem: Problem) -> Contestant:
    """A contestant: the word model on torch's recurrent layers, on a loop over torch's operators
    with their weights, or on elman's layers."""
    model, ids, targets = _loaded(_word_model, name, problem)
    if name == "loop":
        layer: Any = model.recurrent
        layer.forward = lambda x, state: stepwise(
            problem.case.cell, x, dict(layer.named_parameters())
        )
    optimizer = torch.optim.SGD(model.parameters(), _RATE, fused=True)

    def update() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()

    return _contestant(name, model, lambda: model(ids, None, targets)[0], update)


def predict_bytes(name: str, problem: Problem) -> Contestant:
    """A contestant: the byte model on torch's GRU, or on elman's."""
    model, ids, targets = _loaded(_byte_model, name, problem)
    optimizer = torch.optim.Adam(model.parameters())

    def loss() -> Tensor:
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    return _contestant(name, model, loss, optimizer.step)


def _loaded(
    make: Callable[[Case, bool], nn.Module], name: str, problem: Problem
) -> tuple[nn.Module, Tensor, Tensor]:
    """A contestant's model with the problem's weights; its tokens, and the ones after them."""
    with torch.random.fork_rng(devices=[]):
        model = make(problem.case, name != OURS)
    model.to(next(iter(problem.weights.values())).dtype).load_state_dict(dict(problem.weights))
    return model, problem.x.long(), problem.dy.long()


def _contestant(
    name: str, model: nn.Module, loss: Callable[[], Tensor], update: Callable[[], object]
) -> Contestant:
    def backward() -> Tensor:
        model.zero_grad()
        value = loss()
        value.backward()
        return value

    def run() -> None:
        backward()
        update()

    def results() -> Results:
        values = {"loss": backward().detach()}
        grads = ((name, weight.grad) for name, weight in model.named_parameters())
        return values | {f"gradient of {k}": grad.clone() for k, grad in grads if grad is not None}

    facts = partial(elman.nn.choices, model) if name == OURS else dict
    return Contestant(run, results, tuple(dict(model.named_parameters())), facts)


LANGUAGE = Way("language", measure_steps, draw_words, predict_words)
BYTES = Way("bytes", measure_steps, draw_bytes, predict_bytes)
