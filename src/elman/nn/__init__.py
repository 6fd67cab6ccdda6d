"""The torch side: modules, the one autograd function, and what swaps torch's layers for ours."""

from elman.nn.decoder import LinearCrossEntropy as LinearCrossEntropy
from elman.nn.layers import GRU as GRU
from elman.nn.layers import LSTM as LSTM
from elman.nn.layers import RNN as RNN
from elman.nn.records import choices as choices
from elman.nn.records import counters as counters
from elman.nn.records import pin as pin
from elman.nn.recurrent import Recurrent as Recurrent
from elman.nn.release import release as release
from elman.nn.streaming import Stream as Stream
from elman.nn.swap import accelerate as accelerate
from elman.nn.swap import report as report
from elman.nn.swap import restore as restore
from elman.nn.using import using as using
