"""Where images come from: `.npz`, CIFAR-10's python batches, a photograph."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from elman.errors import RunError
from elman.train.tasks.rotate.images import find_images, grey


def test_npz_of_colours_and_of_grey(tmp_path):
    """Colours become their luminance; grey stays as it is."""
    draw = np.random.default_rng(0)
    colours = draw.integers(0, 256, (3, 4, 5, 3), np.uint8)
    np.savez(tmp_path / "a.npz", x_train=colours, x_test=colours[:2], y_train=np.zeros(3))
    found = find_images(str(tmp_path))
    assert found.train.shape == (3, 4, 5)
    right = colours @ np.array([0.299, 0.587, 0.114])
    assert np.abs(found.train - right).max() <= 0.5 + 1e-4
    np.savez(tmp_path / "a.npz", x_train=colours[..., :1], x_test=colours[..., 1])
    found = find_images(str(tmp_path / "a.npz"))
    assert (found.train == colours[..., 0]).all()
    assert (found.test == colours[..., 1]).all()
    assert grey(np.full((1, 2, 2, 3), 255, np.uint8)).min() == 255


IMAGES = np.zeros((2, 4, 4), np.uint8)
BAD = [
    ({"x_train": IMAGES}, "no x_test: x_train"),
    ({}, "no x_train: no array at all"),
    ({"x_train": IMAGES / 255, "x_test": IMAGES}, "x_train holds float64, not uint8"),
    ({"x_train": IMAGES[0], "x_test": IMAGES}, "x_train is of shape [4, 4]"),
    ({"x_train": IMAGES[:0], "x_test": IMAGES}, "x_train is of shape [0, 4, 4]"),
    ({"x_train": IMAGES, "x_test": IMAGES[..., None, None]}, "x_test is of shape [2, 4, 4, 1, 1]"),
    ({"x_train": IMAGES, "x_test": IMAGES[:, :1]}, "x_test is of shape [2, 1, 4]"),
    ({"x_train": IMAGES, "x_test": IMAGES[:, :3]}, "differ in size: [4, 4] and [3, 4]"),
    ({"x_train": IMAGES.astype(object), "x_test": IMAGES}, "x_train: Object arrays cannot"),
]


@pytest.mark.parametrize("arrays, reason", BAD)
def test_bad_npz(tmp_path, arrays, reason):
    """Told with the array's name."""
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(RunError) as error:
        find_images(str(tmp_path / "bad.npz"))
    assert reason in str(error.value)


def test_nothing_there(tmp_path):
    """No such file; a folder of something else."""
    with pytest.raises(RunError, match="does not exist"):
        find_images(str(tmp_path / "none"))
    with pytest.raises(RunError, match="the folder holds no images"):
        find_images(str(tmp_path))


def test_photograph():
    """Real images that come with a dependency: many, different, and none in both halves."""
    found = find_images(None)
    assert found.train.shape[1:] == found.test.shape[1:] == (32, 32)
    assert len(found.train) > 1000 < 10 * len(found.test)
    assert found.train.std() > 20
    seen = {image.tobytes() for image in found.train if image.std() > 10}
    assert not any(image.tobytes() in seen for image in found.test)


def of_python2(data: np.ndarray) -> bytes:
    """Pickle {"data": data, "labels": …} as Python 2 did, in which CIFAR-10 is published."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING

    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    shape = b"".join(b"J" + struct.pack("<i", size) for size in data.shape)
    array += b"(K\x01(" + shape + b"t" + dtype + b"\x89" + text(data.tobytes()) + b"tb"
    labels = b"]" + b"".join(b"K\x03a" for _ in data)
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + b"u."


def write_cifar(folder, dump) -> np.ndarray:
    """Write two training batches and one to test on; returns their images [8, 3, 32, 32]."""
    images = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), np.uint8)
    folder.mkdir(exist_ok=True)
    for name, part in (("data_batch_1", [0, 1, 2]), ("data_batch_2", [3, 4]), ("test_batch", [7])):
        (folder / name).write_bytes(dump(images[part].reshape(len(part), -1)))
    return images


DUMPS = [
    of_python2,
    lambda data: pickle.dumps({b"data": data}, 2),
    lambda data: pickle.dumps({"data": data, "labels": [1]}, 4),
]


@pytest.mark.parametrize("dump", DUMPS, ids=["python2", "protocol2", "protocol4"])
@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_cifar_batches(tmp_path, dump, inner):
    """Red, green and blue planes, all batches in their order; also in the archive's folder."""
    images = write_cifar(tmp_path / inner, dump)
    found = find_images(str(tmp_path))
    assert (found.train == grey(images[:5].transpose(0, 2, 3, 1))).all()
    assert (found.test == grey(images[7:].transpose(0, 2, 3, 1))).all()


class Evil:
    """What a pickle can do."""

    def __reduce__(self):
        return print, ("evil",)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "EOFError"),
        (b"\x80\x02}", "cannot be read"),
        (pickle.dumps({"data": Evil()}), "it names builtins.print, which no array needs"),
        (pickle.dumps({"data": np.zeros((2, 7), np.uint8)}, 2), r"data is not uint8 \[N, 3072\]"),
        (pickle.dumps({"data": np.zeros((2, 3072))}, 2), r"data is not uint8 \[N, 3072\]"),
        (pickle.dumps([1]), r"data is not uint8 \[N, 3072\]"),
        (pickle.dumps({"data": pickle.Pickler}), "it names _pickle.Pickler"),
    ],
)
def test_bad_batches(tmp_path, content, reason, capsys):
    """Told with the file; nothing of a pickle is run."""
    write_cifar(tmp_path, of_python2)
    (tmp_path / "data_batch_2").write_bytes(content)
    with pytest.raises(RunError, match=reason) as error:
        find_images(str(tmp_path))
    assert "data_batch_2" in str(error.value)
    assert capsys.readouterr().out == ""


def test_missing_batches(tmp_path):
    """Images to test on alone are no data set."""
    write_cifar(tmp_path, of_python2)
    for path in tmp_path.glob("data_*"):
        path.unlink()
    with pytest.raises(RunError, match="no data_batch_1"):
        find_images(str(tmp_path))
