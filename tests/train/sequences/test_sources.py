"""Files of sequences: what is in them is read; what is wrong with them is told, with its line."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

from elman.errors import InputError, MissingPackageError, RunError
from elman.train.tasks.sequences.source import find_images, find_series


def write(folder, **files):
    """Write files; `__` in a keyword stands for a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def library(monkeypatch, **functions):
    """Stand for aeon, with functions of its room `datasets`."""
    monkeypatch.setitem(sys.modules, "aeon", types.ModuleType("aeon"))
    module = types.SimpleNamespace(**functions)
    monkeypatch.setitem(sys.modules, "aeon.datasets", module)


def test_ts_files(tmp_path, monkeypatch):
    """Through aeon, whose sequences are [I, T]; what it cannot read is told with the file."""
    write(tmp_path, Two_TRAIN__ts="left", Two_TEST__ts="right")
    monkeypatch.setitem(sys.modules, "aeon", None)
    with pytest.raises(MissingPackageError, match=r"a \.ts file needs .*\"elman\[data\]\""):
        find_series(str(tmp_path))

    def load_from_ts_file(path):
        with open(path) as file:
            text = file.read()
        if not text:
            raise OSError("empty file")
        return np.array([[[1.0, 2, 3], [4, np.nan, 6]]]), np.array([text])

    library(monkeypatch, load_from_ts_file=load_from_ts_file)
    for named in (tmp_path, tmp_path / "Two_TRAIN.ts", tmp_path / "Two_TEST.ts"):
        source = find_series(str(named))
        (piece,) = source.train.values
        np.testing.assert_array_equal(piece, [[1, 4], [2, np.nan], [3, 6]])
        assert (source.train.labels, source.test.labels) == (["left"], ["right"])
        assert source.kind == "values"
    write(tmp_path, Two_TRAIN__ts="")
    with pytest.raises(RunError, match=r"cannot be read(.|\n)*Two_TRAIN.ts(.|\n)*empty file"):
        find_series(str(tmp_path))


@pytest.mark.parametrize("ending", ["tsv", "csv", "txt"])
def test_tables(tmp_path, ending):
    """Classes as numbers, NaN at the end as padding; missing values, comments, empty lines."""
    text = "# a comment\n1\t0.5\t?\t1.5\n\n-1\t2.5\tNaN\n"
    text = text.replace("\t", ",") if ending == "csv" else text
    write(tmp_path, **{f"A_TRAIN__{ending}": text, f"A_TEST__{ending}": "1.0000e+00 3 4\n"})
    source = find_series(str(tmp_path))
    first, second = source.train.values
    np.testing.assert_array_equal(first, [[0.5], [np.nan], [1.5]])
    assert second.tolist() == [[2.5]]
    assert (source.train.labels, source.test.labels) == (["1", "-1"], ["1"])


@pytest.mark.parametrize(
    "text, message",
    [
        ("1 0.5\n2 x\n", "line 2: could not convert string to float: 'x'"),
        ("1\t0.5\n2\tNaN\n", "line 2: a sequence without values"),
        ("\n# nothing\n", "no sequences in it"),
    ],
)
def test_damaged_tables(tmp_path, text, message):
    """Each mistake with its line and the path."""
    write(tmp_path, A_TRAIN__tsv=text, A_TEST__tsv="1\t1\n")
    with pytest.raises(RunError, match=message) as error:
        find_series(str(tmp_path))
    assert "A_TRAIN.tsv" in str(error.value)


def test_recordings_are_cut(tmp_path):
    """Recordings lie end to end; further arrays are left."""
    half = {"audio": np.arange(7, dtype=np.int16), "length": np.array([3, 4])}
    arrays = {f"{name}_{part}": value for part in ("train", "test") for name, value in half.items()}
    for part in ("train", "test"):
        arrays |= {f"digit_{part}": np.array([7, 2], np.uint8), f"speaker_{part}": np.array([1, 0])}
    np.savez(tmp_path / "a.npz", **arrays)
    source = find_series(str(tmp_path))

    assert source.kind == "wave"
    assert [piece[:, 0].tolist() for piece in source.train.values] == [[0, 1, 2], [3, 4, 5, 6]]
    assert source.test.labels == ["7", "2"]


def arrays(**changes):
    """The arrays of a small set of images."""
    half = {"x": np.zeros((3, 2, 2, 3), np.uint8), "y": np.array([0, 1, 1])}
    found = {f"{name}_{part}": value for part in ("train", "test") for name, value in half.items()}
    return {name: value for name, value in (found | changes).items() if value is not None}


def test_images_in_npz(tmp_path):
    """Pixels in rows, colours as channels; the digest sees every change."""
    np.savez(tmp_path / "a.npz", **arrays())
    source = find_images(str(tmp_path / "a.npz"))
    assert (source.kind, source.train.values.shape) == ("pixels", (3, 4, 3))
    np.savez(tmp_path / "b.npz", **arrays(y_test=np.array([0, 1, 0])))
    assert find_images(str(tmp_path / "b.npz")).digest != source.digest
    assert find_images(str(tmp_path / "a.npz")).digest == source.digest


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x_test": None}, "no x_test or no y_test"),
        ({"y_train": np.array([0, 1])}, "3 sequences, 2 labels"),
        ({"x_train": np.zeros((3, 2, 2, 3, 1))}, r"x_train is of shape \[3, 2, 2, 3, 1\]"),
        ({"x_train": np.array([None] * 3)}, "cannot be read"),
    ],
)
def test_damaged_npz(tmp_path, changes, message):
    """What does not fit is told with what an .npz needs."""
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(RunError, match=message) as error:
        find_images(str(tmp_path))
    assert "an .npz needs x_train" in str(error.value)


def test_what_is_no_data(tmp_path):
    """Nothing named, nothing there, several things there, series for images."""
    with pytest.raises(InputError, match="elman train series FILE_FOLDER_OR_NAME"):
        find_series(None)
    with pytest.raises(RunError, match="does not exist"):
        find_series(str(tmp_path / "none"))
    with pytest.raises(RunError, match="does not hold exactly one data set"):
        find_series(str(tmp_path))
    write(tmp_path, A_TRAIN__tsv="1 1\n", A_TEST__tsv="1 1\n", B_TRAIN__tsv="1 1\n", c__npz=b"PK")
    with pytest.raises(RunError, match=r"A_TRAIN.tsv, B_TRAIN.tsv(.|\n)*name one of the files"):
        find_series(str(tmp_path))
    with pytest.raises(RunError, match="cannot be read"):
        find_images(str(tmp_path / "c.npz"))
    with pytest.raises(RunError, match="not half of a data set"):
        find_series(__file__)
    write(tmp_path, **{"train-images-idx3-ubyte": b""})
    with pytest.raises(RunError, match=r"idx files are not read(.|\n)*ylecun/mnist"):
        find_images(str(tmp_path))
    np.savez(tmp_path / "d.npz", **arrays(x_train=np.zeros((3, 5)), x_test=np.zeros((3, 5))))
    assert find_series(str(tmp_path / "d.npz")).train.values.shape == (3, 5, 1)
    with pytest.raises(RunError, match="these are not images"):
        find_images(str(tmp_path / "d.npz"))


def test_archive_by_name(monkeypatch):
    """A name is fetched through aeon, whose arrays are [I, T]; its errors are told as ours."""

    def load_classification(name, split):
        if name != "Known":
            raise ValueError(f"{name} is not in the archive")
        return [np.ones((2, 5)), np.ones((2, 3))], np.array(["a", "b"])

    library(monkeypatch, load_classification=load_classification)
    source = find_series("Known")
    assert [piece.shape for piece in source.train.values] == [(5, 2), (3, 2)]
    with pytest.raises(RunError, match=r"cannot be fetched(.|\n)*Unknown is not in the archive"):
        find_series("Unknown")


def test_hub_by_name(monkeypatch):
    """Images through datasets; without the package a hint how to get it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match=r"not of a file .* needs .*\"elman\[data\]"):
        find_images("someone/mnist")

    class Part(dict):
        column_names = ("img", "label")

    module = types.ModuleType("datasets")
    part = Part(img=[np.zeros((4, 4, 3), np.uint8)] * 2, label=[0, 1])
    module.load_dataset = lambda name: {"train": part, "test": part}
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert find_images("someone/mnist").train.values.shape == (2, 16, 3)
