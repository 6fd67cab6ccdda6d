"""Labelled sequences as they were read, before anything is done to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elman.errors import RunError, diagnostic

Values = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Half:
    """The training half or the held-out one.

    Attributes:
        values: N sequences [T, I] of any lengths, or one array [N, T, I].
        labels: N names of classes.
        groups: N names (speakers), or empty.
    """

    values: Values
    labels: Sequence[str]
    groups: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Source:
    """A data set as read.

    Attributes:
        name: where it came from, for people.
        kind: "values", "wave" (raw audio) or "pixels": how it is scaled.
    """

    name: str
    kind: str
    train: Half
    test: Half

    @property
    def digest(self) -> str:
        """Hash of all values, labels and groups."""
        hashed = hashlib.sha256(self.kind.encode())
        for half in (self.train, self.test):
            hashed.update(repr((list(half.labels), list(half.groups))).encode())
            for piece in half.values:
                hashed.update(repr(piece.shape).encode())
                hashed.update(np.ascontiguousarray(piece).data)
        return hashed.hexdigest()


def holding_out(source: Source, group: str) -> Source:
    """Divide anew: one group is held out, all others are learned from.

    Raises:
        RunError: if the data have no groups, or none of that name.
    """
    halves = (source.train, source.test)
    values = [piece for half in halves for piece in half.values]
    labels = [label for half in halves for label in half.labels]
    groups = [name for half in halves for name in half.groups]
    if group not in groups:
        known = ", ".join(sorted(set(groups))) or "the data name no groups"
        raise RunError(diagnostic(f"there is no group {group!r} to hold out", [("groups", known)]))
    if set(groups) == {group}:
        raise RunError(f"all sequences are of the group {group!r}: nothing is left to learn from")

    def part(inside: bool) -> Half:
        kept = [k for k, name in enumerate(groups) if (name == group) is inside]
        return Half([values[k] for k in kept], [labels[k] for k in kept], [groups[k] for k in kept])

    return Source(f"{source.name}, {group} unseen", source.kind, part(False), part(True))


def unreadable(path: Path, error: object, hint: str = "") -> RunError:
    """Build the error for a file that cannot be used."""
    details = [("path", str(path)), ("error", str(error))]
    return RunError(diagnostic("the data file cannot be read", details, hint))
