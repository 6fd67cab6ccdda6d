"""Choosing and verifying in the child of a fork, whose threads did not come along."""

from __future__ import annotations

import os

import pytest

from helpers import need_engine
from scripts import begin, finished

SCRIPT = """
import os, sys, torch, elman
torch.set_num_threads(2)
x = torch.randn(100, 4, 8)
torch.randn(600, 600) @ torch.randn(600, 600)
if sys.argv[1] == "used":
    elman.GRU(8, 64, engine="c")(x)[0].sum().backward()
for engine in ("auto", "c"):
    net = elman.GRU(8, 64, engine=engine)
    child = os.fork()
    if not child:
        net(x)[0].sum().backward()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, engine
"""


TRAINING = """
import os, torch, elman
torch.set_num_threads(2)
x = torch.randn(40, 64, 256)
net = elman.GRU(256, 256, engine="c")
def train():
    out = net(x)[0]
    out.sum().backward()
    return (out + out).mean()
train()
child = os.fork()
if not child:
    with torch.no_grad():
        net(x)
    torch.set_num_threads(1)
    train()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_trains(nothing_known):
    """As docs/workers.md says: calls of ours need nothing, operations of torch's one thread."""
    need_engine("c")
    finished(begin("-W", "ignore", "-c", TRAINING))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("before", ["used", "new"])
def test_a_forked_child_chooses(before, nothing_known):
    """It neither hangs nor fails, by ``auto`` and by name, whatever its parent ran before."""
    need_engine("c")
    finished(begin("-W", "ignore", "-c", SCRIPT, before))
