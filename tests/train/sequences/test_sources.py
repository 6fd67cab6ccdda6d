"""Files of sequences: what is in them is read; what is wrong with them is told, with its line."""

from __future__ import annotations

import gzip
import math
import sys
import types

import numpy as np
import pytest

from elman.errors import InputError, MissingPackageError, RunError
from elman.train.tasks.sequences.finding import find_images, find_series
from elman.train.tasks.sequences.source import Half, Source, by_group, holding_out, joined

TS = """# a comment
@problemName Two
@timeStamps false
@univariate false
@dimensions 2
@equalLength false
@classLabel true left right
@data
1,2,3:4,?,6:left
1.5,2:3,4:right
"""


def write(folder, **files):
    """Write files; `__` in a keyword stands for a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_ts_files(tmp_path):
    """Several channels, different lengths, missing values, comments."""
    write(tmp_path, Two_TRAIN__ts=TS, Two_TEST__ts=TS)
    for named in (tmp_path, tmp_path / "Two_TRAIN.ts", tmp_path / "Two_TEST.ts"):
        source = find_series(str(named))
        first, second = source.train.values
        np.testing.assert_array_equal(first, [[1, 4], [2, math.nan], [3, 6]])
        np.testing.assert_array_equal(second, [[1.5, 3], [2, 4]])
        assert source.train.labels == ["left", "right"]
        assert source.kind == "values"


def test_tables(tmp_path):
    """Classes as numbers, NaN at the end as padding; .ts is preferred where both are there."""
    write(tmp_path, A_TRAIN__tsv="1\t0.5\t1.5\n-1\t2.5\tNaN\n", A_TEST__tsv="1.0000e+00 3 4\n")
    source = find_series(str(tmp_path))
    assert [piece.tolist() for piece in source.train.values] == [[[0.5], [1.5]], [[2.5]]]
    assert (source.train.labels, source.test.labels) == (["1", "-1"], ["1"])
    write(tmp_path, A_TRAIN__ts=TS, A_TEST__ts=TS)
    assert find_series(str(tmp_path)).train.labels == ["left", "right"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("@data\n1,2:a\n1,x:b\n", "line 3: could not convert string to float: 'x'"),
        ("1,2:a\n", "line 1: values before @data"),
        ("@timestamps true\n@data\n", "line 1: series with time stamps"),
        ("@classLabel false\n@data\n1,2\n", "line 1: the series have no classes"),
        ("@data\n1,2\n", "line 2: no colon"),
        ("@data\n1,2:3:a\n", "line 2: channels of different lengths"),
        ("@data\n1,2:a\n1,2:1,2:a\n", "line 3: 2 channels, 1 in the first"),
        ("@data\n", "no sequences in it"),
    ],
)
def test_damaged_ts_files(tmp_path, text, message):
    """Each mistake with its line and the path."""
    write(tmp_path, B_TRAIN__ts=text, B_TEST__ts=TS)
    with pytest.raises(RunError, match=message) as error:
        find_series(str(tmp_path))
    assert "B_TRAIN.ts" in str(error.value)


def test_empty_row_of_a_table(tmp_path):
    """A row of nothing but padding has no steps."""
    write(tmp_path, A_TRAIN__tsv="1\t0.5\n2\tNaN\n", A_TEST__tsv="1\t1\n")
    with pytest.raises(RunError, match="line 2: a sequence without values"):
        find_series(str(tmp_path))


def test_recordings_are_cut_and_speakers_named(tmp_path):
    """Recordings end to end are cut; speakers have their names."""
    half = {"audio": np.arange(7, dtype=np.int16), "length": np.array([3, 4])}
    arrays = {f"{name}_{part}": value for part in ("train", "test") for name, value in half.items()}
    for part in ("train", "test"):
        arrays |= {f"digit_{part}": np.array([7, 2], np.uint8), f"speaker_{part}": np.array([1, 0])}
    np.savez(tmp_path / "a.npz", speaker_names=np.array(["ann", "bob"]), **arrays)
    source = find_series(str(tmp_path))

    assert source.kind == "wave"
    assert [piece[:, 0].tolist() for piece in source.train.values] == [[0, 1, 2], [3, 4, 5, 6]]
    assert (source.test.labels, source.test.groups) == (["7", "2"], ["bob", "ann"])

    unseen = holding_out(source, "ann")
    assert (len(unseen.train), len(unseen.test)) == (2, 2)
    assert set(unseen.test.groups) == {"ann"}
    assert set(unseen.train.labels) == {"7"}
    with pytest.raises(RunError, match=r"no group 'eve' to hold out(.|\n)*ann, bob"):
        holding_out(source, "eve")


def numbered(*lengths):
    """A half of two classes by turns, by two speakers, whose values count up."""
    ends = np.cumsum(lengths)
    values = [np.arange(end - n, end)[:, None] for n, end in zip(lengths, ends)]
    labels = [str(k % 2) for k in range(len(lengths))]
    return Half(values, labels, [("ann", "bob")[k // 2 % 2] for k in range(len(lengths))])


def test_joined():
    """Each class end to end in its order, cut into equal sequences; its rest is dropped."""
    source = joined(Source("x", "wave", numbered(3, 4, 5, 2), numbered(2, 2, 2, 3)), 4)
    train = {
        tuple(v[:, 0].tolist()): label for v, label in zip(source.train.values, source.train.labels)
    }
    assert train == {(0, 1, 2, 7): "0", (8, 9, 10, 11): "0", (3, 4, 5, 6): "1"}
    assert (source.train.labels, source.test.labels) == (["0", "0", "1"], ["0", "1"])
    assert source.kind == "wave"
    with pytest.raises(RunError, match=r"too short(.|\n)*class.*0(.|\n)*4 steps(.|\n)*--join 4"):
        joined(Source("x", "wave", numbered(3, 4, 5, 2), numbered(2, 2, 2, 3)), 5)


def test_by_group():
    """The groups are the classes; data without groups say so."""
    halves = numbered(3, 4, 5, 2), numbered(2, 2, 2, 3)
    source = by_group(Source("x", "wave", *halves))
    assert source.train.labels == ["ann", "ann", "bob", "bob"]
    assert not source.train.groups
    nameless = [Half(half.values, half.labels) for half in halves]
    with pytest.raises(RunError, match=r"no groups to tell apart(.|\n)*--by label"):
        by_group(Source("x", "wave", *nameless))


@pytest.mark.parametrize("gzipped", [False, True])
def test_idx_files(tmp_path, gzipped):
    """The four files of MNIST."""

    def idx(array):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        raw = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
        return gzip.compress(raw) if gzipped else raw

    images, labels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4), np.array([5, 0], np.uint8)
    ending = "__gz" if gzipped else ""
    for part in ("train", "t10k"):
        write(tmp_path, **{f"{part}-images-idx3-ubyte{ending}": idx(images)})
        write(tmp_path, **{f"{part}-labels-idx1-ubyte{ending}": idx(labels)})
    source = find_images(str(tmp_path))

    assert source.train.values.shape == (2, 12, 1)
    assert source.train.values[1, :, 0].tolist() == list(range(12, 24))
    assert source.test.labels == ["5", "0"]

    (damaged,) = tmp_path.glob("t10k-images*")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(RunError, match=r"cannot be read(.|\n)*t10k-images"):
        find_images(str(tmp_path))


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

    module = types.ModuleType("aeon.datasets")
    module.load_classification = load_classification
    monkeypatch.setitem(sys.modules, "aeon", types.ModuleType("aeon"))
    monkeypatch.setitem(sys.modules, "aeon.datasets", module)
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
