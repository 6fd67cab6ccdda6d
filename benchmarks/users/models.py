"""Models of speech, of irregular series and of rivers: cells that torch does not have, in a loop.

- SpeechBrain 1.0 (``nnet/RNN.py``, ``LiGRU_Layer``): all projections, batch norm over all steps,
  then a scripted loop.
- ncps 1.0 (``torch/cfc.py`` and ``torch/cfc_cell.py``): CfC, mode ``default``, one backbone layer,
  the time since the last sample given.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import Case
from benchmarks.users.project import Project, Weights, layer_of
from elman.cells import cfc, ligru

BACKBONE = 128  # units, as in ncps by default


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


def _scripted(function: Any) -> Any:
    """By torch's script compiler, as the project does, although torch has others since."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


class _Projected(nn.Module):
    """All steps' projections, normalised over samples and steps."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.w = nn.Linear(case.input_size, 2 * case.H, bias=False)
        self.bn_w = nn.BatchNorm1d(2 * case.H, momentum=0.05)

    def projected(self, x: Tensor) -> Tensor:
        """[T, B, 2H] of x [T, B, I]."""
        return self.bn_w(self.w(x).flatten(0, 1)).view(*x.shape[:2], -1)


class LiGRULoop(_Projected):
    """SpeechBrain's layer, its loop scripted."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.u = nn.Linear(case.H, 2 * case.H, bias=False)
        nn.init.orthogonal_(self.u.weight)
        self.steps = _scripted(_ligru_steps)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state."""
        h = self.steps(self.projected(x).transpose(0, 1), self.u.weight).transpose(0, 1)
        return h, h[-1]


class LiGRU(_Projected):
    """The same on elman."""

    def __init__(self, case: Case, engine: str) -> None:
        super().__init__(case)
        self.u = elman.nn.Recurrent(ligru, 2 * case.H, case.H, engine=engine)

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        """See :class:`LiGRULoop`."""
        return self.u(self.projected(x))


class CfCLoop(nn.Module):
    """ncps' cell for each step."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.size = case.H
        self.backbone = nn.Linear(case.input_size + case.H, BACKBONE)
        self.heads = nn.ModuleList(nn.Linear(BACKBONE, case.H) for _ in range(4))
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the last state; gaps [T, B] are the times between samples."""
        h, outputs = x.new_zeros(x.shape[1], self.size), []
        for row, gap in zip(x, gaps.unsqueeze(-1), strict=True):
            features = self.backbone(torch.cat((row, h), 1))
            features = 1.7159 * torch.tanh(0.666 * features)
            first, second, slope, offset = (head(features) for head in self.heads)
            gate = torch.sigmoid(slope * gap + offset)
            h = torch.tanh(first) * (1.0 - gate) + gate * torch.tanh(second)
            outputs.append(h)
        return torch.stack(outputs), h


def _ligrus(weights: Weights) -> dict[str, Tensor]:
    return {"u.U_l0" if name == "u.weight" else name: weight for name, weight in weights.items()}


def _cfcs(weights: Weights) -> dict[str, Tensor]:
    heads = range(4)
    return {
        "layer.A_l0": weights["backbone.weight"],
        "layer.a_l0": weights["backbone.bias"],
        "layer.F_l0": torch.cat([weights[f"heads.{k}.weight"] for k in heads]),
        "layer.f_l0": torch.cat([weights[f"heads.{k}.bias"] for k in heads]),
    }


def _gaps(case: Case, source: torch.Generator) -> tuple[Tensor]:
    """[T, B]: times between samples, uniform in [0, 2]."""
    return (2 * torch.rand(case.T, case.B, generator=source),)


LIGRU = Project({"loop": LiGRULoop}, LiGRU, moved=_ligrus)
_CFC = layer_of(cfc, lambda layer, x, gaps: layer((x, gaps)), U=BACKBONE)
CFC = Project({"loop": CfCLoop}, _CFC, _gaps, learned=1, moved=_cfcs)
