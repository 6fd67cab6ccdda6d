"""torch's own layers as an engine: oneDNN, cuDNN, or ATen's loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from elman.engines import forks
from elman.engines.aten.binding import Binding, bind
from elman.engines.aten.formulas import Formula, formulas
from elman.engines.base import DifferentiableKernel, Engine, Job, Kernel
from elman.engines.call import Call, Result
from elman.errors import EngineError
from elman.passes.digest import digest


class AtenKernel(DifferentiableKernel):
    """One layer in one direction by ``torch.gru``, ``lstm``, ``rnn_tanh`` or ``rnn_relu``.

    Attributes:
        function: name of torch's function.
        binding: of torch's weights to the job's.
    """

    engine = "aten"

    def __init__(self, formula: Formula, binding: Binding, training: bool) -> None:
        self.function, self.binding = formula.function, binding
        self._run = getattr(torch, formula.function)
        self._two_states = formula.function == "lstm"
        self._training = training

    def forward(self, call: Call) -> Result:
        """Run all steps; see :class:`Kernel`."""
        binding, weights = self.binding, call.weights
        flat = [weights[binding.w_ih], weights[binding.w_hh]]
        for index in binding.biases:
            flat.append(weights[index] if index >= 0 else torch.zeros_like(flat[-1]))
        hx = [state.unsqueeze(0) for state in call.states]
        output, *last = self._run(
            call.inputs[0],
            hx if self._two_states else hx[0],
            flat,
            bool(binding.biases),
            1,  # layers
            0.0,  # dropout
            self._training,
            False,  # bidirectional
            False,  # batch_first
        )
        return Result(output, tuple(state.squeeze(0) for state in last))


def recognise(job: Job) -> tuple[Formula, Binding] | str:
    """The torch layer that a job is equal to and the binding of its weights; or the reason why
    not."""
    formula = formulas().get(digest(job.pair.source))
    if formula is None:
        return f"{job.name} is not the formula of torch's RNN, GRU or LSTM"
    binding = bind(formula, job)
    return binding if isinstance(binding, str) else (formula, binding)


class Aten(Engine):
    """Runs jobs that are equal to a layer of torch."""

    name = "aten"
    dtypes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("float32", "float64"),
        "cuda": ("float32", "float64", "bfloat16", "float16"),
    }

    def supports(self, job: Job) -> str | None:
        """None if the cell's canonical step is torch's, else how it differs."""
        lacking = self.lacks(job.spec.device, job.spec.dtype)
        if lacking is not None:
            return lacking
        if min((size for _, size in job.spec.dims), default=1) == 0:
            return "torch's layers take no dim of size 0"
        if forks.forked and job.spec.device == "cpu" and torch.get_num_threads() > 1:
            return (
                "this process was forked, and torch's layers would wait for threads of its parent; "
                "torch.set_num_threads(1) lets them run"
            )
        recognised = recognise(job)
        return recognised if isinstance(recognised, str) else None

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Nothing is compiled."""
        reason = self.supports(job)
        recognised = recognise(job)
        if reason is not None or isinstance(recognised, str):
            raise EngineError(f"engine aten cannot run {job.name}: {reason}")
        return AtenKernel(*recognised, job.spec.training)


ENGINE = Aten()
