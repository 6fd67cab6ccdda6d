"""elman.accelerate and restore between whatever else changes a layer: its class, parameters,
results and what ``elman.nn.report`` says are right after each step."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import elman
import elman.nn
from elman.errors import InputError
from helpers import assert_close

WEIGHTS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class TorchsOwn(nn.GRU):
    """A subclass of torch's layer."""


class Ends(nn.GRU):
    """One whose forward ends in that of its base."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        assert input.numel(), "something of its own"
        return super().forward(input, hx)


class Alone(nn.GRU):
    """One whose forward does not lead to that of its base."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return nn.GRU.forward(self, input, hx)


class Helped(nn.GRU):
    """One that changes what torch's forward calls."""

    def permute_hidden(self, hx: Any, permutation: Any) -> Any:
        return super().permute_hidden(hx, permutation)


class Halves(nn.GRU):
    """One that computes with other weights than it has, which only a call can tell."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._flat_weights[1] = nn.Parameter(self.weight_hh_l0.detach() / 2)


class ElmansOwn(elman.GRU):
    """A subclass of elman's layer."""


REFUSED = {Alone: "its forward does not call super().forward"}
REFUSED[Helped] = "its permute_hidden is not torch's"


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value / 2


class Walk:
    """A layer, what was done to it, and what it should be.

    Args:
        seed: of all that is drawn.
        mesh: of one process, if layers may be sharded, and compiled, too; both take their time.
    """

    def __init__(self, seed: int, mesh: Any = None) -> None:
        self.random, self.mesh = random.Random(seed), mesh
        kinds = [nn.GRU, nn.GRU, nn.GRU, elman.GRU, TorchsOwn, Ends, Alone, Helped, ElmansOwn]
        self.start = self.random.choice(kinds)
        torch.manual_seed(seed)
        self.model = nn.Sequential(self.start(3, 4))
        self.swapped = self.sharded = False
        self.normed = False  # torch's weight_norm leaves a hook that cannot be pickled
        self.done: list[str] = []

    @property
    def layer(self) -> Any:
        return self.model[0]

    @property
    def parametrized(self) -> list[str]:
        return [name for name in WEIGHTS if parametrize.is_parametrized(self.layer, name)]

    @property
    def pruned(self) -> list[str]:
        return [name for name in WEIGHTS if hasattr(self.layer, f"{name}_orig")]

    def step(self) -> None:
        """One change, of those that can be made."""
        name = self.random.choice(WEIGHTS)
        changes = ["accelerate", "restore", "run"]
        plain = not (self.sharded or self.parametrized or self.pruned)
        changes += ["shard", "compile"] * (self.mesh is not None and plain)
        changes += ["subclass"] * (plain and self.start is nn.GRU)
        if not self.sharded:
            changes += ["copy"] * (not self.pruned)  # torch copies no tensor that was computed
            changes += ["parametrize"] * (name not in self.pruned)
            changes += ["weight_norm"] * (name in WEIGHTS[:2] and name not in self.pruned)
            changes += ["unparametrize"] * (name in self.parametrized) * 2
            changes += ["prune"] * (name not in self.parametrized)
            changes += ["unprune"] * (name in self.pruned) * 2
            changes += ["pickle"] * (not self.parametrized and not self.normed)
        change = self.random.choice(changes)
        self.done.append(f"{change} {name}")
        getattr(self, change)(name)
        self.check()

    def accelerate(self, _: str) -> None:
        with self.same_parameters(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert elman.accelerate(self.model) is self.model
        assert len(told) == (self.start in REFUSED), self.done
        self.swapped = not (self.start in REFUSED or issubclass(self.start, elman.GRU))

    def restore(self, _: str) -> None:
        with self.same_parameters():
            assert elman.restore(self.model) is self.model
        self.swapped = False

    def subclass(self, _: str) -> None:
        """Of elman's, which restore refuses; else of torch's, for good."""
        if self.swapped:
            self.layer.__class__ = ElmansOwn
            with self.same_parameters(), pytest.raises(InputError, match="0 is a ElmansOwn"):
                elman.restore(self.model)
            self.layer.__class__ = elman.GRU
        else:
            self.start = self.layer.__class__ = self.random.choice([TorchsOwn, Ends, Alone])

    def shard(self, _: str) -> None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(self.layer, mesh=self.mesh)
        self.sharded = True

    def compile(self, name: str) -> None:
        """As it is, without a kernel of the compiler's."""
        torch.compiler.reset()
        self.run(name, torch.compile(self.model, backend="eager"))

    @contextmanager
    def same_parameters(self) -> Iterator[None]:
        before = dict(self.layer.named_parameters())
        yield
        after = dict(self.layer.named_parameters())
        assert before.keys() == after.keys(), self.done
        assert all(after[name] is value for name, value in before.items()), self.done

    def copy(self, _: str) -> None:
        self.model = copy.deepcopy(self.model)

    def pickle(self, _: str) -> None:
        self.model = pickle.loads(pickle.dumps(self.model))

    def parametrize(self, name: str) -> None:
        parametrize.register_parametrization(self.layer, name, Halved())

    def weight_norm(self, name: str) -> None:
        if name not in self.parametrized:
            parametrizations.weight_norm(self.layer, name)
            self.normed = True

    def unparametrize(self, name: str) -> None:
        parametrize.remove_parametrizations(self.layer, name)

    def prune(self, name: str) -> None:
        prune.random_unstructured(self.layer, name, 0.3)

    def unprune(self, name: str) -> None:
        prune.remove(self.layer, name)

    def run(self, _: str, model: Any = None) -> None:
        """Results are torch's, of the weights as they are."""
        x, plain = torch.randn(5, 2, 3), nn.GRU(3, 4)
        with torch.no_grad():
            out, last = (model or self.model)(x)
            for name in WEIGHTS:
                value = getattr(self.layer, name)
                whole = getattr(value, "full_tensor", lambda value=value: value)  # of shards
                getattr(plain, name).copy_(whole())
            want_out, want_last = plain(x)
        assert_close(out, want_out, equal_nan=True)  # weight_norm of a row that was pruned
        assert_close(last, want_last, equal_nan=True)

    def check(self) -> None:
        """Class and report are those of what was done."""
        kind, own = type(self.layer), type(self.layer)
        assert kind.__name__.startswith("Parametrized") == bool(self.parametrized), self.done
        if self.parametrized or self.sharded:
            assert kind.__module__.startswith("torch.")
            own = kind.__bases__[-1]
        assert isinstance(self.layer, elman.GRU) == self.elmans, self.done
        assert isinstance(self.layer, self.start), self.done
        if not self.swapped:
            assert own is self.start, self.done
        elif self.start is nn.GRU:
            assert own is elman.GRU, self.done
        else:  # elman's layer is below the user's class
            assert own.__bases__[0] is self.start, self.done
            assert own.__qualname__ == self.start.__qualname__
        said = elman.nn.report(self.model)["0"]
        if self.elmans:
            derived_from = "" if kind is elman.GRU else f"{kind.__name__}, derived from "
            want = f"{derived_from}elman.GRU, engine auto"
        elif self.start in REFUSED:
            want = f"{self.start.__name__}, left alone: {REFUSED[self.start]}"
        else:
            want = f"{'torch.nn.' * (self.start is nn.GRU)}{self.start.__name__}, not accelerated"
        assert said.removesuffix(": c").removesuffix(": reference") == want, self.done

    @property
    def elmans(self) -> bool:
        return self.swapped or issubclass(self.start, elman.GRU)


def walk(seed: int, mesh: Any = None) -> None:
    steps = Walk(seed, mesh)
    for _ in range(12):
        steps.step()
    steps.restore("")
    steps.check()
    for name in [] if steps.sharded else steps.parametrized:
        steps.unparametrize(name)
    steps.check()
    assert steps.sharded or type(steps.layer) is steps.start
    steps.run("")


@contextmanager
def one_process() -> Iterator[Any]:
    """A mesh of this process."""
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch has no processes")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences(seed):
    """Six walks each, without a compiler."""
    with elman.using(engine="reference"):
        for k in range(6):
            walk(6 * seed + k)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # a view: what nn.Linear returns
def test_random_sequences_of_shards():
    """Layers are sharded and compiled, too."""
    with elman.using(engine="reference"), one_process() as mesh:
        for seed in range(1000, 1012):
            walk(seed, mesh)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_many_random_sequences():
    with one_process() as mesh:
        for seed in range(24, 524):
            walk(seed, mesh if seed % 2 else None)


def test_restore_of_a_parametrized_layer():
    """It is derived from torch's layer, is parametrized as before, and can be relieved of that. A
    module that shared the class, and was not restored, keeps it."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.GRU(3, 4)), torch.randn(5, 2, 3)
    layer: Any = elman.accelerate(model)[0]
    parametrizations.orthogonal(layer, "weight_hh_l0")
    other, want = copy.deepcopy(layer), layer(x)[0]
    kind = type(layer)
    elman.restore(model)
    assert elman.nn.report(model) == {"0": "torch.nn.GRU, not accelerated"}
    assert not isinstance(layer, elman.GRU)
    assert type(layer).__bases__ == (nn.GRU,)
    assert_close(layer(x)[0], want)
    assert_close(layer.weight_hh_l0.T @ layer.weight_hh_l0, torch.eye(4))
    assert type(other) is kind
    assert_close(other(x)[0], want)
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert type(layer) is nn.GRU
    assert_close(layer(x)[0], want)
    assert "_runtime" not in vars(layer)


def test_accelerate_a_parametrized_layer():
    """Its weights are computed in every call, and trained."""
    torch.manual_seed(0)
    layer: Any = parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    x = torch.randn(5, 2, 3)

    def results() -> list[torch.Tensor]:
        layer.zero_grad()
        out, _ = layer(x)
        out.sin().sum().backward()
        return [out, *(w.grad.clone() for w in layer.parameters())]

    want = results()
    elman.accelerate(layer)
    assert elman.nn.report(layer) == {"": "ParametrizedLSTM, derived from elman.LSTM, engine auto"}
    for got, value in zip(results(), want, strict=True):
        assert_close(got, value)
    with torch.no_grad():
        layer.parametrizations.weight_hh_l0.original0.mul_(2)
    got = layer(x)[0]
    assert_close(got, elman.restore(layer)(x)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # a view: what nn.Linear returns
def test_sharded_by_fsdp():
    """Before or after accelerate; restored, the layer is derived from torch's and is sharded."""
    from torch.distributed.fsdp import FSDPModule, fully_shard

    with one_process() as mesh:
        x = torch.randn(5, 2, 3)
        for first in (elman.accelerate, lambda model: model):
            model = nn.Sequential(nn.GRU(3, 4))
            want = model(x)[0]
            first(model)
            fully_shard(model[0], mesh=mesh)
            elman.accelerate(model)
            for change, layer in ((elman.accelerate, elman.GRU), (elman.restore, nn.GRU)):
                parameters = [id(w) for w in model.parameters()]
                change(model)
                assert [id(w) for w in model.parameters()] == parameters
                assert type(model[0]).__bases__ == (FSDPModule, layer)
                assert (layer is nn.GRU) == ("not accelerated" in elman.nn.report(model)["0"])
                assert_close(model(x)[0], want)


def test_a_class_of_yours_cannot_be_torchs():
    """A layer that was given one after accelerate is told, and nothing is changed."""
    model = elman.accelerate(nn.Sequential(nn.GRU(3, 4), nn.Identity(), nn.GRU(4, 4)))
    model[2].__class__ = ElmansOwn
    told = "elman.restore: 2 is a ElmansOwn, which is derived from elman.GRU: ElmansOwn cannot be"
    with pytest.raises(InputError, match=told):
        elman.restore(model)
    assert [type(layer) for layer in model] == [elman.GRU, nn.Identity, ElmansOwn]
    layer = model.get_submodule("2")
    layer.__class__ = type(layer).__bases__[0]  # what the error says to write
    assert [type(layer) for layer in elman.restore(model)] == [nn.GRU, nn.Identity, nn.GRU]


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda: nn.Sequential(nn.Linear(3, 4)), "it has no torch.nn.RNN, GRU or LSTM"),
        (lambda: nn.Sequential(Alone(3, 4)), "0: Alone, left alone: its forward does not call"),
        (lambda: nn.GRUCell(3, 4), "GRUCell: torch.nn.GRUCell, left alone: elman.GRU takes all"),
        (
            lambda: nn.Sequential(*(nn.RNNCell(3, 3) for _ in range(7))),
            "4: torch.nn.RNNCell, .*; 2 more, which elman.nn.report",
        ),
    ],
)
def test_nothing_to_replace(make, why):
    """One warning, with the reasons."""
    model = make()
    with pytest.warns(
        UserWarning, match=f"accelerate replaced nothing in {type(model).__name__}: .*{why}"
    ) as told:
        assert elman.accelerate(model) is model
    assert len(told) == 1


@pytest.mark.parametrize(
    "layers", [[nn.GRU(3, 4), Alone(4, 4)], [elman.GRU(3, 4)], [ElmansOwn(3, 4)]]
)
def test_nothing_to_say(layers):
    """Where a layer is elman's, now or before, there is no warning."""
    elman.accelerate(elman.accelerate(nn.Sequential(*layers)))


def test_a_subclass_whose_results_differ():
    """Its first call tells: there is one warning, it returns torch's results and is torch's."""
    torch.manual_seed(0)
    model, x = nn.Sequential(Halves(3, 4)), torch.randn(5, 2, 3)
    want = model(x)[0]
    elman.accelerate(model)
    with pytest.warns(UserWarning, match="Halves runs on torch, not on elman: its results") as told:
        assert_close(model(x)[0], want)
    assert len(told) == 1
    assert type(model[0]) is Halves
    assert_close(model(x)[0], want)
    assert "Halves, left alone: its results are not" in elman.nn.report(model)["0"]
    with pytest.warns(UserWarning, match="replaced nothing in Sequential: 0: Halves, left alone"):
        elman.accelerate(model)


def test_the_first_call_of_a_subclass():
    """Dropout between layers is drawn once, as without elman; so are gradients."""
    torch.manual_seed(0)
    model, x = Ends(3, 4, num_layers=2, dropout=0.5), torch.randn(5, 2, 3)

    def results() -> list[torch.Tensor]:
        torch.manual_seed(1)
        out, _ = model(x)
        return [out, *torch.autograd.grad(out.sin().sum(), [*model.parameters()])]

    want = results()
    elman.accelerate(model)
    for got, value in zip(results(), want, strict=True):
        assert_close(got, value)
    with pytest.raises(AssertionError, match="of its own"):
        model(torch.zeros(0, 2, 3))
    assert pickle.loads(pickle.dumps(model))(x)[0].shape == (5, 2, 4)
    assert type(elman.restore(pickle.loads(pickle.dumps(model)))) is Ends
