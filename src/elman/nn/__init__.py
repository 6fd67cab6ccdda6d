"""Recurrent modules for torch, and functions that report, record and pin their engines."""

from elman.nn.engine_choice import shard_time as shard_time
from elman.nn.engine_choice import using as using
from elman.nn.modules.linear_cross_entropy import LinearCrossEntropyLoss as LinearCrossEntropyLoss
from elman.nn.modules.recurrent import Recurrent as Recurrent
from elman.nn.modules.stream import Stream as Stream
from elman.nn.modules.swap import accelerate as accelerate
from elman.nn.modules.swap import report as report
from elman.nn.modules.swap import restore as restore
from elman.nn.modules.torch_layers import GRU as GRU
from elman.nn.modules.torch_layers import LSTM as LSTM
from elman.nn.modules.torch_layers import RNN as RNN
from elman.nn.records import choices as choices
from elman.nn.records import counters as counters
from elman.nn.records import pin as pin
from elman.nn.records import release as release
