"""Published layers around cells whose state is a matrix, or diagonal: ``out, state = layer(x)``.

Projections, short convolutions, gates and norms are torch's; parameters are called as in the
authors' code, so that their weights load (not those of LRU and S4D). Time comes first:
x [T, B, hidden_size].
"""

from elman.layers.delta import DeltaNet as DeltaNet
from elman.layers.delta import GatedDeltaNet as GatedDeltaNet
from elman.layers.diagonal import LRU as LRU
from elman.layers.diagonal import S4D as S4D
from elman.layers.gla import GatedLinearAttention as GatedLinearAttention
from elman.layers.mamba2 import Mamba2 as Mamba2
from elman.layers.mlstm import MLSTM as MLSTM
from elman.layers.rwkv7 import RWKV7 as RWKV7
from elman.layers.stack import Stack as Stack
from elman.layers.strided import Strided as Strided

__all__ = [
    "LRU", "MLSTM", "RWKV7", "S4D", "DeltaNet", "GatedDeltaNet", "GatedLinearAttention", "Mamba2",
    "Stack", "Strided",
]  # fmt: skip
