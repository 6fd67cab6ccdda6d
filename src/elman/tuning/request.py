"""What a call asks for, as far as the choice of a kernel depends on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch

from elman.ir.graph import Graph
from elman.plan.spec import PlanOptions, Spec

MOST_BUCKETS = 8  # buckets of T and B that are benchmarked per kind of call
_TORCH = "torch."
_AUTO, _ENGINE = "auto", "engine="


class Rule(Protocol):
    """How an option of a call changes a cell's step. Hashable: rules of equal effect are equal."""

    @property
    def name(self) -> str:
        """For records: one word."""
        ...

    def rewrite(self, graph: Graph) -> Graph:
        """The step with the option: further inputs come last."""
        ...


def bucket(size: int) -> int:
    """The size bucket of T or B: k for sizes in (2^(k-1), 2^k]."""
    return (size - 1).bit_length()


class Request(NamedTuple):
    """A kind of call of one layer in one direction.

    Attributes:
        dtype: of all tensors.
        device: torch's device type.
        wants: the gradients that are wanted, a bit for each input and weight in declared order, the
            last one lowest.
        training: whether a backward can follow.
        steps, batch: buckets of T and B.
        deterministic: whether torch's deterministic algorithms are on.
        engine: a name, or ``auto``.
        rules: of the options that are in use.
    """

    dtype: torch.dtype
    device: str
    wants: int
    training: bool
    steps: int
    batch: int
    deterministic: bool = False
    engine: str = _AUTO
    rules: tuple[Rule, ...] = ()

    @property
    def kind(self) -> Request:
        """The same for any T and B."""
        return self._replace(steps=0, batch=0)

    @property
    def buckets(self) -> tuple[int, int]:
        """Those of T and B."""
        return self.steps, self.batch

    def wanted(self, names: Sequence[str]) -> frozenset[str]:
        """The names of those that get a gradient, of all inputs and weights in declared order."""
        last = len(names) - 1
        return frozenset(name for k, name in enumerate(names) if self.wants >> (last - k) & 1)

    def spec(
        self, dims: tuple[tuple[str, int], ...], names: Sequence[str], options: PlanOptions
    ) -> Spec:
        """For what a kernel is made that serves such calls."""
        dtype = str(self.dtype).removeprefix(_TORCH)
        return Spec(dims, dtype, self.device, self.wanted(names), self.training, options)

    def show(self, names: Sequence[str]) -> str:
        """As text, for records: ``float32 cpu T<=64 B<=32 train x W R b``; after ``cpu`` it has
        ``engine=c`` where that engine was asked for by name, and the names of rules."""
        sizes = f"T<={1 << self.steps} B<={1 << self.batch}"
        mode = f"train {' '.join(sorted(self.wanted(names)))}".strip() if self.training else "eval"
        used = "" if self.engine == _AUTO else f" {_ENGINE}{self.engine}"
        used += "".join(f" +{rule.name}" for rule in self.rules)
        return f"{str(self.dtype).removeprefix(_TORCH)} {self.device}{used} {sizes} {mode}"

    @staticmethod
    def parse(text: str, names: Sequence[str], rules: Mapping[str, Rule]) -> Request:
        """What :meth:`show` has shown.

        Args:
            text: what was shown.
            names: of the inputs and weights, in declared order.
            rules: those that there are, by name.

        Raises:
            ValueError: it names something else.
        """
        dtype, device, *rest = text.split()
        named = [word.removeprefix(_ENGINE) for word in rest[:1] if word.startswith(_ENGINE)]
        rest = rest[len(named) :]
        used = [word[1:] for word in rest if word.startswith("+")]
        steps, batch, mode, *wants = rest[len(used) :]
        if mode not in ("train", "eval") or not {*wants} <= {*names} or not {*used} <= {*rules}:
            raise ValueError("no such request")
        bits = 0
        for name in names:
            bits += bits + (name in wants)
        return Request(
            getattr(torch, dtype),
            device,
            bits,
            mode == "train",
            bucket(int(steps.removeprefix("T<="))),
            bucket(int(batch.removeprefix("B<="))),
            engine=named[0] if named else _AUTO,
            rules=tuple(rules[name] for name in used),
        )


class StackRequest(NamedTuple):
    """A kind of call of several layers, or of both directions of one.

    Attributes:
        members: what is asked of each, in order.
    """

    members: tuple[Request, ...]

    @property
    def kind(self) -> StackRequest:
        """The same for any T and B."""
        return StackRequest(tuple(member.kind for member in self.members))

    @property
    def buckets(self) -> tuple[int, int]:
        """Those of T and B."""
        return self.members[0].buckets


Asked = TypeVar("Asked", Request, StackRequest)
Found = TypeVar("Found")


def nearest(benchmarked: Mapping[Asked, Found], asked: Asked) -> Found | None:
    """What was found for the most similar T and B, once enough buckets have been benchmarked.

    Args:
        benchmarked: what was found, for requests of any kind.
        asked: what is wanted now.
    """
    kind, (steps, batch) = asked.kind, asked.buckets
    similar = {other.buckets: what for other, what in benchmarked.items() if other.kind == kind}
    if len(similar) < MOST_BUCKETS:
        return None
    return similar[min(similar, key=lambda at: abs(at[0] - steps) + abs(at[1] - batch))]
