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


class ElmansOwn(elman.GRU):
    """A subclass of elman's layer."""


class Halved(nn.Module):
    """A parametrization."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value / 2


class Walk:
    """A layer, what was done to it, and what it should be."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.start = self.random.choice([nn.GRU, nn.GRU, nn.GRU, elman.GRU, TorchsOwn, ElmansOwn])
        torch.manual_seed(seed)
        self.model = nn.Sequential(self.start(3, 4))
        self.swapped = False
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
        assert len(told) == (self.start is TorchsOwn), self.done
        self.swapped = self.start is nn.GRU

    def restore(self, _: str) -> None:
        with self.same_parameters():
            assert elman.restore(self.model) is self.model
        self.swapped = False

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

    def run(self, _: str) -> None:
        """Results are torch's, of the weights as they are."""
        x, plain = torch.randn(5, 2, 3), nn.GRU(3, 4)
        with torch.no_grad():
            out, last = self.layer(x)
            for name in WEIGHTS:
                getattr(plain, name).copy_(getattr(self.layer, name))
            want_out, want_last = plain(x)
        assert_close(out, want_out, equal_nan=True)  # weight_norm of a row that was pruned
        assert_close(last, want_last, equal_nan=True)

    def check(self) -> None:
        """Class and report are those of what was done."""
        base = elman.GRU if self.swapped else self.start
        kind = type(self.layer)
        if self.parametrized:
            assert (kind.__name__, kind.__bases__) == (f"Parametrized{base.__name__}", (base,))
        else:
            assert kind is base, self.done
        name = kind.__name__
        said = elman.nn.report(self.model)["0"]
        if base is TorchsOwn:
            want = f"{name}, left alone: a subclass may change what forward computes"
        elif base is nn.GRU:
            want = "torch.nn.GRU, not accelerated"
        else:
            derived = "" if kind is elman.GRU else f"{name}, derived from "
            want = f"{derived}elman.GRU, engine auto"
        assert said.removesuffix(": c").removesuffix(": reference") == want, self.done


def walk(seed: int) -> None:
    steps = Walk(seed)
    for _ in range(12):
        steps.step()
    steps.restore("")
    steps.check()
    for name in steps.parametrized:
        steps.unparametrize(name)
    steps.check()
    assert (type(steps.layer) is steps.start) == (steps.start is not nn.GRU or not steps.swapped)
    steps.run("")


@pytest.mark.parametrize("seed", range(4))
def test_random_sequences(seed):
    """Six walks each, without a compiler."""
    with elman.using(engine="reference"):
        for k in range(6):
            walk(6 * seed + k)


@pytest.mark.long
def test_many_random_sequences():
    for seed in range(24, 524):
        walk(seed)


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
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch has no processes")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh, x = init_device_mesh("cpu", (1,)), torch.randn(5, 2, 3)
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
    finally:
        dist.destroy_process_group()


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
        (lambda: nn.Sequential(TorchsOwn(3, 4)), "0: TorchsOwn, left alone: a subclass may change"),
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
    "layers", [[nn.GRU(3, 4), TorchsOwn(4, 4)], [elman.GRU(3, 4)], [ElmansOwn(3, 4)]]
)
def test_nothing_to_say(layers):
    """Where a layer is elman's, now or before, there is no warning."""
    elman.accelerate(elman.accelerate(nn.Sequential(*layers)))
