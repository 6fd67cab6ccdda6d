"""Layers and models of `elman.layers` paired with their authors' implementations, on the CPU.

The packages are imported where a pair is made: flash-linear-attention (its Triton kernels run in
Triton's interpreter), transformers (operators of torch, as without a GPU), xlstm and rwkv.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman import layers

Named = Mapping[str, Tensor]
Call = Callable[[Tensor, Any], tuple[Tensor, Any]]
SYMBOLS = 50
SPREAD = 0.2  # standard deviation of what is added to a parameter's initial value


class Sizes(NamedTuple):
    """Sizes of a pair.

    Attributes:
        T, B: steps and samples of the input.
        size, heads: units and heads of a layer.
        rows: of a head of Gated DeltaNet, which has twice as many columns.
        chunk: steps of a chunk of the other implementation.
    """

    T: int = 31
    B: int = 2
    size: int = 32
    heads: int = 2
    rows: int = 12
    chunk: int = 16


SMALL = Sizes()
SMALL_MAMBA = SMALL._replace(size=64, chunk=8)


@dataclass(frozen=True)
class Pair:
    """A module of elman and another implementation.

    Attributes:
        ours: called as layers of elman are.
        weights: the other's parameters by its own names.
        call: runs the other, from x [T, B, ·] and its own state, None at the start, to
            out [T, B, ·] and its state.
        state: the other's state as the tensors of ours.
        x: an input of all steps.
        renamed: the other's parameters, or their gradients, by our names.
    """

    ours: nn.Module
    weights: Named
    call: Call
    state: Callable[[Any], Sequence[Tensor]]
    x: Tensor
    renamed: Callable[[Named], Named] = dict


@torch.no_grad()
def draw(weights: Named) -> None:
    """Move every parameter away from where it begins."""
    for value in weights.values():
        value += SPREAD * torch.randn_like(value)


class _Step(int):
    """A number of a loop, which kernels convert to another type."""

    def to(self, kind: Any) -> _Step:
        return self


def _steps(*bounds: int) -> Iterator[_Step]:
    return map(_Step, range(*bounds))


@cache
def interpreted_layers() -> Any:
    """The layers of flash-linear-attention, whose kernels Triton interprets: each in the first of
    its configurations, and with loops over what the kernels take for tensors."""
    os.environ["TRITON_INTERPRET"] = "1"  # read where a kernel is declared
    tuner = import_module("triton.runtime.autotuner").Autotuner
    run = tuner.run

    def run_first(self: Any, *values: Any, **named: Any) -> Any:
        self.configs = self.configs[:1]
        return run(self, *values, **named)

    tuner.run = run_first
    found = import_module("fla.layers")
    for name, module in [*sys.modules.items()]:
        if name.startswith("fla.ops"):
            vars(module)["range"] = _steps
    return found


def fla(name: str, engine: str, **sizes: Any) -> Pair:
    """A layer of flash-linear-attention."""
    layer = getattr(interpreted_layers(), name)(hidden_size=SMALL.size, layer_idx=0, **sizes).eval()
    make = import_module("fla.models.utils").Cache

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        before = make() if state is None else state
        out, _, after = layer(x.transpose(0, 1), past_key_values=before, use_cache=True)
        return out.transpose(0, 1), after

    def state(last: Any) -> list[Tensor]:
        S, pasts = last[0]["recurrent_state"], last[0]["conv_state"] or ()
        S = S if name == "DeltaNet" else S.mT  # the others keep V x K
        return [*(past[..., 1:].permute(2, 0, 1) for past in pasts), S[None]]

    ours = getattr(layers, name)(SMALL.size, engine=engine, **sizes)
    return Pair(ours, dict(layer.named_parameters()), call, state, torch.randn(*SMALL[:3]))


def in_torch(model: str) -> Any:
    """The module of a model of transformers, which is to find no package of kernels for GPUs."""
    kernels = ("fla", "mamba_ssm", "causal_conv1d")
    before = {name: sys.modules.pop(name) for name in kernels if name in sys.modules}
    sys.modules.update(dict.fromkeys(kernels, cast(Any, None)))  # which forbids the import
    module = import_module(f"transformers.models.{model}.modeling_{model}")
    for name in kernels:
        del sys.modules[name]
    sys.modules.update(before)
    return module


def with_cache(module: nn.Module, config: Any) -> Call:
    """The call of a layer or model of transformers, whose state is a cache."""
    make = import_module("transformers").DynamicCache

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        cached = make(config=config) if state is None else state
        out = module(x.transpose(0, 1), cache=cached)
        return (out if isinstance(out, Tensor) else out.logits).transpose(0, 1), cached

    return call


def cached_states(layer: Any) -> tuple[Tensor, Tensor]:
    """What such a cache has of a layer: three past inputs of the convolution [3, B, C], and S."""
    return layer.conv_states[0][..., -3:].permute(2, 0, 1), layer.recurrent_states[0][None]


def qwen_names(heads: int, K: int, V: int, named: Named) -> Named:
    """Parameters of Qwen3-Next's layer by the names of ours: one matrix has q, k, v and g of each
    head, another b and a, and one convolution is over all of q, k and v."""
    rows = named["in_proj_qkvz.weight"].unflatten(0, (heads, -1)).split([K, K, V, V], 1)
    gates = named["in_proj_ba.weight"].unflatten(0, (heads, -1)).split([1, 1], 1)
    cut = named["conv1d.weight"].split([heads * K, heads * K, heads * V])
    projections = zip("qkvgba", (*rows, *gates), strict=True)
    return {
        **{f"{name}_proj.weight": each.flatten(0, 1) for name, each in projections},
        **{f"{name}_conv1d.weight": each for name, each in zip("qkv", cut, strict=True)},
        "o_norm.weight": named["norm.weight"],
        "o_proj.weight": named["out_proj.weight"],
        "A_log": named["A_log"],
        "dt_bias": named["dt_bias"],
    }


def qwen(engine: str, sizes: Sizes = SMALL) -> Pair:
    """The Gated DeltaNet of Qwen3-Next."""
    module = in_torch("qwen3_next")
    size, heads, K, V = sizes.size, sizes.heads, sizes.rows, 2 * sizes.rows
    config = module.Qwen3NextConfig(
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        hidden_size=size,
        linear_key_head_dim=K,
        linear_value_head_dim=V,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    layer = module.Qwen3NextGatedDeltaNet(config, 0).eval()
    eps = config.rms_norm_eps
    ours = layers.GatedDeltaNet(size, num_heads=heads, head_dim=K, norm_eps=eps, engine=engine)

    def state(last: Any) -> list[Tensor]:
        past, S = cached_states(last.layers[0])
        return [*past.split([heads * K, heads * K, heads * V], -1), S]

    x, named = torch.randn(*sizes[:3]), dict(layer.named_parameters())
    return Pair(
        *(ours, named, with_cache(layer, config), state, x), partial(qwen_names, heads, K, V)
    )


class StackModel(nn.Module):
    """A language model of ``elman.layers.Stack``: embeddings, two blocks, a norm, a read-out.

    Args:
        cell: of the layers.
        size: of every block.
        engine: as of ``elman.Recurrent``.
    """

    def __init__(self, cell: str, size: int, engine: str) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(SYMBOLS, size)
        self.stack = layers.Stack(cell, size, size, num_layers=2, engine=engine)
        self.head = nn.Linear(size, SYMBOLS, bias=False)

    def forward(self, symbols: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits [T, B, ·] of symbols [T, B], and the state."""
        out, last = self.stack(self.embeddings(symbols), state)
        return self.head(out), last


def mamba2_names(named: Named) -> Named:
    """Parameters of transformers' Mamba-2 model by the names of :class:`StackModel`'s; those of a
    layer have the same ones."""
    new = {"backbone": "stack", "layers": "blocks", "mixer": "layer", "norm_f": "norm"}
    ends = {"backbone.embeddings.weight": "embeddings.weight", "lm_head.weight": "head.weight"}
    return {
        ends.get(name, ".".join(new.get(word, word) for word in name.split("."))): value
        for name, value in named.items()
    }


def mamba2(engine: str, sizes: Sizes = SMALL_MAMBA) -> Pair:
    """A whole model of Mamba-2, of a Stack: states of 64, heads of 64 channels."""
    size, module = sizes.size, in_torch("mamba2")
    config = module.Mamba2Config(
        hidden_size=size,
        state_size=64,
        head_dim=64,
        num_heads=2 * size // 64,
        n_groups=1,
        vocab_size=SYMBOLS,
        tie_word_embeddings=False,
        chunk_size=sizes.chunk,
        num_hidden_layers=2,
    )
    model = module.Mamba2ForCausalLM(config).eval()

    def state(last: Any) -> list[Tensor]:
        return [part for layer in last.layers for part in cached_states(layer)]

    ours, symbols = StackModel("mamba2", size, engine), torch.randint(SYMBOLS, sizes[:2])
    named = dict(model.named_parameters())
    return Pair(ours, named, with_cache(model, config), state, symbols, mamba2_names)


def xlstm(engine: str, sizes: Sizes = SMALL, dtype: torch.dtype = torch.float64) -> Pair:
    """The mLSTM layer of xLSTM's large models, with the kernels in torch."""
    module, names = import_module("xlstm.xlstm_large.model"), {"autocast_kernel_dtype": "float32"}
    names |= {"chunkwise_kernel": "chunkwise--native_autograd", "step_kernel": "native"}
    names |= {"sequence_kernel": "native_sequence__native", "mode": "inference"}
    names |= {"inference_state_dtype": str(dtype).removeprefix("torch.")}
    backend = module.mLSTMBackendConfig(**names, chunk_size=sizes.chunk)
    options = {"mlstm_backend": backend, "norm_reduction_force_float32": False}
    config = module.mLSTMLayerConfig(embedding_dim=sizes.size, num_heads=sizes.heads, **options)
    layer = module.mLSTMLayer(config).to(dtype).eval()

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        out, last = layer(x.transpose(0, 1), state)
        return out.transpose(0, 1), last

    def state(last: Any) -> list[Tensor]:
        C, n, m = last
        scale = C.shape[-2] ** -0.5  # the authors' code scales queries, ours keys
        return [scale * C[None], scale * n[None], m.squeeze(-1)[None]]

    ours = layers.MLSTM(sizes.size, num_heads=sizes.heads, engine=engine).to(dtype)
    x = torch.randn(*sizes[:3], dtype=dtype)
    return Pair(ours, dict(layer.named_parameters()), call, state, x)


class _ChannelMixing(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.rand(1, 1, size))
        self.key = nn.Linear(size, 4 * size, bias=False)
        self.value = nn.Linear(4 * size, size, bias=False)

    def forward(self, x: Tensor, last: Tensor) -> Tensor:
        before = torch.cat((last, x[:-1]))
        return self.value(F.relu(self.key(x + (before - x) * self.x_k)).square())


class Rwkv7Model(nn.Module):
    """A language model around ``elman.layers.RWKV7``, whose parameters have the names of the
    authors' checkpoints.

    Args:
        size: of every block, a multiple of 64.
        blocks: how many.
        engine: as of ``elman.Recurrent``.
    """

    def __init__(self, size: int, blocks: int, engine: str) -> None:
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS, size)
        self.blocks = nn.ModuleList()
        for k in range(blocks):
            parts: dict[str, nn.Module] = {"ln0": nn.LayerNorm(size)} if k == 0 else {}
            parts |= {"ln1": nn.LayerNorm(size), "ln2": nn.LayerNorm(size)}
            parts |= {"att": layers.RWKV7(size, layer=k, layers=blocks, engine=engine)}
            self.blocks.append(nn.ModuleDict({**parts, "ffn": _ChannelMixing(size)}))
        self.ln_out = nn.LayerNorm(size)
        self.head = nn.Linear(size, SYMBOLS, bias=False)

    def forward(self, symbols: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits [T, B, ·] of symbols [T, B], and the state: of each block those of the time mixing
        and the last input of the channel mixing."""
        x, values, after = self.emb(symbols), None, list[Tensor]()
        for k, module in enumerate(self.blocks):
            block = cast(nn.ModuleDict, module)
            x = block["ln0"](x) if k == 0 else x
            begin = None if state is None else state[3 * k : 3 * k + 2]
            last = torch.zeros_like(x[:1]) if state is None else state[3 * k + 2]
            change, end, values = block["att"](block["ln1"](x), begin, values)
            x = x + change
            inner = block["ln2"](x)
            x = x + block["ffn"](inner, last)
            after += [*end, inner[-1:]]
        return self.head(self.ln_out(x)), tuple(after)


def rwkv(engine: str) -> Pair:
    """A whole model of RWKV-7, written and read as a checkpoint of the authors.

    Their functions are compiled for inference. Here they run as Python, and where gradients are
    wanted step by step, as those of whole sequences write into tensors.
    """
    os.environ |= {"RWKV_V7_ON": "1", "RWKV_CUDA_ON": "0"}
    ours = Rwkv7Model(128, 2, engine)
    draw(dict(ours.named_parameters()))
    shapes = {name: value.shape for name, value in ours.named_parameters()}
    plain = dict.fromkeys(("script", "script_method"), lambda function: function)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.multiple(torch.jit, ScriptModule=nn.Module, **plain),
    ):
        torch.save(ours.state_dict(), f"{folder}/model.pth")
        model = import_module("rwkv.model").RWKV(str(Path(folder) / "model"), "cpu fp32")
    weights = {name: value for name, value in model.z.items() if name in shapes}
    weights["emb.weight"] = ours.emb.weight.detach().clone()  # theirs are normalised when read

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        norm = [weights[f"blocks.0.ln0.{name}"] for name in ("weight", "bias")]
        rows = F.layer_norm(weights["emb.weight"], norm[0].shape, *norm)
        model.z |= {**weights, "emb.weight": rows}
        outs, after = [], []
        for b, symbols in enumerate(x.T.tolist()):
            last = model.generate_zero_state() if state is None else state[b]
            if torch.is_grad_enabled():
                steps = []
                with mock.patch("torch.no_grad", contextlib.nullcontext):
                    for symbol in symbols:
                        out, last = model.forward(symbol, last)
                        steps.append(out)
                outs.append(torch.stack(steps))
            else:
                out, last = model.forward(symbols, last, full_output=True)
                outs.append(out.view(len(symbols), -1))
            after.append(last)
        return torch.stack(outs, 1), after

    def state(last: Any) -> list[Tensor]:
        parts = [torch.stack(each)[None] for each in zip(*last, strict=True)]
        return [part.mT if part.dim() == 5 else part for part in parts]  # the authors keep V x K

    def renamed(named: Named) -> Named:
        turned = ("key", "value", "receptance", "output", "head")
        return {
            name: (value.T if name.split(".")[-2] in turned else value).reshape(shapes[name])
            for name, value in named.items()
        }

    return Pair(ours, weights, call, state, torch.randint(SYMBOLS, SMALL[:2]), renamed)
