"""Packed rows for tests: cases of several lengths, and what each sequence gives alone."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pack_padded_sequence

from calls import backward, forward, grouped
from elman.engines.packed_rows import Packed
from elman.tuning.kernels import kernel_of
from helpers import Case, Sizes, job_of, random_case
from unseen import UNSEEN


def layout(lengths) -> Packed:
    """The batch sizes of lengths that fall."""
    return Packed([sum(length > t for length in lengths) for t in range(max(lengths))])


def drawn(cell, lengths, dtype=torch.float64, H=13, seed=0) -> Case:
    """A padded case for those lengths; its kernels are those of ``helpers.AWKWARD``'s middle."""
    sizes = UNSEEN.get(cell, Sizes(T=max(lengths), B=len(lengths), I=5, H=H))
    return random_case(
        cell, Sizes(max(lengths), len(lengths), sizes.I, sizes.H, sizes.more), seed, dtype
    )


def packed(value, lengths):
    """The rows of a padded array."""
    return pack_padded_sequence(value, torch.tensor(lengths)).data


def alone(case: Case, lengths) -> dict[str, torch.Tensor]:
    """Each sequence by itself on the oracle, put together as packed rows, in float64."""
    case = case.to(torch.float64)
    leaves = {
        name: value.clone().requires_grad_()
        for name, value in (*case.inputs.items(), *case.states.items(), *case.weights.items())
    }
    kernel = kernel_of(job_of(case, training=False, wants=frozenset()), "reference")
    outputs, lasts = [], []
    for b, length in enumerate(lengths):
        given = (
            [leaves[name][:length, b : b + 1] for name in case.inputs],
            [leaves[name][b : b + 1] for name in case.states],
            [leaves[name] for name in case.weights],
        )
        output, last, _ = forward(kernel, given)
        outputs.append(output[:, 0])
        lasts.append(last)
    padded = torch.nn.utils.rnn.pad_sequence(outputs)
    values = [packed(padded, lengths), *(torch.cat(parts) for parts in zip(*lasts))]
    ds = [packed(case.d_output, lengths), *case.d_last.values()]
    pairs = [(v, d) for v, d in zip(values, ds, strict=True) if v.requires_grad]
    roots, ds = zip(*pairs, strict=True)
    grads = torch.autograd.grad(roots, list(leaves.values()), ds, allow_unused=True)
    found = named(case, values, dict(zip(leaves, grads, strict=True)))
    return {
        name: packed(value, lengths) if name.removeprefix("d") in case.inputs else value
        for name, value in found.items()
    }


def named(case, values, grads):
    """Results by name; gradients of None left out."""
    found = {"out": values[0].detach()}
    found |= {f"last {name}": value.detach() for name, value in zip(case.states, values[1:])}
    return found | {f"d{name}": grad for name, grad in grads.items() if grad is not None}


def together(kernel, case: Case, lengths, backwards=1) -> dict[str, torch.Tensor]:
    """All sequences at once on a kernel, on the case's device; the results on the CPU."""
    how = layout(lengths)
    inputs = [packed(value, lengths) for value in case.inputs.values()]
    given = inputs, list(case.states.values()), list(case.weights.values())
    if kernel.differentiable:
        leaves = [value.clone().requires_grad_() for group in given for value in group]
        output, last, _ = forward(kernel, grouped(leaves, given), how)
        ds = [packed(case.d_output, lengths), *case.d_last.values()]
        pairs = [(v, d) for v, d in zip((output, *last), ds, strict=True) if v.requires_grad]
        values, ds = zip(*pairs, strict=True)
        grads = torch.autograd.grad(values, leaves, ds, allow_unused=True)
    else:
        output, last, saved = forward(kernel, given, how)
        output = output.clone()
        for left in reversed(range(backwards)):
            d_output, d_last = packed(case.d_output, lengths), case.d_last.values()
            more = {"keep": left > 0, "packed": how}
            grads = backward(kernel, given, saved, d_output, d_last, **more)
    names = (*case.inputs, *case.states, *case.weights)
    found = named(case, [output, *last], dict(zip(names, grads, strict=True)))
    return {name: value.cpu() for name, value in found.items()}
