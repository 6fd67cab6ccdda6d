"""Texts by name: what a library keeps, and what has to be brought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elman.errors import RunError, diagnostic
from elman.train.sequences.download import fetched, package

WIKITEXT = ("Salesforce/wikitext", "wikitext-2-v1")  # on the Hugging Face hub


def wikitext() -> tuple[str, str, int, int, tuple[str, ...], str]:
    """Fetch WikiText-2, words as they are tokenized there; datasets keeps it for the next time.

    Raises:
        MissingPackageError: datasets is not installed.
        RunError: there is no network.
    """
    whole = fetched("wikitext-2", package("datasets").load_dataset, *WIKITEXT)
    train, valid, test = (lines_of(whole[part]) for part in ("train", "validation", "test"))
    return train, valid, 0, 0, (), test


def lines_of(part: Any) -> str:
    """Join the lines of a part; each ends in one newline."""
    return "".join(line.removesuffix("\n") + "\n" for line in part["text"])


def treebank() -> Any:
    """Say what is wanted of the Penn Treebank: its text may not be passed on."""
    details = [("wanted", "a folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt")]
    text = "the Penn Treebank is not to be had by name"
    raise RunError(diagnostic(text, details, "elman train text --preset small --data FOLDER"))


# By name: what a corpus has behind its source.
NAMED: dict[str, Callable[[], Any]] = {"wikitext-2": wikitext, "ptb": treebank}
