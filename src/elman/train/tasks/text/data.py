"""A text as B parallel rows, cut along time into the segments of truncated BPTT."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.errors import RunError
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.corpus import Corpus, load
from elman.train.tasks.text.model import TextSpec
from elman.train.tasks.text.ngram import ngram_nats
from elman.train.tasks.text.vocabulary import Vocabulary, fit_vocabulary

VALID_ROWS = 64


@dataclass(frozen=True)
class Stream:
    """B rows of consecutive text; segment k holds tokens k·T … (k + 1)·T of each row.

    Attributes:
        ids [B, N]: tokens as numbers.
        bptt: T, tokens per segment.
    """

    ids: np.ndarray
    bptt: int

    @property
    def segments(self) -> int:
        """Number of whole segments in one walk through the text."""
        return (self.ids.shape[1] - 1) // self.bptt

    def segment(self, k: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Cut out segment k.

        Returns:
            inputs [T, B]: tokens, int64, time-major.
            targets [T, B]: the token after each.
        """
        start = k * self.bptt
        piece = self.ids[rows, start : start + self.bptt + 1].T.astype(np.int64)
        return torch.from_numpy(piece[:-1].copy()), torch.from_numpy(piece[1:].copy())

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the whole text; the last segment may be shorter."""
        return map(self.segment, range(-(-(self.ids.shape[1] - 1) // self.bptt)))


def training_stream(ids: np.ndarray, batch: int, bptt: int, items: str = "tokens") -> Stream:
    """Lay a text out as `batch` rows of equal length.

    Args:
        items: what tokens are called.

    Raises:
        RunError: if a row would be shorter than one segment and the token after it.
    """
    width = len(ids) // batch
    if width < bptt + 1:
        hint = "more text, or a smaller --batch or --bptt"
        raise RunError(
            "the text is too short to train on",
            hint,
            text=f"{len(ids)} {items} for training",
            need=f"{batch * (bptt + 1)} = batch {batch} x (bptt {bptt} + 1)",
        )
    return Stream(ids[: batch * width].reshape(batch, width), bptt)


def validation_stream(
    ids: np.ndarray, bptt: int, limit: int | None = None, items: str = "tokens"
) -> tuple[Stream, np.ndarray]:
    """Lay out a text that is not trained on, in up to 64 rows of four segments or more.

    Args:
        limit: at most so many tokens are predicted, in whole segments that lie evenly over the
            text; without it all of its tokens but the first, up to 63 at its end apart.
        items: what tokens are called.

    Returns:
        The stream, and where the predicted tokens stand in `ids`, [N], for other models to predict.

    Raises:
        RunError: if the text has fewer than two tokens.
    """
    length = len(ids)
    if length < 2:
        text = f"the text is too short to {'validate' if limit else 'test'} on"
        raise RunError(text, "more text", text=f"{length} {items}")
    count = max(1, min(VALID_ROWS, length // (4 * bptt), (limit or length) // 2))
    if limit is None:
        width = (length - 1) // count + 1
        starts = np.arange(count) * (width - 1)
    else:
        width = max(2, min(limit, length) // count)
        bptt = min(bptt, width - 1)
        width = (width - 1) // bptt * bptt + 1
        starts = np.linspace(0, length - width, count).astype(np.int64)
    places = starts[:, None] + np.arange(width)
    return Stream(ids[places], bptt), places[:, 1:].ravel()


# Numbers that stand in memory at once: 16 MiB, which caches hold in part and an allocator keeps.
MOST_LOGITS = 1 << 22


@dataclass(frozen=True)
class TextData:
    """A text as streams of numbers.

    Attributes:
        config: of the run.
        places [M]: where the validation stream's targets stand in `valid_ids`.
        test: of the corpus's third text, if there is one.
    """

    config: TextConfig
    corpus: Corpus
    vocabulary: Vocabulary
    train_ids: np.ndarray
    valid_ids: np.ndarray
    train: Stream
    valid: Stream
    places: np.ndarray
    test: Stream | None = None

    @property
    def digest(self) -> str:
        """Hash of the text."""
        return self.corpus.digest

    @property
    def size(self) -> str:
        """Numbers of tokens as text."""
        return f"{len(self.train_ids)} + {len(self.valid_ids)} {self.items}"

    @property
    def items(self) -> str:
        """Name of the tokens: characters, words."""
        return self.vocabulary.level.labels.items

    def validating(self, config: TextConfig) -> TextData:
        """Return the same text with the validation stream of another configuration."""
        valid, places = validation_stream(self.valid_ids, config.bptt, config.validation_chars)
        return replace(self, config=config, valid=valid, places=places)

    @property
    def spec(self) -> TextSpec:
        """Tokens that a model of the text is built from."""
        return TextSpec(list(self.vocabulary.tokens))

    def baseline(self) -> Baseline:
        """Count the training text's trigrams; their loss on the same targets."""
        name, nats = ngram_nats(self.train_ids, self.valid_ids, len(self.vocabulary))
        loss = self.vocabulary.level.labels.unit(float(nats[self.places].mean()))
        return Baseline(name, loss)

    def steps(self) -> int | None:
        """Steps that the epochs make; a walk ends with the last whole segment."""
        epochs = self.config.epochs
        return None if epochs is None else epochs * self.train.segments

    def batch(self, step: int, rows: slice) -> Batch:
        """Return the next segment of each row; the state begins anew with each walk."""
        k = step % self.train.segments
        return Batch(*self.train.segment(k, rows), resets_state=k == 0)

    def held_out(self) -> Iterator[Batch]:
        """Walk through the validation stream."""
        return walk(self._short(self.valid))

    def test_batches(self) -> Iterator[Batch]:
        """Walk through the whole test text; nothing if there is none."""
        return walk(self._short(self.test)) if self.test else iter(())

    def _short(self, stream: Stream) -> Stream:
        """Cut a stream into segments of which the logits, [T, B, V], are few."""
        most = max(1, MOST_LOGITS // (len(stream.ids) * len(self.vocabulary)))
        return replace(stream, bptt=min(stream.bptt, most))

    def facts(self) -> dict[str, Any]:
        """Facts about the text for the report and for resumed runs."""
        tokens, size = self.vocabulary.tokens, f"{len(self.vocabulary)} {self.items}"
        return {
            "source": self.corpus.source,
            "train_chars": len(self.corpus.train),
            "valid_chars": len(self.corpus.valid),
            "train_files": self.corpus.train_files,
            "valid_files": self.corpus.valid_files,
            "predicted_chars": int(self.places.size),
            "unknown_share": float((self.valid_ids[self.places] == 0).mean()),
            "vocabulary": "".join(tokens) if self.config.level == "char" else size,
        }

    def about(self) -> str:
        """Describe the text in one line."""
        corpus = self.corpus
        files = f" in {corpus.train_files} files" if corpus.train_files else ""
        valid_files = f" in {corpus.valid_files} files" if corpus.valid_files else ""
        return (
            f"text: {corpus.source}: {len(self.train_ids):,} {self.items}{files} to train on, "
            f"{len(self.valid_ids):,}{valid_files} to validate; {len(self.vocabulary):,} symbols"
        )


def walk(stream: Stream) -> Iterator[Batch]:
    """Walk through a stream, the state carried from segment to segment."""
    for k, piece in enumerate(stream.pieces()):
        yield Batch(*piece, resets_state=k == 0)


def prepare(config: TextConfig) -> TextData:
    """Read, encode and lay out the text of a run. Raises RunError: there is no text, or too
    little."""
    corpus = load(config.data)
    level = config.splitting
    if not corpus.train:
        raise RunError(
            "the text is too short to train on",
            "more text",
            source=corpus.source,
            text=f"no {level.labels.items} for training",
        )
    vocabulary = fit_vocabulary(corpus.train, level, config.vocabulary)
    train_ids, valid_ids = vocabulary.encode(corpus.train), vocabulary.encode(corpus.valid)
    walked = train_ids
    if config.random_start:
        start = int(np.random.default_rng(config.seed).integers(len(train_ids)))
        walked = np.roll(train_ids, -start)
    train = training_stream(walked, config.batch, config.bptt, level.labels.items)
    items, test = level.labels.items, vocabulary.encode(corpus.test)
    valid, places = validation_stream(valid_ids, config.bptt, config.validation_chars, items)
    return TextData(
        config=config,
        corpus=corpus,
        vocabulary=vocabulary,
        train_ids=train_ids,
        valid_ids=valid_ids,
        train=train,
        valid=valid,
        places=places,
        test=validation_stream(test, config.bptt, items=items)[0] if corpus.test else None,
    )
