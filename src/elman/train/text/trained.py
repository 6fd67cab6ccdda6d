"""A trained language model: its vocabulary, and the text that it writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from elman.checks import check_index, check_number, check_size, check_text
from elman.errors import InputError, diagnostic
from elman.train.text.sample import generate
from elman.train.text.vocabulary import Vocabulary
from elman.train.trained import Trained

SAMPLES = {"char": 500, "word": 100}  # tokens


@dataclass(frozen=True)
class TextSpec:
    """What a language model is built from besides its configuration.

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
        found: Any = self.model
        return found.recurrent

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
        count: int = SAMPLES[config.level] if length is None else length
        drawn_by = check_index("seed", config.seed if seed is None else seed)
        heat = check_number("temperature", heat)
        check_size("length", count, 0)
        if not len(vocabulary.encode(check_text("prompt", prompt, r'prompt="\n"'))):
            raise InputError(diagnostic("the prompt is empty", [], hint=r'prompt="\n"'))
        return generate(self.model, vocabulary, count, heat, drawn_by, prompt)
