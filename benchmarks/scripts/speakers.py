"""Long sequences of speech: the recordings of each speaker end to end, cut into equal lengths.

``python -m benchmarks.scripts.speakers fsdd.npz speakers.npz [--steps 17984]``. The source has
``audio_<half>``, ``length_<half>`` and ``speaker_<half>``; the result is what suite ``long`` and
``elman train series`` read, with the speakers as classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np


def join_recordings(arrays: Mapping[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """The arrays of both halves; what remains of a speaker's samples at the end is dropped."""
    result: dict[str, np.ndarray] = {}
    for half in ("train", "test"):
        recordings = np.split(
            arrays[f"audio_{half}"], np.cumsum(arrays[f"length_{half}"], dtype=np.int64)[:-1]
        )
        speakers, pieces = arrays[f"speaker_{half}"], list[np.ndarray]()
        labels: list[np.ndarray] = []
        for speaker in np.unique(speakers):
            rows = [row for row, name in zip(recordings, speakers, strict=True) if name == speaker]
            samples = np.concatenate(rows)
            count = len(samples) // steps
            pieces.append(samples[: count * steps])
            labels.append(np.full(count, speaker))
        result[f"audio_{half}"], result[f"label_{half}"] = map(np.concatenate, (pieces, labels))
        result[f"length_{half}"] = np.full(len(result[f"label_{half}"]), steps)
    return result


def main(words: Sequence[str] | None = None) -> None:
    """Read one file and write another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--steps", type=int, default=17984)
    options = parser.parse_args(words)
    with np.load(options.source) as arrays:
        np.savez(options.target, **join_recordings(arrays, options.steps))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
