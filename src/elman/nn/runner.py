"""One layer in one direction: picks a kernel for what is asked, once, and calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from elman import compiler
from elman.engines import registry
from elman.engines.base import Job, Kernel
from elman.engines.ragged import Ragged, over
from elman.errors import EngineError, InputError, ShapeError, VerifyError
from elman.frontend.cell import Cell
from elman.ir.types import shape_size
from elman.nn.derived import derived
from elman.nn.differentiable import Differentiable
from elman.nn.function import run, through
from elman.plan.spec import Spec, Tape
from elman.tuning.choose import Choice, choose, octave
from elman.tuning.kernels import engine_for, kernel_of
from elman.tuning.verification import verified

MOST_CLASSES = 8  # size classes of T and B that are measured per kind of call
Key = tuple[torch.dtype, str, int, bool, int, int, bool, str]
Found = TypeVar("Found")


def nearest(measured: Mapping[tuple[int, int], Found], here: tuple[int, int]) -> Found:
    """What was found for the most similar octaves of T and B."""
    steps, batch = here
    return measured[min(measured, key=lambda k: abs(k[0] - steps) + abs(k[1] - batch))]


def sizes_of(like: Tensor, ragged: Ragged | None) -> tuple[int, int]:
    """T and B of an input; of packed sequences their steps, and how many a step has."""
    if ragged is not None:
        return ragged.steps, ragged.mean_batch
    steps, batch, *_ = like.shape
    return steps, batch


class Runner:
    """Runs a cell over a sequence, on the engine that is asked for or that measured best.

    Choices are kept per dtype, device, wanted gradients, and size class (octave) of T and B.
    Nothing of them is copied or pickled: a copy chooses anew.
    """

    def __init__(self, cell: Cell, dims: Mapping[str, int], tape: Tape = "auto") -> None:
        self.cell = cell
        self.dims = tuple(sorted(dims.items()))
        self.tape: Tape = tape
        self._shapes = [torch.Size(shape_size(entry.shape, dims)) for entry in cell.weights]
        self._chosen: dict[Key, Choice] = {}
        self._pinned: dict[str, Choice] = {}
        self._packs: dict[Key, Key] = {}
        self._oracle: Kernel | None = None

    def __reduce__(self) -> Any:
        return Runner, (self.cell, dict(self.dims), self.tape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        return Runner(self.cell, dict(self.dims), self.tape)

    def __call__(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        engine: str,
        stacked: bool = False,
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps.

        Args:
            inputs: [T, B, n] each, or [T, B]; of packed sequences [N, n], or [N].
            states: [B, n] each, or [B]; with a leading axis of 1 if ``stacked``.
            weights: in declared order and shape.
            engine: a name, or ``auto``.
            stacked: whether the states are those of a stack of one layer.
            ragged: how packed sequences lie; not with stacked states.

        Returns:
            The output, laid out as the inputs; the last states, with the shapes of ``states``.

        Raises:
            EngineError: the named engine cannot run this.
            ShapeError, InputError: a weight is not what the cell declares.
        """
        flows = [tensor.requires_grad for tensor in inputs]
        steps, batch = sizes_of(inputs[0], ragged)
        key = self.key(inputs[0], flows, states, weights, engine, ragged)
        kernel = over(self.choice(key, steps, batch).kernel, ragged)
        oracle = self.oracle if ragged is None else partial(self.oracle, ragged)
        return run(kernel, oracle, inputs, states, weights, key[3], stacked)

    def key(
        self,
        like: Tensor,
        flows: Sequence[bool],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        engine: str,
        ragged: Ragged | None = None,
    ) -> Key:
        """What a call is, as far as a choice depends on it.

        Args:
            like: a tensor with the T, B (or rows), dtype and device of the inputs.
            flows: for each input, whether it requires a gradient.
            states, weights, engine, ragged: as for a call.

        Raises:
            ShapeError, InputError: a weight is not what the cell declares.
        """
        dtype, device = like.dtype, like.device
        for weight, shape in zip(weights, self._shapes):
            if weight.shape != shape or weight.dtype is not dtype or weight.device != device:
                self._refuse_weights(weights, like)
        wants, training = 0, False
        if torch.is_grad_enabled():
            for flow in flows:
                wants += wants + flow
            for tensor in weights:
                wants += wants + tensor.requires_grad
            training = wants > 0 or any(state.requires_grad for state in states)
        steps, batch = sizes_of(like, ragged)
        key = (
            dtype,
            device.type,
            wants,
            training,
            (steps - 1).bit_length(),
            (batch - 1).bit_length(),
            torch.are_deterministic_algorithms_enabled(),
            engine,
        )
        return key if ragged is None or engine != "auto" else self._packing(key)

    def _packing(self, key: Key) -> Key:
        """A key with an engine that runs packed rows as they lie, if there is one for it."""
        found = self._packs.get(key)
        if found is None:
            job = self.job(key)
            every = (engine_for(name, job) for name in registry.names())
            able = (e.name for e in every if not isinstance(e, str) and e.packs)
            found = self._packs[key] = (*key[:-1], next(able, "auto"))
        return found

    def choice(self, key: Key, steps: int, batch: int) -> Choice:
        """What runs such a call: chosen when it is first asked for."""
        found = self._chosen.get(key)
        if found is None:
            found = self._chosen[key] = self._choose(key, steps, batch)
        return found

    def under_transforms(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        stacked: bool = False,
        ragged: Ragged | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all steps so that every transform goes through; as :meth:`__call__`."""
        return through(self.oracle(ragged), inputs, states, weights, stacked)

    def oracle(self, ragged: Ragged | None = None) -> Kernel:
        """A kernel of this cell that every transform goes through, for every dtype and device."""
        if self._oracle is None:
            of = derived(self.cell, self.dims)
            reference = kernel_of(compiler.job(self.cell, Spec(self.dims)), "reference")
            self._oracle = Differentiable(of, reference)
        return over(self._oracle, ragged)

    @property
    def choices(self) -> dict[str, Choice]:
        """What was chosen or pinned so far, by :meth:`show`; for records and ``explain``."""
        chosen = {self.show(key): choice for key, choice in self._chosen.items()}
        return self._pinned | chosen

    def show(self, key: Key) -> str:
        """A key as text: ``float32 cpu T<=64 B<=32 train x W R b``."""
        dtype, device, wants, training, steps, batch, _, _ = key
        names = " ".join(sorted(self._wanted(wants)))
        mode = f"train {names}".strip() if training else "eval"
        return (
            f"{str(dtype).removeprefix('torch.')} {device} T<={1 << steps} B<={1 << batch} {mode}"
        )

    def pin(self, shown: str, record: Mapping[str, Any]) -> str | None:
        """Use exactly what a record of :func:`elman.nn.choices` says; else return why not."""
        try:
            spec = self._spec_of(shown)
            job = compiler.job(self.cell, spec)
            name, schedule = str(record["engine"]), str(record["schedule"])
            kernel = verified(job, name, schedule)
        except (EngineError, KeyError, ValueError) as error:
            return f"{shown}: {error}"
        now = {**kernel.describe(), "engine": name, "schedule": schedule}
        changed = [k for k in sorted(now.keys() | record.keys()) if now.get(k) != record.get(k)]
        if changed:
            return f"{shown}: {', '.join(changed)} of engine {name} is not what it was"
        self._pinned[shown] = Choice(name, schedule, kernel, "pinned")
        self._chosen.clear()
        return None

    def _refuse_weights(self, weights: Sequence[Tensor], like: Tensor) -> NoReturn:
        """A kernel reads memory: nothing that does not fit may reach it."""
        for entry, weight, shape in zip(self.cell.weights, weights, self._shapes, strict=True):
            if weight.shape != shape:
                raise ShapeError(f"weight {entry} is {list(weight.shape)}, not {list(shape)}")
            if weight.dtype != like.dtype or weight.device != like.device:
                raise InputError(
                    f"weight {entry} is {weight.dtype} on {weight.device}, "
                    f"but the input is {like.dtype} on {like.device}"
                )
        raise VerifyError("no weight was wrong after all")

    def _names(self) -> list[str]:
        return [entry.name for entry in (*self.cell.inputs, *self.cell.weights)]

    def _wanted(self, wants: int) -> frozenset[str]:
        names = self._names()
        last = len(names) - 1
        return frozenset(name for k, name in enumerate(names) if wants >> (last - k) & 1)

    def job(self, key: Key) -> Job:
        """What is to be compiled for such a call."""
        dtype, device, wants, training, *_ = key
        name = str(dtype).removeprefix("torch.")
        spec = Spec(self.dims, name, device, self._wanted(wants), training, self.tape)
        return compiler.job(self.cell, spec)

    def _choose(self, key: Key, steps: int, batch: int) -> Choice:
        assert (octave(steps), octave(batch)) == key[4:6], "size classes are octaves"
        engine = key[-1]
        pinned = self._pinned.get(self.show(key))
        if pinned is not None and engine in ("auto", pinned.engine):
            return pinned
        near = self._near(key)
        return choose(self.job(key), steps, batch, engine) if near is None else near

    def _near(self, key: Key) -> Choice | None:
        """What was measured for the most similar T and B, once enough classes have been."""
        same = key[:4], key[6:]
        measured = {
            other[4:6]: choice
            for other, choice in self._chosen.items()
            if (other[:4], other[6:]) == same and choice.why in ("measured", "remembered")
        }
        if len(measured) < MOST_CLASSES:
            return None
        return replace(nearest(measured, key[4:6]), why="near")

    def _spec_of(self, shown: str) -> Spec:
        dtype, device, _, _, mode, *wants = shown.split()
        if mode not in ("train", "eval") or not set(wants) <= set(self._names()):
            raise ValueError("no such size class")
        return Spec(self.dims, dtype, device, frozenset(wants), mode == "train", self.tape)
