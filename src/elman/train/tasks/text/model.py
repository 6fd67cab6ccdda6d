"""The language model: embedding, recurrent layers, a read-out of the next token; and, once trained,
text drawn from it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elman.checks import check_index, check_number, check_size, check_text, shown
from elman.errors import InputError, RunError
from elman.layers.parts import first_output
from elman.nn import LinearCrossEntropyLoss
from elman.train.loop.layers import output_size, recurrent
from elman.train.loop.objective import cross_entropy
from elman.train.loop.task import Trained, WholeModel
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.vocabulary import Vocabulary


def pick(logits: torch.Tensor, temperature: float, draws: torch.Generator) -> torch.Tensor:
    """Draw one number, [1], from logits [V]. Raises RunError: some are not finite, or not when the
    temperature divides them."""
    if temperature == 0:
        return logits.argmax()[None]
    chances = torch.softmax(logits / temperature, 0)
    if not chances.isfinite().all():
        text = "no token can be drawn: the model's outputs are not finite"
        raise RunError(text, "weights of an earlier checkpoint", temperature=f"{temperature:g}")
    return torch.multinomial(chances, 1, generator=draws)


SAMPLES = {"char": 500, "word": 100}  # tokens


@dataclass(frozen=True)
class TextSpec:
    """Tokens that a language model is built from.

    Attributes:
        tokens: those it knows; the k-th has number k + 1.
    """

    tokens: list[str]

    @property
    def symbols(self) -> int:
        """V, numbers in all: 0 stands for tokens that are not known."""
        return len(self.tokens) + 1


@dataclass(frozen=True)
class TrainedText(Trained):
    """A trained language model; ``model(ids, state)`` gives logits [T, B, V] of ids [T, B]."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Turns a text into ids and back: ``encode``, ``decode``."""
        return Vocabulary(self.spec.tokens, self.config.splitting)

    @property
    def layers(self) -> nn.Module:
        """The recurrent layers: ``out, state = layers(x, state)``."""
        model: Any = self.model
        return model.recurrent

    def as_module(self) -> WholeModel:
        """Return the whole model, from ids [B, T] to logits [B, T, V]."""
        return _Whole(self)

    @torch.no_grad()
    def sample(
        self,
        length: int | None = None,
        *,
        prompt: str = "\n",
        temperature: float | None = None,
        seed: int | None = None,
    ) -> str:
        """Let the model go on with a text.

        Args:
            length: tokens to draw; of a model of characters 500, of words 100.
            prompt: what the model reads first.
            temperature: divides the logits, 0 takes the likeliest token; as the run's.
            seed: of the draws; as the run's.

        Returns:
            What was drawn, without the prompt.

        Raises:
            InputError: the prompt is empty, or temperature or length is negative.
        """
        config, vocabulary = self.config, self.vocabulary
        heat: float = config.temperature if temperature is None else temperature
        heat = check_number("temperature", heat)
        count: int = SAMPLES[config.level] if length is None else length
        check_size("length", count, 0)
        draws = torch.Generator()
        draws.manual_seed(check_index("seed", config.seed if seed is None else seed))
        ids = torch.from_numpy(vocabulary.encode(check_text("prompt", prompt, r'prompt="\n"')))
        if not len(ids):
            raise InputError("the prompt is empty", r'prompt="\n"')
        tokens: list[int] = []
        state, device = None, self.weight.device
        for _ in range(count):
            logits, state = self.model(ids.long()[:, None].to(device), state)
            last = logits[-1, 0].double().cpu()
            last[0] = -torch.inf  # the unknown token is not text
            ids = pick(last, heat, draws)
            tokens.append(int(ids))
        return vocabulary.decode(tokens)


class _Whole(WholeModel):
    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids.transpose(0, 1))[0].transpose(0, 1)

    def example(self, inputs: Any) -> Tensor:
        return inputs.transpose(0, 1)

    def random(self) -> Tensor:
        return torch.arange(32).view(2, 16) % self.model.embedding.num_embeddings


class LanguageModel(nn.Module):
    """Predicts the next token at every step.

    Args:
        size: V, number of tokens.
        embedding: size of a token's vector.
        hidden: size of the recurrent layers' (first) output.
        recurrent: a module called as torch.nn.GRU is.
        dropout: share of values dropped before the read-out.
        embedding_dropout: share of values dropped before the recurrent layers.
        tie: whether the read-out's weights are the embedding's; both sizes are one then.
        plain: whether read-out and loss are two operations of torch's, as one writes them by hand.
    """

    def __init__(
        self,
        size: int,
        embedding: int,
        hidden: int,
        recurrent: nn.Module,
        dropout: float = 0.0,
        embedding_dropout: float = 0.0,
        tie: bool = False,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, embedding)
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        self.recurrent = recurrent
        self.dropout = nn.Dropout(dropout)
        self.readout: nn.Sequential | LinearCrossEntropyLoss  # parameters of the same names
        if plain:
            linear = nn.Linear(hidden, size)
            if tie:
                linear.weight = self.embedding.weight
            self.readout = nn.Sequential(OrderedDict(linear=linear))
        else:
            self.readout = LinearCrossEntropyLoss(
                hidden, size, bias=True, tie=self.embedding if tie else None
            )

    def forward(
        self, ids: Tensor, state: Any = None, targets: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Predict, or say how wrong that is.

        Args:
            ids [T, B]: tokens as numbers.
            state: what the previous call returned; zeros if None.
            targets [T, B]: the token after each.

        Returns:
            logits [T, B, V] of the token after each; with targets the mean loss, [].
            state: the recurrent layers' last state.

        Raises:
            InputError: ids that are no integers.
        """
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"ids [T, B] must be a tensor of integers, got {shown(ids)}")
        out, state = self.recurrent(self.embedding_dropout(self.embedding(ids)), state)
        out = self.dropout(first_output(out))
        if isinstance(self.readout, nn.Sequential):
            logits = self.readout(out)
            return logits if targets is None else cross_entropy(logits, targets), state
        return self.readout.logits(out) if targets is None else self.readout(out, targets), state


def build_model(config: TextConfig, spec: TextSpec, *, baseline: bool = False) -> LanguageModel:
    """Build the model of a run; with `baseline` the same of torch.nn's parts alone."""
    torch.manual_seed(config.seed)
    layers = recurrent(config, config.embedding, config.layers, baseline=baseline)
    model = LanguageModel(
        spec.symbols,
        config.embedding,
        output_size(config, layers),
        layers,
        config.dropout,
        config.embedding_dropout,
        config.tie,
        plain=baseline,
    )
    if config.uniform is not None:
        for weight in model.parameters():
            nn.init.uniform_(weight, -config.uniform, config.uniform)
    return model
