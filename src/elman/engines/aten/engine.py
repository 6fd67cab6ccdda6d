"""torch's own layers as an engine: oneDNN, cuDNN, or ATen's loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import _VF, Tensor

from elman.engines.aten.binding import Binding, bind
from elman.engines.aten.formulas import Formula, formulas
from elman.engines.base import Engine, Job, Kernel
from elman.errors import EngineError, VerifyError
from elman.passes.digest import digest

_DTYPES = {
    "cpu": ("float32", "float64"),
    "cuda": ("float32", "float64", "bfloat16", "float16"),
}


class AtenKernel(Kernel):
    """One layer in one direction by ``torch.gru``, ``lstm``, ``rnn_tanh`` or ``rnn_relu``."""

    engine = "aten"
    differentiable = True

    def __init__(self, formula: Formula, binding: Binding, training: bool) -> None:
        self._run = getattr(_VF, formula.function)
        self._two_states = formula.function == "lstm"
        self._binding = binding
        self._training = training

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Run all steps; see :class:`Kernel`."""
        own = self._binding
        flat = [weights[own.w_ih], weights[own.w_hh]]
        for index in own.biases:
            flat.append(weights[index] if index >= 0 else torch.zeros_like(flat[-1]))
        hx = [state.unsqueeze(0) for state in states]
        output, *last = self._run(
            inputs[0],
            hx if self._two_states else hx[0],
            flat,
            bool(own.biases),
            1,  # layers
            0.0,  # dropout
            self._training,
            False,  # bidirectional
            False,  # batch_first
        )
        return output, tuple(state.squeeze(0) for state in last), ()

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """Never called: autograd sees through ``forward``."""
        raise VerifyError("engine aten is differentiated by torch, not by its own backward")


def recognise(job: Job) -> tuple[Formula, Binding] | str:
    """Which of torch's layers a job is, and where its weights go; or why it is none."""
    formula = formulas().get(digest(job.pair.step))
    if formula is None:
        return f"{job.name} is not the formula of torch's RNN, GRU or LSTM"
    binding = bind(formula, job)
    return binding if isinstance(binding, str) else (formula, binding)


class Aten(Engine):
    """Runs what torch has a layer for."""

    name = "aten"

    def supports(self, job: Job) -> str | None:
        """None if the cell's canonical step is torch's, else how it differs."""
        if job.spec.device not in _DTYPES:
            return f"device {job.spec.device}: only {' and '.join(_DTYPES)}"
        able = _DTYPES[job.spec.device]
        if job.spec.dtype not in able:
            return f"dtype {job.spec.dtype}: only {' and '.join(able)}"
        if min((size for _, size in job.spec.dims), default=1) == 0:
            return "torch's layers take no dim of size 0"
        found = recognise(job)
        return found if isinstance(found, str) else None

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Nothing is compiled."""
        reason = self.supports(job)
        found = recognise(job)
        if reason is not None or isinstance(found, str):
            raise EngineError(f"engine aten cannot run {job.name}: {reason}")
        return AtenKernel(*found, job.spec.training)


ENGINE = Aten()
