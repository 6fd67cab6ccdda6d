"""Functions in the place of those that models of transformers run where no kernel is for them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.errors import warn
from elman.functional import experts, latents, linear_layers, tokens
from elman.functional.attention import TABLE, Table
from elman.functional.convolutions import causal_conv1d, causal_conv1d_update
from elman.functional.delta_rules import gated_delta_rule, kda, simple_gla
from elman.functional.documents import note_documents
from elman.functional.recurrences import mlstm, rglru_scan, rwkv4
from elman.functional.state_spaces import mamba2_scan, selective_scan, selective_state_update
from elman.nn.layout.dense import check_model


def _stand_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that drops what a model passes along for others, as ``use_cache``; where documents
    begin may have transformers' name for it."""
    names = inspect.signature(function).parameters
    by_ends = "cu_seqlens" in names and "seq_idx" not in names
    by_rows = by_ends or "seq_idx" in names

    @wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        if by_ends and options.get("cu_seqlens") is None:
            options["cu_seqlens"] = options.get("cu_seq_lens_q")
        if by_rows and not torch.compiler.is_compiling():
            note_documents(by_ends, options)
        return function(*given, **{key: options[key] for key in options if key in names})

    return call


def _rwkv_linear_attention(
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Any = None,
    return_state: bool = False,
) -> tuple[Tensor, list[Tensor] | None]:
    out, last = rwkv4(-torch.exp(time_decay), time_first, key, value, state)
    return out, [*last] if return_state or state is not None else None


def _rnn_scan(
    layer: nn.Module,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    out, last = rglru_scan(hidden_states, recurrent_gate * ~reset, recurrent_states)
    return out, last.to(acc_dtype)


def _xlstm_backend(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool | None = None,
    mode: str | None = None,
) -> Any:
    config = layer.config
    returns = config.return_last_states if return_last_states is None else return_last_states
    returns = returns or "inference" in (mode or config.mode)
    states = c_initial, n_initial, m_initial
    return mlstm(query, key, value, igate, fgate, *states, returns, config.eps)


def _lightning_attention(
    layer: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Tensor | None = None,
    cache: Any = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """MiniMax's: queries, keys and values by a projection and an activation, a norm and a gate."""
    cache = options.get("past_key_values") if cache is None else cache
    lead = hidden_states.shape[:2]
    joined = layer.act_fn(layer.qkv_proj(hidden_states))
    if attention_mask is not None:
        joined = (joined * attention_mask[:, :, None]).to(joined.dtype)
    q, k, v = joined.reshape(*lead, layer.num_attention_heads, -1).split(layer.head_dim, -1)
    state = None if cache is None else cache.get_linear_cache(layer.layer_idx)
    g = -layer.slope_rate.flatten().to(q.dtype).expand(*q.shape[:3])
    out, state = simple_gla(q, k, v, g, scale=1.0, initial_state=state, output_final_state=True)
    out = layer.norm(out.reshape(*lead, -1))
    out = layer.out_proj(F.sigmoid(layer.output_gate(hidden_states)) * out)
    if cache is not None:
        cache.set_linear_cache(layer.layer_idx, state)
    return out, state


_RULE, _KDA = _stand_in(gated_delta_rule), _stand_in(kda)
FUNCTIONS: dict[str, Callable[..., Any]] = {  # by their names in the modules of models
    "torch_chunk_gated_delta_rule": _RULE,
    "torch_recurrent_gated_delta_rule": _RULE,
    "chunk_kimi_delta_attention": _KDA,
    "recurrent_kimi_delta_attention": _KDA,
    "mamba2_chunk_scan": _stand_in(mamba2_scan),
    "mamba2_selective_state_update": _stand_in(selective_state_update),
    "mamba_selective_scan": _stand_in(selective_scan),
    "mamba_selective_state_update": _stand_in(selective_state_update),
    "causal_conv1d_fn": _stand_in(causal_conv1d),
    "causal_conv1d_update": _stand_in(causal_conv1d_update),
    "rwkv_linear_attention": _rwkv_linear_attention,
}
METHODS: dict[str, tuple[str, Callable[..., Any]]] = {  # by their class
    "RecurrentGemmaRglru": ("_rnn_scan", _rnn_scan),
    "xLSTMBackend": ("forward", _xlstm_backend),
    "MiniMaxLightningAttention": ("forward", _lightning_attention),
}


class SingleStep(NamedTuple):
    """When a function leaves a single step without gradients to transformers' own, because a call
    of ours, most of which is Python, takes longer.

    Attributes:
        small: it does if the largest tensor has fewer values than this.
        steps: returns how many steps a call has; None: always one.
    """

    small: int
    steps: Callable[..., int] | None = None


SINGLE_STEPS = {  # by name
    "mamba2_selective_state_update": SingleStep(1 << 16),
    "mamba_selective_state_update": SingleStep(1 << 17),
    "rwkv_linear_attention": SingleStep(1 << 17, lambda w, u, key, *given, **options: key.shape[1]),
    "MiniMaxLightningAttention.forward": SingleStep(
        1 << 17, lambda layer, hidden_states, *_, **__: hidden_states.shape[1]
    ),
}
_RUNS = ", on elman: "
_ATTENTION = ", left to torch: it has no recurrence"
_KEPT = "_elman_kept"  # what was in the place of ours: an attribute of modules, classes and layers
_PACKAGES = ("transformers", "transformers_modules")  # the latter: models that came with code
_ALONE = {  # recurrent layers that run no function of those above, and why
    "ZayaCCAProjection": "two convolutions of torch's, without a loop",
}
# a method of layers that call functions on a GPU alone, and have torch's operations in another one
_GPU_ALONE = "cuda_kernels_forward"
_INLINE = (
    "its recurrence is inside the layer, not a function that can be replaced; transformers 5.15 "
    "has one"
)


class _Place(NamedTuple):
    """Where a function is found by its name."""

    owner: Any  # a Python module, a class, or a layer
    name: str
    function: Any  # of ours
    what: str  # it stands in for


def install(model: nn.Module, weights: str | None = None) -> dict[str, str]:
    """Make a model of Hugging Face's transformers run the functions of this page.

    On a CPU, transformers runs the recurrences of its models by functions of torch's operations,
    which loop over steps or chunks. They are replaced in the Python modules of the model's
    classes, by name, hence for all models of these classes in the process. Parameters, caches and
    results stay.

    Args:
        model: of transformers; others are not changed.
        weights: how linear layers and experts read their weights in calls of up to 16 rows without
            gradients, which take as long as that takes, as when text is generated: "int8", a copy
            in eight bits with a factor for each output; "bf16", a copy in bfloat16; "float32", as
            they are, once for all rows (a linear layer's single row on one thread is torch's, which
            is faster). Inputs stay in float32, or have 16 bits where they meet eight; sums are of
            float32. All other calls, those under autocast and inside torch.compile too, are
            torch's. None: linear layers are torch's, those of an earlier call, too, and experts
            read their weights as they are.

    Returns:
        :func:`report`: a line for each layer, by its name. If nothing is replaced in the whole
        model, a warning says so.

    Raises:
        InputError: there are no such ``weights``, or the model is no module.
        EngineError: with ``weights``, and there is no C compiler.

    Example:
        >>> elman.functional.install(torch.nn.Linear(2, 2))
        {}
    """
    check_model("elman.functional.install", model)
    if weights is None:
        linear_layers.restore(model)
    else:
        linear_layers.convert(model, weights)
    experts.convert(model, weights)
    texts = replace(model)
    if not runs_on_elman(texts):
        first = {text: name for name, text in reversed(texts.items())}
        why = "; ".join(f"{name}: {text}" for text, name in reversed(first.items()))
        kind = type(model).__name__
        warn(
            f"elman.functional.install replaced nothing in {kind}: "
            + (why or "none of its layers has a recurrence that elman.functional knows")
        )
    return texts | (linear_layers.report(model) if weights else {}) | experts.report(model)


def report(model: nn.Module) -> dict[str, str]:
    """Say what of a model of transformers runs on elman.

    Returns:
        A line for each recurrent layer, by its name: the functions of transformers in whose place
        those of elman are, or why there are none; for attention in a model that has recurrent
        layers; for linear layers whose weights are read in few bits; and for experts.

    Raises:
        InputError: the model is no module.

    Example:
        >>> elman.functional.report(torch.nn.Linear(2, 2))
        {}
    """
    check_model("elman.functional.report", model)
    linear = linear_layers.report(model) if linear_layers.has_converted(model) else {}
    return _lines(model) | linear | experts.report(model)


def _lines(model: nn.Module) -> dict[str, str]:
    """:func:`report` without linear layers."""
    texts = {name: _line(layer) for name, layer in model.named_modules()}
    if not runs_on_elman(texts):
        texts = {name: text for name, text in texts.items() if _ATTENTION not in text}
    return {name: text for name, text in texts.items() if text}


def _line(layer: nn.Module) -> str:
    kind, places = type(layer).__name__, [*_places(layer)]
    names = dict.fromkeys(p.what for p in places if p.name in vars(p.owner).get(_KEPT, {}))
    if names:
        return f"{kind}{_RUNS}{', '.join(names)}"
    if places:
        return f"{kind}, not replaced: elman.functional.install(model)"
    if kind in _ALONE or hasattr(layer, _GPU_ALONE):
        return f"{kind}, left alone: {_ALONE.get(kind, _INLINE)}"
    is_theirs = type(layer).__module__.partition(".")[0] in _PACKAGES
    return f"{kind}{_ATTENTION}" if is_theirs and kind.endswith("Attention") else ""


def runs_on_elman(texts: dict[str, str]) -> bool:
    """Whether a report says that something does."""
    return any(_RUNS in text for text in texts.values())


def replace(model: nn.Module) -> dict[str, str]:
    """:func:`install` without a warning and linear layers."""
    for name, layer in model.named_modules():
        places = [*_places(layer)]
        for place in places:
            _put(place)
        if places:
            _record_tokens(model, name, layer)
    return _lines(model)


def _record_tokens(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Record tokens of a recurrent layer, and of the layers of the model, one of which it is in."""
    around = model.get_submodule(name.rpartition(".")[0]) if name else layer
    siblings = [
        part for part in model.modules() if isinstance(part, nn.ModuleList) and around in [*part]
    ]
    kinds = {type(each) for each in (layer, around, *chain.from_iterable(siblings))}
    for kind in kinds:
        if kind.__module__.partition(".")[0] in _PACKAGES and kind.__name__ not in METHODS:
            tokens.record(kind)


def uninstall(model: nn.Module) -> None:
    """Undo :func:`install`: put the functions of transformers back, for all models of these
    classes in the process, and torch's linear layers of this one.

    Args:
        model: of the same classes.

    Example:
        >>> elman.functional.uninstall(torch.nn.Linear(2, 2))
    """
    linear_layers.restore(model)
    experts.restore(model)
    for layer in model.modules():
        tokens.restore(type(layer))
        for owner in (layer, type(layer), sys.modules.get(type(layer).__module__)):
            _put_back(owner)


def uninstall_modules() -> None:
    """Put the functions of all modules of transformers back, whatever model had them replaced."""
    tokens.restore_all()
    for owner in _changed():
        _put_back(owner)


def replaced() -> list[str]:
    """The names of the functions in whose place ours are."""
    return sorted({name for owner in _changed() for name in vars(owner)[_KEPT]})


def _put(place: _Place) -> None:
    owner, name, function, what = place
    if name in vars(owner).get(_KEPT, {}):
        return
    before = vars(owner)[name]
    if _KEPT not in vars(owner):
        setattr(owner, _KEPT, {})
    vars(owner)[_KEPT][name] = before
    key = f"{owner.__name__}.{name}" if isinstance(owner, type) else what
    if key in SINGLE_STEPS and isinstance(before, FunctionType):
        theirs = before if isinstance(owner, type) else inspect.unwrap(before)
        function = _with_small_steps(function, theirs, SINGLE_STEPS[key])
    setattr(owner, name, function)


def _with_small_steps(
    ours: Callable[..., Any], theirs: Callable[..., Any], single: SingleStep
) -> Callable[..., Any]:
    """A function that leaves single steps of small states, without gradients, to torch's
    operations."""

    @wraps(ours)
    def call(*given: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return ours(*given, **options)
        tensors = [v for v in (*given, *options.values()) if isinstance(v, Tensor)]
        stays = max([v.numel() for v in tensors], default=0) < single.small
        stays &= single.steps is None or single.steps(*given, **options) == 1
        return (theirs if stays else ours)(*given, **options)

    return call


def _put_back(owner: Any) -> None:
    if owner is not None and _KEPT in vars(owner):
        for name, function in vars(owner)[_KEPT].items():
            setattr(owner, name, function)
        delattr(owner, _KEPT)


def _changed() -> Iterator[Any]:
    """Python modules of transformers, and classes in them, that have functions of ours."""
    modules = [m for n, m in sys.modules.items() if n.partition(".")[0] in _PACKAGES and m]
    for module in modules:
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        yield from (owner for owner in (module, *classes) if _KEPT in vars(owner))


def _places(layer: nn.Module) -> Iterator[_Place]:
    """The functions and methods of a layer that ours can replace."""
    kind = type(layer)
    if kind.__module__.partition(".")[0] not in _PACKAGES or hasattr(layer, _GPU_ALONE):
        return
    if kind.__name__ in METHODS:
        name, method = METHODS[kind.__name__]
        if name in vars(kind):
            yield _Place(kind, name, method, name)
    source = sys.modules[kind.__module__]
    for name in _names_of(kind):
        if name in FUNCTIONS and name in vars(source):
            yield _Place(source, name, FUNCTIONS[name], name)
    if latents.keeps_latents(kind) and TABLE in vars(source):
        table = Table(vars(source)[TABLE], lambda attend, _: latents.attend_to_latents(attend))
        expand = latents.expand_later(vars(kind)[latents.EXPAND])
        yield _Place(kind, latents.EXPAND, expand, "latent attention")
        yield _Place(source, TABLE, table, "latent attention")
    for name, value in [*vars(layer).items()]:  # of older versions
        what = getattr(value, "__name__", "")
        if what in FUNCTIONS:
            yield _Place(layer, name, FUNCTIONS[what], what)


def _names_of(kind: type) -> list[str]:
    """The global names in the code of a class."""
    functions = [inspect.unwrap(v) for v in vars(kind).values() if isinstance(v, FunctionType)]
    return [*dict.fromkeys(name for f in functions for name in f.__code__.co_names)]
