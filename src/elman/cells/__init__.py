"""The library of cells: one file, one formula. ``ALL`` and ``SIZED`` list them."""

from elman.cells.ealstm import ealstm as ealstm
from elman.cells.gru import gru as gru
from elman.cells.gru_before import gru_before as gru_before
from elman.cells.indrnn import indrnn as indrnn
from elman.cells.lem import lem as lem
from elman.cells.lmu import lmu as lmu
from elman.cells.lmu import lmu_matrix as lmu_matrix
from elman.cells.lmu import lmu_vector as lmu_vector
from elman.cells.lru import lru as lru
from elman.cells.lstm import lstm as lstm
from elman.cells.lstm_layernorm import lstm_layernorm as lstm_layernorm
from elman.cells.lstm_peephole import lstm_peephole as lstm_peephole
from elman.cells.mgu import mgu as mgu
from elman.cells.mingru import mingru as mingru
from elman.cells.minlstm import minlstm as minlstm
from elman.cells.paragru import paragru as paragru
from elman.cells.paralstm import paralstm as paralstm
from elman.cells.rnn import rnn as rnn
from elman.cells.slstm import slstm as slstm
from elman.cells.sru import sru as sru

DENSE = (rnn, gru, gru_before, lstm, lstm_peephole, lstm_layernorm, mgu, lem, slstm)
DIAGONAL = (indrnn, sru, paragru, paralstm)  # no unit sees another's past
LINEAR = (mingru, minlstm, lru)  # affine in their state: all steps are one scan
ALL = (*DENSE, *DIAGONAL, *LINEAR)
SIZED = (ealstm, lmu)  # with dims of their own, which are given by keyword
