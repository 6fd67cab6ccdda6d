"""Models of agents, speech, irregular series and rivers: cells that torch does not have, in a loop.

Those of ``examples/projects`` are its scripts' (Dreamer, ncps, NeuralHydrology, haste), each with
its project's version and file. SpeechBrain 1.0 (``nnet/RNN.py``, ``LiGRU_Layer``) scripts its loop.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights, project_of
from benchmarks.users.resets import flags
from elman.cells import ligru

ATTRIBUTES = 27  # of a basin in CAMELS, as Kratzert et al. 2019 take them


def _ligru_steps(w: Tensor, U: Tensor) -> Tensor:
    """Hidden states [B, T, H] of projections [B, T, 2H]."""
    hiddens: list[Tensor] = []
    h = torch.zeros(w.shape[0], U.shape[1], dtype=w.dtype)
    for k in range(w.shape[1]):
        gates = w[:, k] + torch.nn.functional.linear(h, U)
        candidate, update = gates.chunk(2, 1)
        update = torch.sigmoid(update)
        h = update * h + (1 - update) * torch.relu(candidate)
        hiddens.append(h)
    return torch.stack(hiddens, dim=1)


class _Projected(nn.Module):
    """Input projections of all steps, normalised over samples and steps."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.w = nn.Linear(case.input_size, 2 * case.H, bias=False)
        self.bn_w = nn.BatchNorm1d(2 * case.H, momentum=0.05)

    def projected(self, x: Tensor) -> Tensor:
        """[T, B, 2H] of x [T, B, I]."""
        return self.bn_w(self.w(x).flatten(0, 1)).view(*x.shape[:2], -1)


class LiGRULoop(_Projected):
    """SpeechBrain's layer; its loop by torch's script compiler, although torch has others since."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.u = nn.Linear(case.H, 2 * case.H, bias=False)
        nn.init.orthogonal_(self.u.weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.steps: Any = torch.jit.script(_ligru_steps)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state."""
        h = self.steps(self.projected(x).transpose(0, 1), self.u.weight).transpose(0, 1)
        return h, h[-1]


class LiGRU(_Projected):
    """The LiGRU layer on elman."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.u = elman.nn.Recurrent(ligru, 2 * case.H, case.H)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """See :class:`LiGRULoop`."""
        return self.u(self.projected(x))


def _moved_ligru(weights: Weights) -> dict[str, Tensor]:
    return {"u.U_l0" if name == "u.weight" else name: weight for name, weight in weights.items()}


def _gaps(case: Case, source: torch.Generator) -> tuple[Tensor]:
    """[T, B]: times between samples, uniform in [0, 2]."""
    return (2 * torch.rand(case.T, case.B, generator=source),)


def _attributes(case: Case, source: torch.Generator) -> tuple[Tensor]:
    """[B, S]: attributes of each basin."""
    return (torch.randn(case.B, ATTRIBUTES, generator=source),)


def _halved(name: str, weight: Tensor) -> Tensor:
    """Gains of 1, and the identity that an EA-LSTM begins with, become 1/2: with 1 rounding errors
    grow over the steps, and agreement would tell nothing."""
    return weight / 2 if name.startswith(("gamma_h", "weight_hh")) else weight


LIGRU = Project({"loop": LiGRULoop}, LiGRU, moved=_moved_ligru)
DREAMER = project_of("dreamer_gru", arguments=flags)
CFC = project_of("ncps_cfc", arguments=_gaps, learned=1)
EALSTM = project_of(
    "neuralhydrology_ealstm",
    arguments=_attributes,
    learned=1,
    tamed=_halved,
    once=frozenset({"input_net.weight"}),
)
HASTE = project_of("haste_lstm", tamed=_halved, random=True)
