"""Products of float32 on a GPU follow torch's switch for recurrent layers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.engines import precision as module
from elman.engines.precision import multiplying, precision

ON_GPU: Any = SimpleNamespace(is_cuda=True)  # all that is asked of a tensor


@pytest.fixture(autouse=True)
def switches():
    """As they were, afterwards."""
    before = torch.backends.cudnn.rnn.fp32_precision
    yield
    torch.backends.cudnn.rnn.fp32_precision = before
    torch.backends.cuda.matmul.fp32_precision = "none"


def test_default_is_that_of_torchs_layers(monkeypatch):
    """tf32 unless it is switched off; never on a GPU of AMD."""
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    assert precision() == "tf32"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert precision() == "ieee"
    monkeypatch.setattr(torch.version, "hip", None)
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    assert precision() == "ieee"


@pytest.mark.parametrize("rnn", ["tf32", "ieee"])
@pytest.mark.parametrize("products", ["tf32", "ieee", "none"])
def test_products_are_switched_for_a_while(rnn, products):
    """… on a GPU; whatever happens inside, the user's switch is as it was."""
    torch.backends.cudnn.rnn.fp32_precision = rnn
    module._products.fp32_precision = products
    with multiplying(torch.zeros(1), precision()):
        assert module._products.fp32_precision == products
    with multiplying(ON_GPU, precision()):
        assert (module._products.fp32_precision == "tf32") == (rnn == "tf32")
    assert module._products.fp32_precision == products

    def fails() -> None:
        with multiplying(ON_GPU, precision()):
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert module._products.fp32_precision == products


def test_threads_take_turns():
    """Two threads that want different precisions: each multiplies in its own, and the user's switch
    is as it was, whoever ends last."""
    torch.backends.cudnn.rnn.fp32_precision = "tf32"
    module._products.fp32_precision = "ieee"
    inside, done = threading.Event(), threading.Event()
    seen: list[str] = []

    def first() -> None:
        with multiplying(ON_GPU, "tf32"):
            inside.set()
            done.wait(0.2)  # the other one would come in now
            seen.append(module._products.fp32_precision)

    def second() -> None:
        inside.wait()
        with multiplying(ON_GPU, "ieee"):
            seen.append(module._products.fp32_precision)
            done.set()

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["tf32", "ieee"]
    assert module._products.fp32_precision == "ieee"
