"""The torch side: modules, the one autograd function, and what swaps torch's layers for ours."""

from elman.nn.accelerating import accelerate as accelerate
from elman.nn.accelerating import report as report
from elman.nn.accelerating import restore as restore
from elman.nn.asking import using as using
from elman.nn.modules import GRU as GRU
from elman.nn.modules import LSTM as LSTM
from elman.nn.modules import RNN as RNN
from elman.nn.records import choices as choices
from elman.nn.records import counters as counters
from elman.nn.records import pin as pin
from elman.nn.recurrent import Recurrent as Recurrent
from elman.nn.single import GRUCell as GRUCell
from elman.nn.single import LSTMCell as LSTMCell
from elman.nn.single import RNNCell as RNNCell
