"""Files that are no data set: told in a line with the array's name, before anything is written."""

from __future__ import annotations

import numpy as np
import pytest

from elman.errors import InputError, RunError
from elman.train.run import run as running
from elman.train.tasks.regression.data import RegressionConfig, prepare

X, Y = np.zeros((4, 5, 2)), np.arange(20.0).reshape(4, 5, 1)
GOOD = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y}


def put(array: np.ndarray, value: float) -> np.ndarray:
    """Put another value at one place of a copy."""
    copy = array.copy()
    copy.flat[3] = value
    return copy


BAD = [  # what is changed, what is said
    ({"y_train": Y * np.nan}, "y_train has no value of output 0: all are NaN"),
    ({"y_test": Y * np.nan}, "y_test has no value of output 0: all are NaN"),
    ({"y_test": put(Y, -np.inf)}, "y_test has 1 values that are infinite"),
    ({"y_test": put(Y, 1e39)}, "y_test has 1 values that are infinite"),
    ({"static_train": Y[:, :3, 0]}, "static_train is [4, 3], static_test [4, 0]"),
    ({"static_train": Y[:3, 0], "static_test": Y[:, 0, 0]}, "4 sequences in x_train, 3 in static"),
    ({"static_train": Y, "static_test": Y}, "static_train is of shape [4, 5, 1]"),
    ({"static_train": Y[:, 0] * np.nan}, "static_train has no value of channel 0: all are NaN"),
    ({"x_test": put(X, np.inf)}, "x_test has 1 values that are infinite"),
    ({"x_train": X * [np.nan, 1]}, "x_train has no value of channel 0: all are NaN"),
    ({"y_train": None}, "no y_train: x_train, x_test, y_test"),
    ({"x_test": None}, "no x_test"),
    ({"x_train": X[:1], "y_train": Y[:1]}, "x_train has 1 rows (sequences); at least 2"),
    ({"x_test": X[:0], "y_test": Y[:0]}, "x_test has 0 rows (sequences); at least 2"),
    ({"y_train": Y[:3]}, "4 sequences in x_train, 3 in y_train"),
    ({"x_train": Y[..., 0], "y_train": Y[..., 0]}, "x_train and y_train are both [4, 5]: a target"),
    ({"y_test": Y[:, :4]}, "5 steps in x_test, 4 in y_test"),
    ({"x_train": X[..., None]}, "x_train is of shape [4, 5, 2, 1]"),
    ({"x_train": X[0, 0]}, "x_train is of shape [2]"),
    ({"x_train": X[:, :0]}, "x_train is of shape [4, 0, 2]"),
    ({"y_train": Y[..., None]}, "y_train is of shape [4, 5, 1, 1]"),
    ({"y_train": np.float64(3)}, "y_train is of shape []"),
    ({"x_test": X[..., :1]}, "x_train is [4, 5, 2], x_test [4, 5, 1]"),
    ({"y_test": Y[:, 0]}, "y_train is [4, 5, 1], y_test [4, 1]"),
    ({"y_train": Y * 1j}, "y_train holds complex128, not real numbers"),
    ({"x_train": X.astype(str)}, "x_train holds <U32, not real numbers"),
    ({"y_test": Y.astype("datetime64[s]")}, "y_test holds datetime64[s], not real numbers"),
    ({"y_test": Y.astype(object)}, "y_test: Object arrays cannot be loaded"),
]


@pytest.mark.parametrize("change, reason", BAD)
def test_bad_arrays(tmp_path, console, change, reason):
    """Each with its name; no run folder is left."""
    path = tmp_path / "bad.npz"
    arrays = {name: value for name, value in (GOOD | change).items() if value is not None}
    np.savez(path, **arrays)
    with pytest.raises(RunError) as error:
        running.start(RegressionConfig(data=str(path)), tmp_path / "runs", console)
    (line,) = [line for line in str(error.value).splitlines() if reason in line]
    assert line.startswith("  error ")
    assert "x_train [N, T, I]" in str(error.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.uint8, bool, ">f4", np.longdouble])
def test_any_real_numbers(tmp_path, dtype):
    """Targets and inputs of any of numpy's real types."""
    path = tmp_path / "good.npz"
    np.savez(path, **{name: value.astype(dtype) for name, value in GOOD.items()})
    data = prepare(RegressionConfig(data=str(path)))
    assert str(data.fit.y.dtype) == "torch.float32"


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_no_npz(tmp_path, content):
    """Whatever else lies there."""
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"it is not an \.npz"):
        prepare(RegressionConfig(data=str(path)))


def test_cut_short(tmp_path):
    """An archive whose arrays are damaged names the first of them."""
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, **GOOD)
    held = bytearray(path.read_bytes())
    held[60:90] = bytes(30)
    path.write_bytes(held)
    with pytest.raises(RunError, match="x_train"):
        prepare(RegressionConfig(data=str(path)))


def test_nothing_named(tmp_path, console):
    """The command is told."""
    with pytest.raises(InputError, match=r"elman train regression FILE\.npz"):
        running.start(RegressionConfig(), tmp_path, console)
    with pytest.raises(RunError, match="does not exist"):
        running.start(RegressionConfig(data="none.npz"), tmp_path, console)
