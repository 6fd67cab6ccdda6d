"""What a user runs on a GPU: layers, packed rows, steps in torch's operations, whole programs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import elman.nn
from benchmarks.on_gpu.cases import Case
from benchmarks.on_gpu.timers import Clock
from benchmarks.steps.agreement import Runner, elmans, error, leaves, loops, values, weighted
from benchmarks.steps.catalogue import CASES, Sizes, build

ROUNDED = 2e-2  # differences of products that are rounded to tf32, a few steps of them
MODULES = {"module": {"num_layers": 2, "bidirectional": True}, "stack": {"num_layers": 4}}


def module_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A stack as a user has it, of both directions or of four layers: engine auto, beside torch's
    module; and what was chosen."""
    name, dtype = case.cell.upper(), getattr(torch, case.dtype)
    options: dict[str, Any] = MODULES[case.kind]
    width = case.H * (2 if "bidirectional" in options else 1)
    reference = getattr(torch.nn, name)(case.H, case.H, **options).to(device, dtype)
    exact = getattr(torch.nn, name)(case.H, case.H, **options).double()
    exact.load_state_dict(
        {key: value.double().cpu() for key, value in reference.state_dict().items()}
    )
    engine = "auto" if device == "cuda" else "triton"
    layer = getattr(elman, name)(case.H, case.H, engine=engine, **options).to(device, dtype)
    layer.load_state_dict(reference.state_dict())
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    dy = torch.randn(case.T, case.B, width, device=device, dtype=dtype)

    def train(module: Any, x: Any = x, dy: Any = dy) -> Any:
        out = module(x)[0]
        return out, *torch.autograd.grad(out, [x, *module.parameters()], dy)

    wide = x.detach().double().cpu().requires_grad_()
    want = [value.detach() for value in train(exact, wide, dy.double().cpu())]

    def off(module: Any) -> float:
        pairs = zip(train(module), want, strict=True)
        return max(float((a.detach().double().cpu() - b).norm() / b.norm()) for a, b in pairs)

    row: dict[str, Any] = {}
    for key, module in (("elman", layer), ("torch", reference)):
        row[f"{key} error"] = off(module)
        row[key] = (clock(lambda m=module: m(x)), clock(lambda m=module: train(m)))
    if row["elman error"] > max(3 * row["torch error"], 1e-5):
        raise ArithmeticError(f"off by {row['elman error']:.2g}, torch {row['torch error']:.2g}")
    records = [record for sizes in elman.nn.choices(layer).values() for record in sizes.values()]
    words = dict.fromkeys(f"{record['engine']} {record['schedule']}" for record in records)
    row["best"] = ", ".join(words)
    return row


def decoder_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Decoder and loss, forward and backward (s), and the memory that they take at most (bytes)."""
    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    decoder = elman.LinearCrossEntropyLoss(case.H, case.T, bias=True, device=device, dtype=dtype)
    x = torch.randn(case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    targets = torch.randint(case.T, (case.B,), device=device)
    leaves = [x, *decoder.parameters()]

    def by(engine: str) -> Any:
        with elman.using(engine=engine):
            return torch.autograd.grad(decoder(x, targets), leaves)

    def plain() -> Any:
        return torch.autograd.grad(functional.cross_entropy(decoder.logits(x), targets), leaves)

    runs = {"elman": lambda: by("triton"), "chunks": lambda: by("reference"), "torch": plain}
    row: dict[str, Any] = {"decoder": {}, "bytes": {}}
    for name, run in runs.items():
        for got, want in zip(run(), by("reference"), strict=True):
            off = float((got - want).double().norm() / want.double().norm())
            if off > (1e-4 if dtype == torch.float32 else 3e-2):
                raise ValueError(f"{name} is off by {off:.1e}")
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            row["bytes"][name] = torch.cuda.max_memory_allocated() - before
        row["decoder"][name] = clock(run)
    times = ", ".join(f"{name} {seconds * 1e3:.3f}" for name, seconds in row["decoder"].items())
    sizes = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in row["bytes"].items())
    return {**row, "text": f"ms: {times}; MiB: {sizes or '-'}"}


def packed_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A layer over packed sequences of a quarter of T to T steps, beside torch's layer."""
    name, dtype = case.cell.upper(), getattr(torch, case.dtype)
    torch_layer = getattr(torch.nn, name)(case.H, case.H).to(device, dtype)
    engine = "auto" if device == "cuda" else "triton"
    layer = getattr(elman, name)(case.H, case.H, engine=engine).to(device, dtype)
    layer.load_state_dict(torch_layer.state_dict())
    x = torch.randn(case.T, case.B, case.H, device=device, dtype=dtype, requires_grad=True)
    lengths = torch.linspace(max(1, case.T // 4), case.T, case.B).long().flip(0)

    def train(module: Any) -> tuple[torch.Tensor, ...]:
        out = module(torch.nn.utils.rnn.pack_padded_sequence(x, lengths))[0].data
        return out, *torch.autograd.grad(out.float().square().sum(), [x, *module.parameters()])

    off = max(error(a, b) for a, b in zip(train(layer), train(torch_layer), strict=True))
    if off > (ROUNDED if case.dtype == "float32" else 0.1):
        raise ArithmeticError(f"off by {off:.2g} from torch's layer")
    row: dict[str, Any] = {"off": off}
    packed = torch.nn.utils.rnn.pack_padded_sequence(x.detach(), lengths)
    for key, module in (("elman", layer), ("torch", torch_layer)):
        row[key] = (clock(lambda m=module: m(packed)), clock(lambda m=module: train(m)))
    return row


def step_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """A step in torch's operations by elman, beside the loop; compared with the loop in float64."""
    step, sizes = CASES[case.cell], Sizes(case.H, case.H)
    engine = "auto" if device == "cuda" else "triton"
    exact = build(step, 5, 3, sizes, dtype=torch.float64)
    small, big = (
        build(step, 5, 3, sizes, device=device),
        build(step, case.T, case.B, sizes, device=device),
    )
    want = values(exact, loops(exact))
    got = values(small, elmans(small, engine, "case"))
    off = {name: error(got[name].cpu(), value) for name, value in want.items()}
    worst = max(off, key=lambda name: off[name])
    if off[worst] > ROUNDED:
        raise ArithmeticError(f"{worst} is off by {off[worst]:.2g}")
    asked = [leaf for _, leaf in leaves(big)]
    row: dict[str, Any] = {"off": off[worst]}
    for key, run in (("elman", elmans(big, engine, "case")), ("python loop", loops(big))):

        def train(run: Runner = run) -> Any:
            loss = weighted(run(big.x, big.state))
            return torch.autograd.grad(loss, asked, allow_unused=True)

        row[key] = (clock(lambda run=run: run(big.x, big.state)), clock(train))
    return row


def program_times(case: Case, device: str, clock: Clock) -> dict[str, Any]:
    """Training steps of ``elman train text`` with two layers, beside the same on torch's layers."""
    precision = {"float32": "32-true", "bfloat16": "bf16-mixed"}[case.dtype]
    sizes = {"bptt": case.T, "batch": case.B, "hidden": case.H, "cell": case.cell, "steps": 20}
    words = [sys.executable, "-m", "elman", "train", "text", f"--precision={precision}"]
    words += [f"--{name}={value}" for name, value in sizes.items()]
    words += [f"--accelerator={device}", "--minutes=1", "--validation-chars=4096"]
    words += [] if device == "cuda" else ["--engine=triton", "--layers=1"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*words, f"--out={folder}"],
            check=True,
            capture_output=True,
            text=True,
            timeout=80 if device == "cuda" else 240,
        )
        (result,) = Path(folder).glob("*/result.json")
        speeds = json.loads(result.read_text())["speed"]
    text = ", ".join(f"{name} {of['median']:.0f}" for name, of in speeds["items_per_s"].items())
    return {"items_per_s": speeds, "text": f"characters/s: {text}; {speeds['ratio']:.2f}x"}
