"""The library of cells: one file, one formula. ``ALL`` lists them."""

from elman.cells.alif import alif as alif
from elman.cells.alpha_lif import alpha_lif as alpha_lif
from elman.cells.antisymmetric import antisymmetric as antisymmetric
from elman.cells.antisymmetric import antisymmetric_gated as antisymmetric_gated
from elman.cells.cfc import cfc as cfc
from elman.cells.cfc import cfc_of as cfc_of
from elman.cells.cfc import cfc_pure as cfc_pure
from elman.cells.cfc import cfc_pure_of as cfc_pure_of
from elman.cells.cornn import cornn as cornn
from elman.cells.delta_net import delta_net as delta_net
from elman.cells.ealstm import ealstm as ealstm
from elman.cells.fast_weights import fast_weights as fast_weights
from elman.cells.fastgrnn import fastgrnn as fastgrnn
from elman.cells.gated_delta_net import gated_delta_net as gated_delta_net
from elman.cells.gated_delta_net2 import gated_delta_net2 as gated_delta_net2
from elman.cells.gated_delta_product import gated_delta_product as gated_delta_product
from elman.cells.gated_delta_product import gated_delta_product_of as gated_delta_product_of
from elman.cells.gated_slot_attention import gated_slot_attention as gated_slot_attention
from elman.cells.gla import gla as gla
from elman.cells.gru import gru as gru
from elman.cells.gru_before import gru_before as gru_before
from elman.cells.gru_d import gru_d as gru_d
from elman.cells.gru_layernorm import gru_layernorm as gru_layernorm
from elman.cells.hgrn2 import hgrn2 as hgrn2
from elman.cells.indgru import indgru as indgru
from elman.cells.indrnn import indrnn as indrnn
from elman.cells.izhikevich import izhikevich as izhikevich
from elman.cells.kda import kda as kda
from elman.cells.lem import lem as lem
from elman.cells.li import li as li
from elman.cells.lif import lif as lif
from elman.cells.lif_euler import lif_euler as lif_euler
from elman.cells.lif_euler import rlif_euler as rlif_euler
from elman.cells.ligru import ligru as ligru
from elman.cells.linear_attention import linear_attention as linear_attention
from elman.cells.lmu import lmu as lmu
from elman.cells.lmu import lmu_matrix as lmu_matrix
from elman.cells.lmu import lmu_vector as lmu_vector
from elman.cells.longhorn import longhorn as longhorn
from elman.cells.lru import lru as lru
from elman.cells.lsnn import lsnn as lsnn
from elman.cells.lstm import lstm as lstm
from elman.cells.lstm_layernorm import lstm_layernorm as lstm_layernorm
from elman.cells.lstm_peephole import lstm_peephole as lstm_peephole
from elman.cells.lstmn import lstmn as lstmn
from elman.cells.ltc import ltc as ltc
from elman.cells.m2rnn import m2rnn as m2rnn
from elman.cells.mamba import mamba as mamba
from elman.cells.mamba2 import mamba2 as mamba2
from elman.cells.mamba3 import mamba3 as mamba3
from elman.cells.mc_lstm import mc_lstm as mc_lstm
from elman.cells.mgu import mgu as mgu
from elman.cells.mingru import mingru as mingru
from elman.cells.minlstm import minlstm as minlstm
from elman.cells.mlstm import mlstm as mlstm
from elman.cells.mogrifier import mogrifier as mogrifier
from elman.cells.mogrifier import mogrifier_of as mogrifier_of
from elman.cells.onlstm import onlstm as onlstm
from elman.cells.onlstm import onlstm_chunked as onlstm_chunked
from elman.cells.paragru import paragru as paragru
from elman.cells.paralstm import paralstm as paralstm
from elman.cells.phased_lstm import phased_lstm as phased_lstm
from elman.cells.plastic_rnn import plastic_rnn as plastic_rnn
from elman.cells.plif import lif_node as lif_node
from elman.cells.plif import plif as plif
from elman.cells.retention import retention as retention
from elman.cells.rglru import rglru as rglru
from elman.cells.rhn import rhn as rhn
from elman.cells.rhn import rhn_of as rhn_of
from elman.cells.rlif import rlif as rlif
from elman.cells.rnn import rnn as rnn
from elman.cells.rwkv4 import rwkv4 as rwkv4
from elman.cells.rwkv6 import rwkv6 as rwkv6
from elman.cells.rwkv7 import rwkv7 as rwkv7
from elman.cells.s4d import s4d as s4d
from elman.cells.s4d import s4d_frequencies as s4d_frequencies
from elman.cells.s5 import s5 as s5
from elman.cells.s5 import s5_frequencies as s5_frequencies
from elman.cells.slstm import slstm as slstm
from elman.cells.spiking_lstm import spiking_lstm as spiking_lstm
from elman.cells.sru import sru as sru
from elman.cells.synaptic import synaptic as synaptic
from elman.cells.t_lstm import t_lstm as t_lstm
from elman.cells.titans import titans as titans
from elman.cells.ttt_linear import ttt_linear as ttt_linear
from elman.cells.unicornn import unicornn as unicornn
from elman.cells.zoneout_lstm_layernorm import zoneout_lstm_layernorm as zoneout_lstm_layernorm

DENSE = (rnn, gru, gru_before, lstm, lstm_peephole, lstm_layernorm, mgu, lem, slstm)
DIAGONAL = (indrnn, sru, paragru, paralstm)  # no unit sees another's past
LINEAR = (mingru, minlstm, lru)  # affine in their state: all steps are one scan
CORE = (*DENSE, *DIAGONAL, *LINEAR)  # of every kind of recurrence: each engine is tested on these
SIZED = (ealstm, lmu, onlstm_chunked, s4d)  # with dims of their own, which are given by keyword

SPIKING = (
    lif,
    rlif,
    synaptic,
    alpha_lif,
    spiking_lstm,
    lif_euler,
    rlif_euler,
    lsnn,
    izhikevich,
    plif,
    lif_node,
    alif,
)
GATED = (ligru, fastgrnn, indgru, rhn, mogrifier, onlstm, gru_layernorm, rglru)
OSCILLATING = (antisymmetric, antisymmetric_gated, cornn, unicornn)  # differential equations
TIMED = (phased_lstm, t_lstm, gru_d, cfc, cfc_pure)  # times of steps, or between them, are given
RANDOM = (zoneout_lstm_layernorm,)  # that draw random numbers where they train
ADDITIVE = (
    linear_attention,
    retention,
    gla,
    hgrn2,
    gated_slot_attention,
    mamba,
    mamba2,
    mamba3,
    rwkv6,
    plastic_rnn,
)
CORRECTING = (
    delta_net,
    gated_delta_net,
    kda,
    gated_delta_net2,
    gated_delta_product,
    fast_weights,
    rwkv7,
    longhorn,
    titans,
    ttt_linear,
)
NONLINEAR = (m2rnn, lstmn, ltc, mc_lstm)
MATRIX = (*ADDITIVE, *CORRECTING, mlstm, *NONLINEAR)  # engines reference and c
FILTERS = (li, s5)  # linear, as those of LINEAR
MEANS = (rwkv4,)  # diagonal: sums and the weights that they are divided by
MORE = (*SPIKING, *FILTERS, *GATED, *OSCILLATING, *TIMED, *MEANS)
ALL = (*CORE, *SIZED, *MORE, *RANDOM, *MATRIX)
