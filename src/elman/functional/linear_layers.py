"""Linear layers whose calls of few rows, as those of generated text, take as long as their weights
take to be read: in eight bits, in bfloat16, or as they are."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.checks import shown
from elman.engines.c.calls.noted import NOTED
from elman.engines.c.kernels.few_rows import MOST_ROWS, check_available, linear
from elman.errors import InputError
from elman.functional.module_contents import version_of

TYPES = {"int8": torch.int8, "bf16": torch.bfloat16, "float32": torch.float32}
WEIGHTS = (torch.float32, torch.bfloat16, torch.float16)  # of layers that read copies
_LARGEST = 127


class _Copy(NamedTuple):
    """A layer's weights as a kernel reads them, and of what they were made."""

    weight: Tensor
    scale: Tensor | None
    parameter: ReferenceType[Tensor]  # an address alone may be that of another tensor later
    state: tuple[int, int]  # address and version
    sample: (
        Tensor  # some of the weights: what is written by ``.data``, as peft does, has no version
    )


class Copies(nn.Module):
    """A layer with copies of its weights in few bits, each made again when the weights have
    changed."""

    copy_dtype: torch.dtype

    def copy_of(self, name: str, transposed: bool = False) -> _Copy:
        """The copy of a weight by its name, with inputs as its last axis."""
        copies: dict[str, _Copy] = vars(self).setdefault("_copies", {})
        weight: Tensor = getattr(self, name)
        copy, state = copies.get(name), (weight.data_ptr(), version_of(weight))
        is_current = (
            copy is not None
            and copy.state == state
            and copy.parameter() is weight
            # a recording of a token cannot choose by numbers
            and (NOTED.get() is not None or torch.equal(copy.sample, _sample(weight)))
        )
        if copy is None or not is_current:
            values = weight.mT if transposed else weight
            read, sample = copy_of(values, self.copy_dtype), _sample(weight).clone()
            copies[name] = copy = _Copy(*read, ref(weight), state, sample)
        return copy

    def check_copies(self) -> None:
        """Let go of copies of weights that were written to. Recordings of tokens, which read copies
        where they lie, see that."""
        copies: dict[str, _Copy] = vars(self).get("_copies", {})
        for name, copy in [*copies.items()]:
            if not torch.equal(copy.sample, _sample(getattr(self, name))):
                del copies[name]

    def __getstate__(self) -> dict[str, Any]:
        """Without copies, which a copied or loaded layer makes of its own weights."""
        return {name: value for name, value in vars(self).items() if name != "_copies"}


class FewRowsLinear(Copies, nn.Linear):
    """A linear layer whose class was torch's. Calls of few rows without gradients read the weights,
    or a copy in few bits, once for all rows; all others are torch's own, with the weights as they
    are."""

    def forward(self, input: Tensor) -> Tensor:
        if not _is_of_few_rows(self, input):
            if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self.check_copies()  # of a prompt
            return F.linear(input, self.weight, self.bias)
        copy, bias = self.copy_of("weight"), None if self.bias is None else self.bias.float()
        rows = input.reshape(-1, input.shape[-1]).float().contiguous()
        out = linear(rows, copy.weight, copy.scale, bias)
        return out.view(*input.shape[:-1], -1).to(input.dtype)


def _sample(weight: Tensor) -> Tensor:
    """Some of the weights of each matrix."""
    *_, rows, columns = weight.shape
    return weight.detach()[..., :: max(1, rows // 4), :: max(1, columns // 4)]


def rounds_inputs(model: nn.Module) -> bool:
    """Return whether a layer of a model may round its inputs to 16 bits."""
    layers = [layer for layer in model.modules() if isinstance(layer, Copies)]
    return any(layer.copy_dtype is torch.int8 for layer in layers)


def _is_of_few_rows(layer: FewRowsLinear, x: Tensor) -> bool:
    """Whether a call is of few rows, without gradients, and seen by nobody else."""
    single = x.numel() == layer.in_features
    if single and layer.copy_dtype is torch.float32 and torch.get_num_threads() == 1:
        return False  # torch's is faster
    return (
        not torch.is_grad_enabled()
        and 0 < x.numel() <= MOST_ROWS * layer.in_features
        and x.shape[-1:] == (layer.in_features,)
        and x.dtype is layer.weight.dtype
        and x.dtype in WEIGHTS
        and x.device.type == layer.weight.device.type == "cpu"
        and type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def copy_of(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Weights [.., outputs, inputs] in few bits, and for integers the factor of each output: its
    largest weight is 127 of them."""
    with torch.no_grad():
        values = weight.detach().float()
        if dtype is not torch.int8:
            return values.to(dtype).contiguous(), None
        scale = (values.abs().amax(-1) / _LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
        return (values / scale[..., None]).round().to(torch.int8).contiguous(), scale


def convert(model: nn.Module, weights: Any) -> None:
    """Let the linear layers of a model read their weights in a type of ``TYPES``.

    Raises:
        InputError: there is no such type.
        EngineError: there is no C compiler.
    """
    if not isinstance(weights, str) or weights not in TYPES:
        raise InputError(f'weights must be "int8", "bf16" or "float32", got {shown(weights)}')
    check_available()
    for layer in model.modules():
        if type(layer) in (nn.Linear, FewRowsLinear) and layer.weight.dtype in WEIGHTS:
            layer.__class__ = FewRowsLinear
            if vars(layer).get("copy_dtype") is not TYPES[weights]:
                vars(layer).pop("_copies", None)
            vars(layer)["copy_dtype"] = TYPES[weights]


def report(model: nn.Module) -> dict[str, str]:
    """A line for each linear layer, by its name."""
    layers = {n: layer for n, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    return {name: _line(layer) for name, layer in layers.items()}


def has_converted(model: nn.Module) -> bool:
    """Whether a linear layer of a model reads its weights in a type of ``TYPES``."""
    return any(type(layer) is FewRowsLinear for layer in model.modules())


def _line(layer: nn.Linear) -> str:
    if type(layer) is FewRowsLinear:
        weights = next(name for name, dtype in TYPES.items() if dtype is layer.copy_dtype)
        return f"Linear, weights in {weights} for up to {MOST_ROWS} rows"
    if type(layer) is nn.Linear:
        return f"Linear, left alone: weights of {layer.weight.dtype}"
    return f"{type(layer).__name__}, left alone: a class derived from Linear"


def restore(model: nn.Module) -> None:
    """Undo :func:`convert`."""
    layers: list[Any] = [layer for layer in model.modules() if type(layer) is FewRowsLinear]
    for layer in layers:
        layer.__class__ = nn.Linear
        for name in ("_copies", "copy_dtype"):
            vars(layer).pop(name, None)
