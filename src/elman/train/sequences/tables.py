"""Time series of the UCR and UEA archives: `.tsv` (and `.txt`) tables, and `.ts` files.

Formats: timeseriesclassification.com; `.ts` as described by the documentation of aeon 1.x
("The ts file format"). They are read here, not by aeon, so that a file needs no further package
and a mistake in it is reported with its line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from elman.files import read_file
from elman.train.sequences.source import Half, Source, unreadable

ENDINGS = (".ts", ".tsv", ".txt")


def read_pair(train: Path, test: Path) -> Source:
    """Read both halves of a data set."""
    name = train.name.rpartition("_")[0]
    return Source(f"{name} in {train.parent}", "values", read_half(train), read_half(test))


def read_half(path: Path) -> Half:
    """Read one file; missing values are NaN.

    Raises:
        RunError: with the line, if the file does not keep to its format.
    """
    try:
        lines = read_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    numbered = ((k, line.strip()) for k, line in enumerate(lines, 1))
    written = ((k, line) for k, line in numbered if line and not line.startswith("#"))
    read = ts_rows if path.suffix == ".ts" else table_rows
    pieces, labels = [], []
    for number, piece, label in read(path, written):
        if pieces and piece.shape[1] != pieces[0].shape[1]:
            shape = f"{piece.shape[1]} channels, {pieces[0].shape[1]} in the first sequence"
            raise unreadable(path, f"line {number}: {shape}")
        if not len(piece):
            raise unreadable(path, f"line {number}: a sequence without values")
        pieces.append(piece)
        labels.append(label)
    if not pieces:
        raise unreadable(path, "no sequences in it")
    return Half(pieces, labels)


def table_rows(
    path: Path, lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, np.ndarray, str]]:
    """Read a table: a class, then one value per step; NaN at the end is padding."""
    for number, line in lines:
        label, *texts = line.replace(",", " ").split()
        values = numbers(path, number, texts)
        known = np.flatnonzero(~np.isnan(values))
        end = known[-1] + 1 if len(known) else 0
        yield number, values[:end, None], tidy(label)


def ts_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, np.ndarray, str]]:
    """Read a .ts file: a header, then channels divided by colons, the class last."""
    begun = False
    for number, line in lines:
        if line.startswith("@"):
            key, _, value = line[1:].partition(" ")
            begun = begun or key.lower() == "data"
            key, stated = key.lower(), value.strip().lower().startswith("true")
            if key == "timestamps" and stated:
                raise unreadable(path, f"line {number}: series with time stamps are not supported")
            if key in ("classlabel", "targetlabel") and not stated:
                raise unreadable(path, f"line {number}: the series have no classes")
            continue
        if not begun:
            raise unreadable(path, f"line {number}: values before @data")
        *channels, label = line.split(":")
        if not channels:
            raise unreadable(path, f"line {number}: no colon between values and class")
        columns = [numbers(path, number, channel.split(",")) for channel in channels]
        if len({len(column) for column in columns}) > 1:
            raise unreadable(path, f"line {number}: channels of different lengths")
        yield number, np.stack(columns, 1), tidy(label.strip())


def numbers(path: Path, number: int, texts: list[str]) -> np.ndarray:
    """Read numbers, float32; `?` is a missing one."""
    try:
        return np.array([math.nan if text == "?" else float(text) for text in texts], np.float32)
    except ValueError as error:
        raise unreadable(path, f"line {number}: {error}") from error


def tidy(label: str) -> str:
    """Write a class that is a whole number without its decimals (1.0000000e+00 is class 1)."""
    try:
        value = float(label)
    except ValueError:
        return label
    return str(int(value)) if value.is_integer() else label
