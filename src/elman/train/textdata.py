"""The text of a run, ready to train on, and what a trigram model makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elman.errors import RunError, rows
from elman.train.config import Config
from elman.train.corpus import Corpus, load
from elman.train.ngram import fit_ngram
from elman.train.stream import Stream, training_stream, validation_stream
from elman.train.vocabulary import Vocabulary, fit_vocabulary


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

    def validating(self, config: Config) -> TextData:
        """Return the same text with the validation stream of another configuration."""
        valid, places = validation_stream(self.valid_ids, config.validation_chars, config.bptt)
        return replace(self, valid=valid, places=places)

    def trigram_bpc(self) -> float:
        """Fit a trigram to the training text; its bits per character on the same targets."""
        model = fit_ngram(self.train_ids, len(self.vocabulary))
        return float(model.bits(self.valid_ids)[self.places].mean())

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the text, and what a resumed run compares."""
        return {
            "source": self.corpus.source,
            "digest": self.corpus.digest,
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


def prepare(config: Config) -> TextData:
    """Read, encode and lay out the text of a run.

    Raises:
        RunError: if there is no text, or too little.
    """
    corpus = load(config.data)
    if not corpus.train:
        details = [("source", corpus.source), ("text", "no characters for training")]
        raise RunError(rows("the text is too short to train on", details, "more text"))
    vocabulary = fit_vocabulary(corpus.train)
    train_ids, valid_ids = vocabulary.encode(corpus.train), vocabulary.encode(corpus.valid)
    train = training_stream(train_ids, config.batch, config.bptt)
    valid, places = validation_stream(valid_ids, config.validation_chars, config.bptt)
    return TextData(corpus, vocabulary, train_ids, valid_ids, train, valid, places)


def check_same(data: TextData, facts: dict[str, Any]) -> None:
    """Refuse to go on with another text than a run began with.

    Raises:
        RunError: if the text has changed.
    """
    if facts.get("digest") == data.corpus.digest:
        return
    details = [
        ("source", data.corpus.source),
        ("then", f"{facts.get('train_chars')} + {facts.get('valid_chars')} characters"),
        ("now", f"{len(data.corpus.train)} + {len(data.corpus.valid)} characters"),
    ]
    raise RunError(rows("the text has changed since the run began", details, "elman train afresh"))
