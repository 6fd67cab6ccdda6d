"""Products of float32 on a GPU follow torch's switch for recurrent layers."""

from __future__ import annotations

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
