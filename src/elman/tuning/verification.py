"""Verification of kernels against the oracle before they run, once per program, remembered on disk.

A program is compared on a few steps of random numbers, under its own schedule and with the
shortest chunks (:meth:`Kernel.stressed`): outputs, last states and every gradient. Samples so near
a threshold that rounding decides are left out; where rounding costs more than usual, runs of the
oracle in the dtype, and with random rounding errors, tell how much.
"""

from __future__ import annotations

from itertools import product
from weakref import WeakKeyDictionary

from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.forks import own_threads
from elman.engines.precision import BF16
from elman.errors import DisagreementError, ElmanError
from elman.tuning.agreement import disagreement, finite, lost_in_rounding
from elman.tuning.decisions import recall, remember
from elman.tuning.kernels import kernel_of, label
from elman.tuning.machine import verifying_facts
from elman.tuning.rounding import has_ties, near_ties, unsteady
from elman.tuning.trial import Trial, flops, make_trial

# of the comparison: more rows than a tile of any engine has; steps that can be merged are two
# groups and one more
_STEPS, _BATCH = 5, 17
_FLOPS = 2e8  # of a comparison: larger steps are compared with fewer steps and samples
_LARGE = 3e7  # of one step of one sample: compared once, without variants, in its own dtype
_SEEDS = 4  # trials drawn until one has samples away from thresholds
_ERRORS = 4  # draws of rounding errors: a single draw of a number may be small by chance
# An operand near the middle of two bfloat16 numbers is rounded to either, depending on an error of
# float32, so several draws are tried: a wrong kernel agrees on none of them.
_DRAWS = 4
_TRUSTED = ("aten", "reference")  # torch's own layers, and the oracle itself
_verified: WeakKeyDictionary[Kernel, bool] = WeakKeyDictionary()  # kernels verified before


def compile_verified(job: Job, name: str, schedule: str = "") -> Kernel:
    """Compile a kernel of one engine and schedule, and verify it against the oracle. Raises
    EngineError: the engine cannot run the job; the text says why; DisagreementError: the kernel's
    results differ from the oracle's."""
    kernel = kernel_of(job, name, schedule)
    if name not in _TRUSTED:
        verify(job, kernel, label((name, schedule)))
    return kernel


def verify(job: Job, kernel: Kernel, name: str) -> None:
    """Compare a kernel with the oracle, unless its program was verified before.

    Args:
        job: the kernel's job.
        kernel: the kernel; a program without a fingerprint is compared once per process.
        name: its name, for the message and the mark on disk.

    Raises:
        DisagreementError: the results differ.
    """
    if kernel in _verified:
        return
    program = kernel.fingerprint()
    mark = {"verified": program, "as": name, **verifying_facts()}
    if program is None or recall(mark) != {"agrees": True}:
        with own_threads():
            reason = _find_error(job, kernel)
            for seed in range(1, _DRAWS if reason and job.spec.precision == BF16 else 1):
                reason = reason and _find_error(job, kernel, seed)
        if reason is not None:
            raise DisagreementError(name, job.name, reason)
        if program is not None:
            remember(mark, {"agrees": True})
    _verified[kernel] = True


def _find_error(job: Job, kernel: Kernel, seed: int = 0) -> str | None:
    """Find the first disagreement of a kernel with the oracle, or an error that it raises, on the
    random numbers of a seed."""
    oracle, work = kernel_of(job, "reference"), flops(job)
    most = _STEPS if job.several is None else 2 * job.several.spec.steps + 1
    steps = max(2, min(most, int(_FLOPS / work)))
    batch = max(1, min(_BATCH, int(_FLOPS / (steps * work))))
    sizes, ways = [(steps, batch, True), (1, 1, False)], (kernel, *kernel.stressed())
    if work > _LARGE:
        sizes, ways = sizes[:1], ways[:1]
    for T, B, ends in sizes:
        trial, expected = _make_defined_trial(job, oracle, T, B, ends, seed)
        for way in ways:
            try:
                reason = _explain_difference(way, oracle, trial, expected)
            except (ElmanError, RuntimeError) as error:
                reason = f"failed: {error}"
            if reason is not None:
                return reason
    return None


def _make_defined_trial(
    job: Job, oracle: Kernel, T: int, B: int, ends: bool, seed: int
) -> tuple[Trial, dict[str, Tensor]]:
    """Draw a trial on which the formula is defined (positive numbers if need be), and run the
    oracle on it."""

    def run_oracle(trial: Trial) -> dict[str, Tensor]:
        return (trial if flops(job) > _LARGE else trial.double()).run(oracle)

    plain = make_trial(job, T, B, seed, ends)
    results = run_oracle(plain)
    if finite(results):
        return plain, results
    positive = plain.positive()
    positive_results = run_oracle(positive)
    return (positive, positive_results) if finite(positive_results) else (plain, results)


def _explain_difference(
    kernel: Kernel, oracle: Kernel, trial: Trial, expected: dict[str, Tensor]
) -> str | None:
    """A difference of kernel and oracle that neither rounding nor thresholds explain; None if there
    is none."""
    dtype, steps = trial.job.spec.dtype, trial.call.sizes[0]
    sums = {f"gradient of {leaf.name}" for leaf in trial.job.graph.weights}
    actual = trial.run(kernel)
    reason = disagreement(actual, expected, dtype, steps, sums=sums)
    if reason is None:
        return None
    rounded = trial.run(oracle)
    if disagreement(actual, rounded, dtype, steps, sums=sums) is None:
        return None  # the formula itself rounds, as (x + M) - M does
    calm = _away_from_ties(trial)
    steps = calm.call.sizes[0]
    expected, rounded, actual = calm.double().run(oracle), calm.run(oracle), calm.run(kernel)
    if disagreement(actual, rounded, dtype, steps, sums=sums) is None:
        return None
    off = [rounded, *(calm.double().run(unsteady(trial.job, seed)) for seed in range(_ERRORS))]
    losses = lost_in_rounding(expected, off) if steps > 1 else frozenset[str]()
    reason = disagreement(actual, expected, dtype, steps, off, sums, losses)
    if reason is not None or not losses:
        return reason
    # results that several steps make too inaccurate must agree after one step
    ends = any(d is not None for d in trial.cotangents.last)
    single_step = make_trial(trial.job, 1, trial.call.sizes[1], ends=ends)
    return _explain_difference(kernel, oracle, single_step, single_step.double().run(oracle))


def _away_from_ties(trial: Trial) -> Trial:
    """Select the samples of a trial, or of another draw, that stay away from thresholds; with one
    step if no sample of several steps does, and all samples if none does."""
    job = trial.job
    if not has_ties(job.graph):
        return trial
    steps, batch, _ = trial.call.sizes
    ends = any(d is not None for d in trial.cotangents.last)
    for T, seed in product((steps, 1), range(_SEEDS)):
        candidate = trial if (T, seed) == (steps, 0) else make_trial(job, T, batch, seed, ends)
        mask = ~near_ties(candidate.double())
        if mask.any():
            return candidate.samples(mask)
    return trial
