"""Steps of installed packages, unchanged: ncps, snnTorch, norse, SpikingJelly, xlstm, torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.steps.case import Case, Sizes, Step, Tree, stream, zeros

NCPS = "ncps, https://github.com/mlech26l/ncps"
SNNTORCH = "snnTorch, https://github.com/jeshraghian/snntorch"
NORSE = "norse, https://github.com/norse/norse"
JELLY = "SpikingJelly, https://github.com/fangwei123456/spikingjelly"
XLSTM = "xlstm, https://github.com/NX-AI/xlstm, arXiv 2405.04517"
TORCH = "torch.nn"


def currents(T: int, B: int, sizes: Sizes) -> Tensor:
    """Input currents [T, B, I] that make neurons spike now and then."""
    return 0.6 * torch.rand(T, B, sizes.I) + 0.3 * torch.randn(T, B, sizes.I)


def spikes(T: int, B: int, sizes: Sizes) -> Tensor:
    """Input spikes [T, B, I]."""
    return (torch.rand(T, B, sizes.I) < 0.5).float()


def strong(T: int, B: int, sizes: Sizes) -> Tensor:
    """Strong currents [T, B, I]."""
    return 5 * torch.rand(T, B, sizes.I)


def strongest(T: int, B: int, sizes: Sizes) -> Tensor:
    """Currents [T, B, I] that make Izhikevich's neurons spike."""
    return 50 * torch.rand(T, B, sizes.I)


def attribute(path: str) -> Any:
    """What a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


# torch


def torch_cell(name: str, states: int, call: str) -> Case:
    """A cell of torch.nn, at the sizes of its documentation's example."""
    return Case(
        f"torch_{name.lower()}",
        f"{TORCH}.{name}",
        lambda sizes: getattr(nn, name)(sizes.I, sizes.H),
        call,
        zeros(states),
        (6, 3, 10, 20),
    )


TORCHS = [
    torch_cell("RNNCell", 1, "x,h->h"),
    torch_cell("GRUCell", 1, "x,h->h"),
    torch_cell("LSTMCell", 2, "x,(h,c)->(h,c)"),
]

# ncps


def regular(cell: nn.Module) -> Step:
    """A CfC's step at regular times, as ``ncps.torch.CfC`` runs it."""

    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        out, h = cell(x, h, 1.0)
        return h, out

    return step


def irregular(cell: nn.Module) -> Step:
    """A CfC's step with time since the last one as a second input [B, 1]."""

    def step(h: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values, elapsed = x
        out, h = cell(values, h, elapsed)
        return h, out

    return step


def mixed(cfc: Any) -> Step:
    """The step of ``ncps.torch.CfC(mixed_memory=True)``: an LSTM, then the cell."""

    def step(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        h, c = state
        h, c = cfc.lstm(x, (h, c))
        out, h = cfc.rnn_cell(x, h, 1.0)
        return (h, c), out

    return step


def timed(T: int, B: int, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Values [T, B, I] and times between them [T, B, 1]."""
    return torch.randn(T, B, sizes.I), 0.1 + torch.rand(T, B, 1)


def auto_ncp(sizes: Sizes) -> Any:
    """A sparse wiring of H neurons."""
    return attribute("ncps.wirings.AutoNCP")(sizes.H, max(1, sizes.H // 7))


def cfc(**options: Any) -> Callable[[Sizes], nn.Module]:
    """Builds CfC cells."""
    return lambda sizes: attribute("ncps.torch.CfCCell")(sizes.I, sizes.H, **options)


def ltc(wiring: Callable[[Sizes], Any]) -> Callable[[Sizes], nn.Module]:
    """Builds LTC cells."""
    return lambda sizes: attribute("ncps.torch.LTCCell")(wiring(sizes), sizes.I)


def full(sizes: Sizes) -> Any:
    """A wiring of H neurons, all to all."""
    return attribute("ncps.wirings.FullyConnected")(sizes.H)


def ncps_case(name: str, module: Callable[[Sizes], nn.Module], **more: Any) -> Case:
    """A case of ncps: the sizes of its README, but more steps (it has 3)."""
    rest = {"call": "s,x->s,y", "adapt": regular, "own": (32, 2, 20, 50), "package": "ncps"}
    return Case(f"ncps_{name}", NCPS, module, **{"state": zeros(), **rest, **more})


NCPS_CASES = [
    ncps_case("cfc", cfc()),
    ncps_case("cfc_pure", cfc(mode="pure")),
    ncps_case("cfc_no_gate", cfc(mode="no_gate")),
    ncps_case("cfc_irregular", cfc(), adapt=irregular, inputs=timed),
    ncps_case(
        "cfc_mixed",
        lambda sizes: attribute("ncps.torch.CfC")(sizes.I, sizes.H, mixed_memory=True),
        adapt=mixed,
        state=zeros(2),
    ),
    ncps_case(
        "cfc_dropout",
        cfc(backbone_layers=2, backbone_dropout=0.1),
        modes="dropout in the backbone",
        random=True,
    ),
    ncps_case(
        "cfc_wired",
        lambda sizes: attribute("ncps.torch.WiredCfCCell")(sizes.I, auto_ncp(sizes)),
        own=(32, 2, 20, 28),
        remark="splits one state into layers; weights times masks that are parameters",
    ),
    ncps_case("ltc", ltc(full), call="x,s->out,s", adapt=None, remark="6 solver steps in a step"),
    ncps_case("ltc_wired", ltc(auto_ncp), call="x,s->out,s", adapt=None, own=(32, 2, 20, 28)),
]

# snnTorch: neurons of tutorial 5 (784-1000-10, 25 steps, batches of 128)

CLAMPED = "hidden attributes keep the last states; beta.clamp(0, 1), reset detached, ATan"


def snn(name: str, cell: str, states: int, *args: Any, **more: Any) -> Case:
    """A neuron of snnTorch; arguments of its own follow, then the case's."""
    options = more.pop("options", {})
    return Case(
        f"snntorch_{name}",
        f"{SNNTORCH}, {cell}",
        more.pop("module", lambda sizes: attribute(f"snntorch.{cell}")(*args, **options)),
        more.pop("call", "x,*s->out,*s"),
        more.pop(
            "state", lambda m, B, sizes: tuple(torch.zeros(B, sizes.H) for _ in range(states))
        ),
        (25, 128, 1000, 1000),
        inputs=more.pop("inputs", currents),
        package="snntorch",
        tied=more.pop("tied", True),
        spiking=True,
        remark=more.pop("remark", CLAMPED),
        **more,
    )


SNNS = [
    snn("leaky", "Leaky", 1, 0.95, trained=False),
    snn("leaky_zero", "Leaky", 1, 0.95, options={"reset_mechanism": "zero"}, trained=False),
    snn(
        "leaky_learned",
        "Leaky",
        1,
        module=lambda sizes: attribute("snntorch.Leaky")(
            torch.rand(sizes.H), learn_beta=True, learn_threshold=True
        ),
    ),
    snn(
        "rleaky",
        "RLeaky",
        2,
        module=lambda sizes: attribute("snntorch.RLeaky")(0.95, linear_features=sizes.H),
        call="x,*s->*s",
    ),
    snn("synaptic", "Synaptic", 2, 0.9, 0.8, trained=False),
    snn(
        "alpha",
        "Alpha",
        3,
        0.9,
        0.8,
        inputs=strong,
        trained=False,
        remark=CLAMPED + "; -= on its new states",
    ),
    snn("lapicque", "Lapicque", 1, 0.8, inputs=strong, trained=False),
    snn(
        "slstm",
        "SLSTM",
        2,
        module=lambda sizes: attribute("snntorch.SLSTM")(sizes.I, sizes.H, threshold=0.1),
        remark="keeps given states only if their shape is the input's, so I = H; its own "
        "threshold, 1, is above all its potentials",
    ),
]

# norse: shapes of its MNIST task (100 neurons, 32 steps)


def full_state(value: Any, like: Tensor) -> Tensor:
    """An initial value of norse, given every sequence: some are one number for all."""
    return value.detach().expand_as(like).clone()


def norse_state(module: Any, B: int, sizes: Sizes) -> Tree:
    """The initial state of a norse cell, with all its parts [B, H]."""
    state = module.initial_state(torch.zeros(B, sizes.I))
    like = torch.zeros(B, sizes.H)
    return type(state)(*(full_state(part, like) for part in state))


def norse(name: str, build: Callable[[Any, Sizes], nn.Module], **more: Any) -> Case:
    """A cell of norse; ``build`` gets ``norse.torch``."""
    return Case(
        f"norse_{name}",
        NORSE,
        lambda sizes: build(import_module("norse.torch"), sizes),
        "x,s->out,s",
        norse_state,
        (32, 32, 784, 100),
        package="norse",
        **{"inputs": spikes, "spiking": True, **more},
    )


HOOKED = "a hook zeroes the diagonal of the recurrent weights' gradient; state: a namedtuple"
NORSES = [
    norse(
        "lif",
        lambda n, s: n.LIFCell(),
        inputs=strong,
        tied=True,
        trained=False,
        remark="its own initial v is one number, which broadcasts: the state's shape changes",
    ),
    norse("lif_recurrent", lambda n, s: n.LIFRecurrentCell(s.I, s.H), remark=HOOKED),
    norse("lsnn_recurrent", lambda n, s: n.LSNNRecurrentCell(s.I, s.H), remark=HOOKED),
    norse("li", lambda n, s: n.LICell(), inputs=strong, tied=True, trained=False, spiking=False),
    norse(
        "izhikevich",
        lambda n, s: n.IzhikevichCell(attribute("norse.torch.tonic_spiking")),
        inputs=strongest,
        tied=True,
        trained=False,
    ),
    norse(
        "izhikevich_recurrent",
        lambda n, s: n.IzhikevichRecurrentCell(s.I, s.H, attribute("norse.torch.tonic_spiking")),
        inputs=strongest,
        remark=HOOKED,
    ),
]

# SpikingJelly: its first tutorial (784-10, 100 steps, batches of 64)


def remembered(node: nn.Module) -> Step:
    """A node's step: its memory v is set and read, as users of its functional form do."""

    def step(v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        node.v = v  # pyright: ignore[reportAttributeAccessIssue] - kept in a dict of memories
        spike = node(x)
        return node.v, spike

    return step


def jelly(name: str, node: str, *args: Any, **more: Any) -> Case:
    """A node of SpikingJelly."""
    return Case(
        f"jelly_{name}",
        f"{JELLY}, {node}",
        lambda sizes: attribute(f"spikingjelly.activation_based.neuron.{node}")(*args),
        "s,x->s,y",
        zeros(),
        (100, 64, 10, 10),
        inputs=lambda T, B, sizes: 2 * currents(T, B, sizes),
        adapt=remembered,
        package="spikingjelly",
        tied=True,
        spiking=True,
        **more,
    )


SEQUENCE = (
    "a step is a sequence of one for its own loop: unsqueeze, then [0]; v: in a dict of memories"
)
JELLIES = [
    jelly("lif", "LIFNode", trained=False, remark=SEQUENCE),
    jelly("plif", "ParametricLIFNode", remark=SEQUENCE),
    jelly("if", "IFNode", trained=False, remark=SEQUENCE),
    jelly("simple_lif", "SimpleLIFNode", 2.0, True, trained=False),
    jelly("simple_if", "SimpleIFNode", trained=False),
]

# xlstm: sizes of its README


def slstm_cell(sizes: Sizes) -> nn.Module:
    """The vanilla sLSTM cell in float32 (it casts to the dtypes it is told)."""
    config = attribute("xlstm.blocks.slstm.cell.sLSTMCellConfig")(
        hidden_size=sizes.H,
        num_heads=sizes.heads,
        backend="vanilla",
        dtype="float32",
        input_shape="SBGNH",
        recurrent_weight_init="standard",
        enable_automatic_mixed_precision=False,
    )
    cell = attribute("xlstm.blocks.slstm.cell.sLSTMCell")(config)
    with torch.no_grad():
        cell.reset_parameters()
    return cell


def slstm_step(cell: Any) -> Step:
    """Its step on gates [B, 4H] and states [4, B, H].

    ``cell.step`` returns the state it was given (2.0.6), so this is its inside.
    """

    def step(states: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        states = cell._impl_step(cell.training, cell._permute_input(x[None]), states)[:, 0]
        return states, states[0]

    return step


def mlstm_cell(sizes: Sizes) -> nn.Module:
    """The mLSTM cell."""
    cell = "xlstm.blocks.mlstm.cell.mLSTMCell"
    return attribute(cell)(
        attribute(f"{cell}Config")(context_length=256, embedding_dim=sizes.H, num_heads=sizes.heads)
    )


def mlstm_step(cell: Any) -> Step:
    """Its step on queries, keys, values [B, 1, H] each, copied: it squeezes them in place.

    In its layer they are results of projections of one step, which nothing else reads.
    """

    def step(state: Tree, x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tree, Tensor]:
        q, k, v = x
        out, state = cell.step(q.clone(), k.clone(), v.clone(), state)
        return state, out

    return step


def mlstm_state(module: nn.Module, B: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """C [B, N, D, D], n [B, N, D, 1], m [B, N, 1, 1]."""
    N, D = sizes.heads, sizes.H // sizes.heads
    return torch.zeros(B, N, D, D), torch.zeros(B, N, D, 1), torch.zeros(B, N, 1, 1)


XLSTMS = [
    Case(
        "xlstm_slstm",
        f"{XLSTM}, vanilla sLSTM",
        slstm_cell,
        "s,x->s,y",
        lambda m, B, sizes: torch.zeros(4, B, sizes.H),
        (256, 4, 128, 128),
        inputs=lambda T, B, sizes: torch.randn(T, B, 4 * sizes.H),
        adapt=slstm_step,
        package="xlstm",
        perturb=False,
        refused="branches on the values of n",
        remark="if torch.all(n == 0) chooses the formula; the state is one tensor [4, B, H]; "
        "cell.step returns the old state",
    ),
    Case(
        "xlstm_mlstm",
        f"{XLSTM}, mLSTM",
        mlstm_cell,
        "s,x->s,y",
        mlstm_state,
        (256, 4, 128, 128),
        inputs=lambda T, B, sizes: tuple(
            stream(T, B, sizes._replace(I=sizes.H)).unsqueeze(2) for _ in range(3)
        ),
        adapt=mlstm_step,
        package="xlstm",
        remark="squeeze_ of views of its inputs; matrix state; asserts on shapes",
    ),
]

CASES = [*TORCHS, *NCPS_CASES, *SNNS, *NORSES, *JELLIES, *XLSTMS]
