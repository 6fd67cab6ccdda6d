"""Recurrences of published models as functions, with the calls of the libraries that have them.

Delta rules and gated linear attention are called as those of flash-linear-attention, the scans of
Mamba as those of mamba_ssm. So they stand in for these in a model, and for the loops over steps and
chunks that such a model runs on a CPU:

    >>> q, k, v = (torch.randn(2, 7, 4, 16) for _ in range(3))
    >>> out, S = elman.functional.gla(q, k, v, -torch.rand(2, 7, 4, 16), output_final_state=True)
    >>> out.shape, S.shape
    (torch.Size([2, 7, 4, 16]), torch.Size([2, 4, 16, 16]))

Half precision is computed in float32, as there; all gradients are those of the steps.
"""

from elman.functional import fla as fla
from elman.functional.convolutions import causal_conv1d as causal_conv1d
from elman.functional.convolutions import causal_conv1d_update as causal_conv1d_update
from elman.functional.delta_rules import delta_rule as delta_rule
from elman.functional.delta_rules import gated_delta_rule as gated_delta_rule
from elman.functional.delta_rules import gla as gla
from elman.functional.delta_rules import kda as kda
from elman.functional.delta_rules import simple_gla as simple_gla
from elman.functional.recurrences import mlstm as mlstm
from elman.functional.recurrences import rglru_scan as rglru_scan
from elman.functional.recurrences import rwkv4 as rwkv4
from elman.functional.stand_ins import install as install
from elman.functional.stand_ins import report as report
from elman.functional.stand_ins import uninstall as uninstall
from elman.functional.state_spaces import mamba2_scan as mamba2_scan
from elman.functional.state_spaces import selective_scan as selective_scan
from elman.functional.state_spaces import selective_state_update as selective_state_update

__all__ = [
    "causal_conv1d",
    "causal_conv1d_update",
    "delta_rule",
    "fla",
    "gated_delta_rule",
    "gla",
    "install",
    "kda",
    "mamba2_scan",
    "mlstm",
    "report",
    "rglru_scan",
    "rwkv4",
    "selective_scan",
    "selective_state_update",
    "simple_gla",
    "uninstall",
]
