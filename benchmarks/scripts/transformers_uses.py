"""What people do with models of transformers, before and after `elman.functional.install`.

    pip install transformers peft accelerate
    python -m benchmarks.scripts.transformers_uses [--only NAME] [--uses text,beams] [--out FILE]

Each recurrent type with random weights, each use by transformers alone and on elman. A row has, by
use, the relative error of what comes out (0 for equal tokens), or what transformers refuses itself.
The exit status is 1 if a use fails on elman alone, or its error is too large.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.scripts.small_models import TYPES, VOCABULARY, make
from benchmarks.scripts.transformers_models import after
from elman.functional import install, uninstall

CLOSE = {torch.float32: 1e-4, torch.float64: 1e-5, torch.bfloat16: 0.1}  # models cast to float32
USES: dict[str, Callable[[Any, Tensor], Tensor]] = {}


def use(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Register a use: numbers or tokens that a model makes of tokens [B, T]."""
    USES[function.__name__] = function
    return function


def gradients(model: Any, **given: Any) -> Tensor:
    """Logits and all gradients of a training step, as one vector."""
    model.zero_grad()
    output = model(**given)
    output.loss.backward()
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat([output.logits.detach().flatten(), *found])


@torch.no_grad()
def generated(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    """Tokens behind a prompt, as they were chosen."""
    result: Tensor = model.generate(
        tokens, max_new_tokens=8, do_sample=False, eos_token_id=None, **options
    )
    return result


@use
def training(model: Any, tokens: Tensor) -> Tensor:
    return gradients(model.train(), input_ids=tokens, labels=tokens, use_cache=False)


@use
def checkpointing(model: Any, tokens: Tensor) -> Tensor:
    model.train().gradient_checkpointing_enable()
    return gradients(model, input_ids=tokens, labels=tokens, use_cache=False)


@use
def float64(model: Any, tokens: Tensor) -> Tensor:
    return gradients(model.double(), input_ids=tokens, labels=tokens, use_cache=False)


@use
def bfloat16(model: Any, tokens: Tensor) -> Tensor:
    logits: Tensor = model.bfloat16()(input_ids=tokens).logits.detach()
    return logits


@use
def autocast(model: Any, tokens: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits: Tensor = model(input_ids=tokens).logits.detach()
    return logits.bfloat16()


@use
def fullgraph(model: Any, tokens: Tensor) -> Tensor:
    torch.compiler.reset()
    model(input_ids=tokens)  # the compiler checks torch's threads, which begin with the first call
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    return gradients(compiled, input_ids=tokens, labels=tokens, use_cache=False)


@use
def text(model: Any, tokens: Tensor) -> Tensor:
    return generated(model, tokens)


@use
def padding(model: Any, tokens: Tensor) -> Tensor:
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    return generated(model, tokens * mask, attention_mask=mask)


@use
def beams(model: Any, tokens: Tensor) -> Tensor:
    return generated(model, tokens, num_beams=3)


@use
def static_cache(model: Any, tokens: Tensor) -> Tensor:
    return generated(model, tokens, cache_implementation="static")


@use
def lookup(model: Any, tokens: Tensor) -> Tensor:
    """Speculative decoding, which takes steps back."""
    return generated(model, tokens[:1].repeat(1, 2), prompt_lookup_num_tokens=3)


@use
def parts(model: Any, tokens: Tensor) -> Tensor:
    """A prompt in two parts."""
    with torch.no_grad():
        output = model(input_ids=tokens[:, :5], use_cache=True)
        logits: Tensor = model(input_ids=tokens[:, 5:], **after(output, 5)).logits
    return logits


@use
def packed(model: Any, tokens: Tensor) -> Tensor:
    """Documents behind one another, by all names for where they begin; they are those apart."""
    cut, row = tokens.shape[1] // 2, tokens[:1]
    documents = row.split([cut, row.shape[1] - cut], 1)
    ends = torch.tensor([0, cut, row.shape[1]], dtype=torch.int32)
    positions = torch.cat([torch.arange(document.shape[1]) for document in documents])[None]
    found = gradients(
        model, input_ids=row, labels=row, position_ids=positions, use_cache=False,
        seq_idx=(torch.arange(row.shape[1])[None] >= cut).int(),
        cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=cut, max_length_k=cut,
    )  # fmt: skip
    with torch.no_grad():
        apart = [model(input_ids=document, use_cache=False).logits for document in documents]
    logits = torch.cat(apart, 1).flatten()
    if not torch.allclose(found[: len(logits)], logits, atol=1e-4):
        raise ValueError("documents are mixed")
    return found


@use
def saved(model: Any, tokens: Tensor) -> Tensor:
    """Saved, loaded, copied."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = copy.deepcopy(type(model).from_pretrained(folder))
    return generated(again.eval(), tokens)


@use
def trainer(model: Any, tokens: Tensor) -> Tensor:
    transformers: Any = import_module("transformers")
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            folder, max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
        )
        transformers.Trainer(model, options, train_dataset=rows).train()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@use
def adapters(model: Any, tokens: Tensor) -> Tensor:
    """LoRA of peft on all linear layers."""
    peft: Any = import_module("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    return gradients(
        peft.get_peft_model(model, config), input_ids=tokens, labels=tokens, use_cache=False
    )


def ran(name: str, run: Callable[[Any, Tensor], Tensor], change: Callable[[nn.Module], Any]) -> Any:
    """What a use gives, or the error that it ends in."""
    model = make(name, 64)
    change(model)
    torch.manual_seed(0)
    tokens = torch.randint(3, VOCABULARY, (2, 12))
    try:
        return run(model, tokens).detach().double()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:200]
    finally:
        uninstall(model)


def compare(name: str, run: Callable[[Any, Tensor], Tensor], kind: torch.dtype) -> tuple[Any, bool]:
    """The error of a use on elman, or what is refused; whether it is as it should be."""
    want, got = (ran(name, run, change) for change in (uninstall, install))
    if isinstance(got, str):
        return got, isinstance(want, str)
    if isinstance(want, str):
        return f"on elman alone: {want}", True
    if got.shape != want.shape:
        return "others", False
    error = float((got - want).norm() / want.norm().clamp(1e-30))
    return error, error <= CLOSE[kind]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare all uses of all types, and print a line of each type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose type begins so")
    parser.add_argument("--uses", default=",".join(USES), help="names, with commas")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        print("transformers is not installed: pip install transformers")
        return
    sys.modules.setdefault("fla", None)  # type: ignore[arg-type]  # what runs without kernels
    wrong = list[str]()
    kinds = {"float64": torch.float64, "bfloat16": torch.bfloat16, "autocast": torch.bfloat16}
    for name in [name for name in TYPES if name.startswith(options.only)]:
        found = dict[str, Any]()
        for key in options.uses.split(","):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[key], right = compare(name, USES[key], kinds.get(key, torch.float32))
            if not right:
                wrong.append(f"{name}: {key}")
        row = {"case": name, "version": version, "uses": found, **code()}
        if options.out:
            append_row(options.out, row | {"machine": facts()})
        print(json.dumps({"case": name, "uses": found}), flush=True)
    if wrong:
        sys.exit(f"different: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
