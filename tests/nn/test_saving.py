"""Whole modules in files and copies: what a pickle names, what comes back, and what is refused."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils._pytree import tree_leaves

import elman
from elman import PlanOptions, cells, ops
from elman.errors import PickleError
from elman.frontend.cell import cell
from elman.nn.compile import names
from scripts import PATIENCE_S, begin, begin_anew, finished

X = torch.linspace(-1, 1, 30).reshape(5, 2, 3)


@cell(input="x[I], m", state="h[H], s[P]", weights="W[H, I], R[H, H], V[P, H], b[H]")
def leaky(x, m, h, s, W, R, V, b, *, squash=ops.tanh, leak=0.5):
    """Two states, two inputs, two options, a dim of its own."""
    h = leak * h + (1 - leak) * squash(W @ x + R @ (m * h) + b)
    return h, ops.tanh(V @ h) + s


def twice(v):
    """A user's own function as an option."""
    return ops.sigmoid(2 * v)


def cut(net):
    """A module after surgery: other options than it was made with."""
    net.dropout, net.engine = 0.25, "reference"
    return net


def ours(kind, *args, **options):
    return getattr(elman, kind)(*args, engine="reference", **options)


def recurrent(*args, **options):
    return ours("Recurrent", *args, **options)


def swapped(restored):
    net = nn.Sequential(nn.GRU(3, 4, 2))
    elman.accelerate(net)
    net[0].engine = "reference"  # the choice of a copy is its own
    return elman.restore(net) if restored else net


MADE = {
    "GRU": lambda: ours("GRU", 3, 4, 2, dropout=0.5),
    "GRU aten": lambda: elman.GRU(3, 4, engine="aten"),
    "LSTM": lambda: ours("LSTM", 3, 4, proj_size=2, bidirectional=True),
    "LSTM cut": lambda: cut(elman.LSTM(3, 4, 2)),
    "two states": lambda: recurrent(
        cells.lstm, 3, 4, 2, bidirectional=True, plan=PlanOptions("save")
    ),
    "checkpoint": lambda: recurrent(cells.gru, 3, 4, 2, plan=PlanOptions(checkpoint=2)),
    "dropout": lambda: recurrent(cells.mgu, 3, 4, 3, dropout=0.5),
    "heads": lambda: recurrent(cells.rnn, 3, 4, heads=2, activation=ops.relu),
    "own": lambda: recurrent(leaky, 3, 4, P=2),
    "own options": lambda: recurrent(leaky, 3, 4, P=2, squash=twice, leak=0.25, heads=2),
    "cut": lambda: cut(elman.Recurrent(cells.gru, 3, 4, 2)),
    "accelerated": lambda: swapped(False),
    "restored": lambda: swapped(True),
}
MINE = [leaky, twice]  # what a user allows beside elman's
TORCHS = [nn.GRU, nn.Sequential, nn.Linear]


def given(net):
    """Arguments for a module."""
    if isinstance(net, elman.Recurrent) and len(net.cell.inputs) == 2:
        return ((X, X[..., 0]),)
    return (X,)


def run(net):
    """What a module computes, one seed, and its gradients."""
    torch.manual_seed(0)
    outputs = tree_leaves(net(*given(net)))
    grads = torch.autograd.grad(sum(v.sum() for v in outputs), list(net.parameters()))
    return [*outputs, *grads]


def saved(net) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return file


def loaded(file, *more):
    with torch.serialization.safe_globals([*elman.safe_globals(), *more]):
        return torch.load(file, weights_only=True)


class Names(pickle.Unpickler):
    """An unpickler that keeps the names it was asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.found: set[str] = set()

    def find_class(self, module, name):
        self.found.add(f"{module}.{name}")
        return super().find_class(module, name)


def names_in(net, protocol: int) -> set[str]:
    """What of elman's a pickle of a module names."""
    reader = Names(pickle.dumps(net, protocol))
    reader.load()
    return {name for name in reader.found if name.startswith("elman.")}


PUBLIC = {f"elman.{name}" for name in elman.__all__} | {f"elman.ops.{name}" for name in ops.__all__}
PUBLIC |= {f"{made.function.__module__}.{made.name}" for made in cells.ALL}


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("kind", MADE)
def test_round_trips(kind, used):
    """Copies, pickles and files compute the same bits, forward and backward, before and after."""
    torch.manual_seed(1)
    net = MADE[kind]()
    if used:
        run(net)
        if hasattr(net, "step"):
            _ = net.runners
    copies = {
        "copy": copy.copy(net),
        "deepcopy": copy.deepcopy(net),
        "file": loaded(saved(net), *MINE, *TORCHS),
        "copy of a copy": pickle.loads(
            pickle.dumps(copy.deepcopy(loaded(saved(net), *MINE, *TORCHS)))
        ),
    }
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        copies[f"protocol {protocol}"] = pickle.loads(pickle.dumps(net, protocol))
    want = run(net)
    for how, made in copies.items():
        assert type(made) is type(net), how
        assert str(made) == str(net), how
        assert made.state_dict().keys() == net.state_dict().keys(), how
        assert all(torch.equal(a, b) for a, b in zip(run(made), want, strict=True)), how
    net.eval()
    assert all(torch.equal(a, b) for a, b in zip(run(copy.deepcopy(net)), run(net), strict=True))


@pytest.mark.parametrize("kind", MADE)
def test_nothing_private_in_a_pickle(kind):
    """Every name is a public one, and ``safe_globals`` has it, after use too."""
    net = MADE[kind]()
    allowed = {f"{it.__module__}.{it.__qualname__}" for it in elman.safe_globals()}
    assert allowed <= PUBLIC
    run(net)
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        assert names_in(net, protocol) <= allowed
    told = set(torch.serialization.get_unsafe_globals_in_checkpoint(saved(net)))
    assert {name for name in told if name.startswith("elman")} <= allowed


def test_files_name_public_classes_alone():
    """Layers in place of torch's name their class alone; a Recurrent its cell and its options."""
    assert names_in(elman.LSTM(3, 4, heads=2), 2) == {"elman.LSTM"}
    assert names_in(MADE["dropout"](), 2) == {"elman.Recurrent", "elman.cells.mgu.mgu"}
    options = {"elman.Recurrent", "elman.bound_cell", "elman.cells.rnn.rnn", "elman.ops.relu"}
    assert names_in(MADE["heads"](), 2) == options


class Tagger(nn.Module):
    """A user's model, as torch's example of a language model has it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.layers = ours("LSTM", 3, 4, 2, dropout=0.2)
        self.own = recurrent(leaky.with_options(leak=0.25), 4, 5, P=2)

    def forward(self, ids):
        y, _ = self.layers(self.embedding(ids))
        return self.own((y, y[..., 0]))[0]


ALLOWED = [Tagger, nn.Embedding, leaky, elman.LSTM, elman.Recurrent, elman.bound_cell]


def test_a_model_under_an_exact_list(tmp_path):
    """What is needed is the public classes, the cell, and bound_cell for its options; no more."""
    net, ids = Tagger().eval(), torch.arange(6).reshape(3, 2)
    want = net(ids)
    torch.save(net, tmp_path / "net.pt")
    with torch.serialization.safe_globals(ALLOWED):
        assert torch.equal(torch.load(tmp_path / "net.pt", weights_only=True)(ids), want)
    for left_out in ALLOWED:
        rest = [it for it in ALLOWED if it is not left_out]
        refused = pytest.raises(pickle.UnpicklingError, match=left_out.__qualname__)
        with torch.serialization.safe_globals(rest), refused:
            torch.load(tmp_path / "net.pt", weights_only=True)


def test_what_stands_in_place_of_weights_survives():
    """Pruning, weight_norm and hooks, in files and copies; parametrizations in copies."""
    for make in (MADE["GRU"], MADE["two states"]):
        net = make()
        name = next(name for name, _ in net.named_parameters())
        prune.random_unstructured(net, name, 0.5)
        net.register_forward_hook(doubled)
        want = run(net)
        for made in (pickle.loads(pickle.dumps(net)), loaded(saved(net), doubled, *PRUNED)):
            assert all(torch.equal(a, b) for a, b in zip(run(made), want, strict=True))
        net = make()
        parametrize.register_parametrization(net, name, nn.Tanh())
        want = run(net)
        assert all(torch.equal(a, b) for a, b in zip(run(copy.deepcopy(net)), want, strict=True))


PRUNED = (prune.RandomUnstructured,)


def doubled(_, __, output):
    """A hook."""
    return (2 * output[0], output[1])


HEAD = """from elman import cell, ops
{above}
@cell(input="x[I]", state="h[H]", weights="{weights}")
def mine(x, h, W, R, *, gain=1.0):
    {body}
"""
WEIGHTS, BODY = "W[H, I], R[H, H]", "return ops.tanh(gain * (W @ x + R @ h))"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a user's module anew and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body=BODY, weights=WEIGHTS, above="", text=""):
        path = tmp_path / "mycells.py"
        path.write_text(text or HEAD.format(above=above, weights=weights, body=body))
        sys.modules.pop("mycells", None)
        importlib.invalidate_caches()
        return importlib.import_module("mycells")

    yield write
    sys.modules.pop("mycells", None)


CHANGED = {
    "formula": {"body": BODY.replace("tanh", "sigmoid")},
    "constant": {"body": BODY.replace("gain *", "2 * gain *")},
    "operands": {"body": BODY.replace("W @ x + R @ h", "W @ x - R @ h")},
    "default": {"text": HEAD.format(above="", weights=WEIGHTS, body=BODY).replace("1.0", "1.5")},
    "weights": {"weights": "W[H, I], R[H, K]", "body": "return ops.tanh(W @ x) * h"},
    "states": {
        "text": HEAD.format(above="", weights=WEIGHTS, body=BODY + ", c")
        .replace("h[H]", "h[H], c[H]")
        .replace("x, h, W", "x, h, c, W")
    },
}
SAME = {
    "moved": {"above": "\n\n# a remark\n"},
    "variables": {"body": "a = W @ x\n    b = R @ h\n    return ops.tanh(gain * (a + b))"},
    "twice": {"body": "a = W @ x\n    a = W @ x\n    return ops.tanh(gain * (a + R @ h))"},
}


@pytest.mark.parametrize("options", [{}, {"gain": 1.25}, {"heads": 2}])
@pytest.mark.parametrize("how", [*CHANGED, *SAME])
def test_a_cell_that_was_changed_since(module, how, options):
    """Another formula is refused, under its own name; the same one in other words is taken."""
    net = recurrent(module().mine, 3, 4, **options)
    want, file, data = run(net), saved(net), pickle.dumps(net)
    if how == "default" and "gain" in options:
        return  # what was bound is bound again
    now = module(**CHANGED.get(how) or SAME[how]).mine
    if how in SAME:
        for made in (loaded(file, now), pickle.loads(data)):
            assert all(torch.equal(a, b) for a, b in zip(run(made), want, strict=True))
        return
    for load in (lambda: loaded(file, now), lambda: pickle.loads(data)):
        file.seek(0)
        with pytest.raises(PickleError, match="cell mine is not the one that was saved") as told:
            load()
        assert "mycells.py:" in str(told.value)
        assert "hint  restore the old formula; or make the module anew" in str(told.value)


def test_a_name_that_is_no_cell_any_more(module):
    """An option that was taken away, a function of that name, an empty module."""
    net = recurrent(module().mine, 3, 4, gain=1.25)
    data = pickle.dumps(net)
    module(
        text=HEAD.format(above="", weights=WEIGHTS, body=BODY)
        .replace(", *, gain=1.0", "")
        .replace("gain * ", "")
    )
    with pytest.raises(PickleError, match="mine takes no option 'gain'"):
        pickle.loads(data)
    module(text="def mine(): pass")
    with pytest.raises(PickleError, match="its name now refers to the function mine"):
        pickle.loads(data)
    module(text="mine = None")
    with pytest.raises(PickleError, match="its name now refers to None"):
        pickle.loads(data)


def test_a_cell_that_was_defined_again_before_it_is_saved(module):
    """As in a notebook: the same formula is saved, another one is refused at once."""
    net = recurrent(module().mine, 3, 4, gain=1.25)
    want = run(net)
    module()
    assert all(torch.equal(a, b) for a, b in zip(run(pickle.loads(pickle.dumps(net))), want))
    for change, why in (
        (CHANGED["formula"], "another formula now"),
        ({"text": "mine = 1"}, "not a cell"),
        ({"text": "other = 1"}, "not a cell"),
    ):
        module(**change)
        with pytest.raises(PickleError, match=rf"cannot be saved: mycells\.mine is {why}"):
            saved(net)
    assert all(torch.equal(a, b) for a, b in zip(run(copy.deepcopy(net)), want))


def test_local_cells_are_copied_and_not_saved(tmp_path):
    """The error comes on saving, and says where to define the cell, or what to save instead."""

    @cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
    def local(x, h, W, R):
        """Of this call alone."""
        return ops.tanh(W @ x + R @ h)

    named = cell(input="x[H]", state="h[H]")(lambda x, h: x + h)
    for made, why in (
        (local, r"inside test_local_cells_are_copied_and_not_saved\(\)"),
        (named, "inside"),
    ):
        for options in ({}, {"heads": 2}):
            net = recurrent(made, 4, 4, **options)
            torch.manual_seed(0)
            want = net(torch.ones(2, 3, 4))[0]
            for save in (pickle.dumps, lambda it: torch.save(it, tmp_path / "net.pt")):
                with pytest.raises(PickleError, match=f"it is defined {why}") as told:
                    save(nn.Sequential(net))
            assert "test_saving.py:" in str(told.value)
            assert "define it at the top level" in str(told.value)
            assert "state_dict()" in str(told.value)
            for other in (copy.copy(net), copy.deepcopy(net), copy.deepcopy(nn.Sequential(net))[0]):
                assert torch.equal(other(torch.ones(2, 3, 4))[0], want)


def test_fingerprints(golden):
    """They are in users' files: when a line changes, saved models of that cell are refused."""
    others = [made for made in cells.ALL if made not in cells.MATRIX]
    for name, group in (("fingerprints", others), ("fingerprints_matrices", cells.MATRIX)):
        golden(name, "\n".join(f"{made.name} {made.fingerprint}" for made in group))


SCRIPT = '''
import sys, torch, elman
from elman import ops

@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def scripted(x, h, W, R):
    """Of a script."""
    return ops.tanh(W @ x + R @ h)

if __name__ == "__main__":
    if sys.argv[1] == "save":
        torch.save(elman.Recurrent(scripted, 3, 4, engine="reference"), sys.argv[2])
    with torch.serialization.safe_globals([*elman.safe_globals(), scripted]):
        print(torch.load(sys.argv[2])(torch.ones(2, 1, 3))[0].sum().item())
'''


@pytest.mark.slow
def test_a_script_and_its_next_run(tmp_path):
    """A cell of ``__main__`` is found by the same script in other processes; in any hash order, or
    ``test_fingerprints`` would fail in some process."""
    (tmp_path / "script.py").write_text(SCRIPT)
    script = str(tmp_path / "script.py")
    told = [
        finished(begin("-W", "ignore", script, mode, str(tmp_path / "net.pt")))
        for mode in ("save", "load")
    ]
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["two states", "own options", "accelerated"])
def test_exported_programs(kind):
    """Exported before and after a round trip: the same bits. One of each kind; what else they are
    made with is in their pickles."""
    net = MADE[kind]().eval()
    want = tree_leaves(net(*given(net)))
    for it in (net, pickle.loads(pickle.dumps(net))):
        program = torch.export.export(it, given(it))
        assert all(
            torch.equal(a, b) for a, b in zip(tree_leaves(program.module()(*given(net))), want)
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_program_of_a_cell_that_was_changed_since(module, monkeypatch):
    """An exported program goes by the cell's name too: another formula is refused, not run."""
    net = recurrent(module().mine, 3, 4).eval()
    want, file = net(X)[0], io.BytesIO()
    torch.export.save(torch.export.export(net, (X,)), file)
    for change in (SAME["variables"], CHANGED["formula"]):
        monkeypatch.setattr(names, "_rebuilt", {})
        monkeypatch.setattr(names, "_groups", {})
        module(**change)
        file.seek(0)
        program = torch.export.load(file).module()
        if change is SAME["variables"]:
            assert torch.equal(program(X)[0], want)
        else:
            with pytest.raises(PickleError, match="cell mine is not the one that was saved"):
                program(X)


OF_MAIN = """
import sys, cloudpickle, torch, elman
from elman import ops

@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def plain(x, h, W, R, *, scale=1.0):
    return ops.tanh(scale * (W @ x) + R @ h)

torch.manual_seed(0)
nets = [
    elman.Recurrent(plain, 4, 8, engine="reference"),
    elman.Recurrent([plain, plain], 4, 8, heads=2, zoneout=0.1, scale=0.5, engine="reference"),
]
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump([net.eval() for net in nets], file)
print([net(torch.ones(3, 2, 4))[0].sum().item() for net in nets])
"""
LOADED = """
import pickle, sys, torch
with open(sys.argv[1], "rb") as file:
    nets = pickle.load(file)
print([net(torch.ones(3, 2, 4))[0].sum().item() for net in nets])
assert nets[0].cell.name == "plain"
"""


def test_cells_of_main_go_to_other_processes(tmp_path):
    """By cloudpickle, as joblib, Ray and Dask do; their ``__main__`` is another one."""
    script = tmp_path / "script.py"
    script.write_text(OF_MAIN, encoding="utf-8")
    file = str(tmp_path / "nets")
    saved = begin_anew(str(script), file).communicate(timeout=PATIENCE_S)
    loaded = begin_anew("-c", LOADED, file).communicate(timeout=PATIENCE_S)
    assert saved[0].startswith("["), saved[1]
    assert saved[0] == loaded[0], loaded[1]
