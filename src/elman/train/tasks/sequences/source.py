"""Labelled sequences as they were read, before anything is done to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from elman.errors import RunError
from elman.train.tasks.arrays import digest_of

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
        halves = (self.train, self.test)
        words = [self.kind, *((list(half.labels), list(half.groups)) for half in halves)]
        return digest_of((piece for half in halves for piece in half.values), repr(words))


def hold_out(source: Source, group: str) -> Source:
    """Divide anew: one group is held out, all others are learned from. Raises RunError: the data
    have no groups, or none of that name."""
    halves = (source.train, source.test)
    values = [piece for half in halves for piece in half.values]
    labels = [label for half in halves for label in half.labels]
    groups = [name for half in halves for name in half.groups]
    if group not in groups:
        names = ", ".join(sorted(set(groups))) or "the data name no groups"
        raise RunError(f"there is no group {group!r} to hold out", groups=names)
    if set(groups) == {group}:
        raise RunError(f"all sequences are of the group {group!r}: nothing is left to learn from")

    def part(inside: bool) -> Half:
        rows = [k for k, name in enumerate(groups) if (name == group) is inside]
        return Half([values[k] for k in rows], [labels[k] for k in rows], [groups[k] for k in rows])

    return Source(f"{source.name}, {group} unseen", source.kind, part(False), part(True))


def by_group(source: Source) -> Source:
    """Classify groups (speakers) instead of labels. Raises RunError: the data have no groups."""
    halves = [Half(half.values, half.groups) for half in (source.train, source.test)]
    if not all(half.labels for half in halves):
        raise RunError("the data name no groups to tell apart", "--by label", path=source.name)
    return Source(f"{source.name}, by group", source.kind, *halves)


def join_sequences(source: Source, steps: int) -> Source:
    """Lay the sequences of each class end to end and cut them into ones of `steps` each.

    They stay in their order; what is left of a class at the end is dropped. Groups are, too.

    Raises:
        RunError: if the sequences of a class are too short together.
    """
    halves = [_join_half(source.name, half, steps) for half in (source.train, source.test)]
    return Source(f"{source.name}, joined to {steps} steps", source.kind, *halves)


def _join_half(name: str, half: Half, steps: int) -> Half:
    """Join one half."""
    rows: dict[str, list[np.ndarray]] = {}
    for piece, label in zip(half.values, half.labels):
        rows.setdefault(label, []).append(piece)
    values: list[np.ndarray] = []
    labels: list[str] = []
    for label, pieces in rows.items():
        row = np.concatenate(pieces)
        count = len(row) // steps
        if not count:
            text = f"a class is too short to be joined to {steps} steps"
            raise RunError(
                text,
                f"--join {len(row)}",
                **{"path": name, "class": label, "together": f"{len(row)} steps"},
            )
        values += np.split(row[: count * steps], count)
        labels += [label] * count
    return Half(values, labels)
