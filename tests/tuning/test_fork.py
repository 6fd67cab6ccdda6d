"""Choosing and verifying in the child of a fork, whose threads did not come along."""

from __future__ import annotations

import os
import re

import pytest

from helpers import need_engine
from scripts import begin, finished

ATEN = """
import os, torch, elman
torch.set_num_threads(2)
torch.randn(600, 600) @ torch.randn(600, 600)
if not os.fork():
    x, net = torch.randn(100, 4, 8), elman.Recurrent(elman.cells.gru, 8, 64, engine="aten")
    try:
        net(x)
    except elman.errors.EngineError as error:
        print(error)
    torch.set_num_threads(1)
    net(x)
    print("ran", flush=True)
    os._exit(0)
os.wait()
"""
SCRIPT = """
import os, torch, elman
torch.set_num_threads(2)

def in_child(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def choose(size):
    x = torch.randn(100, 4, 8)
    for engine in ("auto", "c"):
        net = elman.GRU(8, size, engine=engine)
        in_child(lambda: net(x)[0].sum().backward())

torch.randn(600, 600) @ torch.randn(600, 600)
choose(64)  # before any kernel of ours has run here
elman.GRU(8, 48, engine="c")(torch.randn(100, 4, 8))[0].sum().backward()
choose(48)

x = torch.randn(40, 64, 256)
net = elman.GRU(256, 256, engine="c")
def train():
    out = net(x)[0]
    out.sum().backward()
    return (out + out).mean()
train()

def train_in_child():
    with torch.no_grad():
        net(x)
    torch.set_num_threads(1)
    train()

in_child(train_in_child)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child(nothing_known):
    """It neither hangs nor fails when it chooses, by ``auto`` and by name, whatever its parent ran
    before; and it trains as docs/workers.md says: calls of ours need nothing, operations of torch's
    one thread."""
    need_engine("c")
    finished(begin("-W", "ignore", "-c", SCRIPT))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_layer_of_torch_in_a_forked_child(nothing_known):
    """Refused while it would wait for threads that are not there: ``auto`` does not choose it."""
    need_engine("aten")
    assert re.search(
        r"forked.*set_num_threads.*\nran\n", finished(begin("-W", "ignore", "-c", ATEN))
    )
