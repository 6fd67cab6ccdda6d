"""Requests: the properties of a call on which the choice of its kernel depends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import torch

from elman.engines.precision import IEEE
from elman.ir.graph import Graph
from elman.plan.spec import PlanOptions, Spec

MOST_BUCKETS = 8  # buckets of T and B that are benchmarked per kind of call
_TORCH = "torch."
_AUTO, _ENGINE, _PRECISION = "auto", "engine=", "precision="


class Rule(Protocol):
    """A rewrite of a cell's step by an option of a call. Hashable; equal rules have equal
    effects."""

    @property
    def name(self) -> str:
        """One word for records."""
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
        precision: of products, as settled for this machine (:class:`elman.plan.spec.Spec`).
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
    precision: str = IEEE

    @property
    def kind(self) -> Request:
        """The request for any T and B."""
        return self._replace(steps=0, batch=0)

    @property
    def buckets(self) -> tuple[int, int]:
        """Size buckets of T and B."""
        return self.steps, self.batch

    def gradients(self, names: Sequence[str]) -> frozenset[str]:
        """Names that get a gradient, of all inputs and weights in declared order."""
        last = len(names) - 1
        return frozenset(name for k, name in enumerate(names) if self.wants >> (last - k) & 1)

    def spec(
        self, dims: tuple[tuple[str, int], ...], names: Sequence[str], options: PlanOptions
    ) -> Spec:
        """Spec of a kernel that serves such calls."""
        dtype = str(self.dtype).removeprefix(_TORCH)
        wants, planned = self.gradients(names), options.planned
        return Spec(dims, dtype, self.device, wants, self.training, planned, self.precision)

    def show(self, names: Sequence[str]) -> str:
        """Format for records: ``float32 cpu T<=64 B<=32 train x W R b``; after ``cpu`` it has
        ``engine=c`` where that engine was asked for by name, ``precision=bf16`` of such products,
        and the names of rules."""
        sizes = f"T<={1 << self.steps} B<={1 << self.batch}"
        mode = "eval"
        if self.training:
            mode = f"train {' '.join(sorted(self.gradients(names)))}".strip()
        suffix = "" if self.engine == _AUTO else f" {_ENGINE}{self.engine}"
        suffix += "" if self.precision == IEEE else f" {_PRECISION}{self.precision}"
        suffix += "".join(f" +{rule.name}" for rule in self.rules)
        return f"{str(self.dtype).removeprefix(_TORCH)} {self.device}{suffix} {sizes} {mode}"

    @staticmethod
    def parse(text: str, names: Sequence[str], rules: Mapping[str, Rule]) -> Request:
        """The inverse of :meth:`show`.

        Args:
            text: of :meth:`show`.
            names: of the inputs and weights, in declared order.
            rules: all known rules, by name.

        Raises:
            ValueError: it names something else.
        """
        dtype, device, *words = text.split()
        engines = [word.removeprefix(_ENGINE) for word in words[:1] if word.startswith(_ENGINE)]
        words = words[len(engines) :]
        rounded = [w.removeprefix(_PRECISION) for w in words[:1] if w.startswith(_PRECISION)]
        words = words[len(rounded) :]
        rule_names = [word[1:] for word in words if word.startswith("+")]
        steps, batch, mode, *wants = words[len(rule_names) :]
        if (
            mode not in ("train", "eval")
            or not {*wants} <= {*names}
            or not {*rule_names} <= {*rules}
        ):
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
            engine=engines[0] if engines else _AUTO,
            rules=tuple(rules[name] for name in rule_names),
            precision=rounded[0] if rounded else IEEE,
        )


class StackRequest(NamedTuple):
    """A kind of call of several layers, or of both directions of one.

    Attributes:
        members: one request each, in order.
    """

    members: tuple[Request, ...]

    @property
    def kind(self) -> StackRequest:
        """The requests for any T and B."""
        return StackRequest(tuple(member.kind for member in self.members))

    @property
    def buckets(self) -> tuple[int, int]:
        """Size buckets of T and B."""
        return self.members[0].buckets


AnyRequest = TypeVar("AnyRequest", Request, StackRequest)
Value = TypeVar("Value")


def nearest(benchmarked: Mapping[AnyRequest, Value], target: AnyRequest) -> Value | None:
    """Look up the result of the most similar T and B, once enough buckets have been benchmarked.

    Args:
        benchmarked: results by request, of any kind.
        target: the request to serve.
    """
    kind, (steps, batch) = target.kind, target.buckets
    similar = {r.buckets: value for r, value in benchmarked.items() if r.kind == kind}
    if len(similar) < MOST_BUCKETS:
        return None
    return similar[min(similar, key=lambda at: abs(at[0] - steps) + abs(at[1] - batch))]
