"""Warnings of packed documents that a model of transformers would mix without an error."""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from typing import Any

from torch import Tensor

from elman.errors import warn_once

_FINAL = ("output_final_state", "return_final_states")
_LAST = local()  # .split: whether the layer's last convolution was told where documents begin


def note_documents(by_ends: bool, options: Mapping[str, Any]) -> None:
    """Warn where a model mixes the documents of a row without an error.

    Args:
        by_ends: whether the function is a rule that is told their ends, behind a convolution that
            is told their numbers.
        options: of a call.
    """
    split = _is_cut(options.get("cu_seqlens")) if by_ends else _differs(options.get("seq_idx"))
    if split and any(options.get(name) for name in _FINAL):
        warn_once(
            "elman: packed documents with a cache: the model's attention then mixes them; pass "
            "use_cache=False and no attention_mask"
        )
    if not by_ends:
        _LAST.split = split
    else:
        before = vars(_LAST).pop("split", split)  # the next layer may have no convolution
        if before != split:
            missing = "cu_seq_lens_q" if before else "seq_idx"
            warn_once(
                f"elman: packed documents are mixed: pass {missing}=, too, as transformers' "
                "DataCollatorWithFlattening(return_seq_idx=True, return_flash_attn_kwargs=True)"
            )


def _is_cut(ends: Any) -> bool:
    return isinstance(ends, Tensor) and ends.numel() > 2


def _differs(seq_idx: Any) -> bool:
    has_steps = isinstance(seq_idx, Tensor) and seq_idx.numel() > 0
    return has_steps and bool((seq_idx[..., -1] != seq_idx[..., 0]).any())
