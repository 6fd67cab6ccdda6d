"""The text of a run, ready to train on, and what a trigram model makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elman.errors import RunError, diagnostic
from elman.train.task import Baseline, Batch
from elman.train.text.config import TextConfig
from elman.train.text.corpus import Corpus, load
from elman.train.text.ngram import fit_ngram
from elman.train.text.stream import Stream, training_stream, validation_stream
from elman.train.text.vocabulary import Vocabulary, fit_vocabulary


@dataclass(frozen=True)
class TextData:
    """A text as streams of numbers.

    Attributes:
        places [M]: where the validation stream's targets stand in `valid_ids`.
    """

    corpus: Corpus
    vocabulary: Vocabulary
    train_ids: np.ndarray
    valid_ids: np.ndarray
    train: Stream
    valid: Stream
    places: np.ndarray

    @property
    def digest(self) -> str:
        """Hash of the text."""
        return self.corpus.digest

    @property
    def size(self) -> str:
        """How many characters there are."""
        return f"{len(self.corpus.train)} + {len(self.corpus.valid)} characters"

    def validating(self, config: TextConfig) -> TextData:
        """Return the same text with the validation stream of another configuration."""
        valid, places = validation_stream(self.valid_ids, config.validation_chars, config.bptt)
        return replace(self, valid=valid, places=places)

    def baseline(self) -> Baseline:
        """Fit a trigram to the training text; its bits per character on the same targets."""
        model = fit_ngram(self.train_ids, len(self.vocabulary))
        return Baseline("trigram", float(model.bits(self.valid_ids)[self.places].mean()))

    def steps(self) -> int | None:
        """A text has no epochs."""
        return None

    def batch(self, step: int, mine: slice) -> Batch:
        """Return the next segment of each row; the state begins anew with each walk."""
        k = step % self.train.segments
        return Batch(*self.train.segment(k, mine), begins=k == 0)

    def held_out(self) -> Iterator[Batch]:
        """Walk through the validation stream."""
        for k in range(self.valid.segments):
            yield Batch(*self.valid.segment(k), begins=k == 0)

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the text, and what a resumed run compares."""
        return {
            "source": self.corpus.source,
            "train_chars": len(self.corpus.train),
            "valid_chars": len(self.corpus.valid),
            "train_files": self.corpus.train_files,
            "valid_files": self.corpus.valid_files,
            "predicted_chars": int(self.places.size),
            "unknown_share": float((self.valid_ids[self.places] == 0).mean()),
            "vocabulary": self.vocabulary.characters,
        }

    def about(self) -> str:
        """Say in one line what the text is."""
        corpus = self.corpus
        files = f" in {corpus.train_files} files" if corpus.train_files else ""
        others = f" in {corpus.valid_files} files" if corpus.valid_files else ""
        return (
            f"text: {corpus.source}: {len(corpus.train):,} characters{files} to train on, "
            f"{len(corpus.valid):,}{others} to validate; {len(self.vocabulary)} symbols"
        )


def prepare(config: TextConfig) -> TextData:
    """Read, encode and lay out the text of a run.

    Raises:
        RunError: if there is no text, or too little.
    """
    corpus = load(config.data)
    if not corpus.train:
        details = [("source", corpus.source), ("text", "no characters for training")]
        raise RunError(diagnostic("the text is too short to train on", details, "more text"))
    vocabulary = fit_vocabulary(corpus.train)
    train_ids, valid_ids = vocabulary.encode(corpus.train), vocabulary.encode(corpus.valid)
    train = training_stream(train_ids, config.batch, config.bptt)
    valid, places = validation_stream(valid_ids, config.validation_chars, config.bptt)
    return TextData(corpus, vocabulary, train_ids, valid_ids, train, valid, places)
