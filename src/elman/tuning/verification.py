"""No kernel runs before it has agreed with the oracle: once per program, remembered on disk.

A program is compared on a few steps of random numbers, as it is and cut as finely as it can be
(:meth:`Kernel.stressed`), outputs, last states and every gradient. Samples that come so near to a
threshold that rounding decides are left out; where rounding costs more than usual, the oracle says
how much, in the dtype and with rounding errors drawn at random.
"""

from __future__ import annotations

from itertools import product
from weakref import WeakKeyDictionary

from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.forks import own_threads
from elman.errors import DisagreementError, ElmanError
from elman.tuning.agreement import disagreement, finite, lost_in_rounding
from elman.tuning.decisions import recall, remember
from elman.tuning.facts import verifying_facts
from elman.tuning.kernels import kernel_of, label
from elman.tuning.rounding import unsteady
from elman.tuning.ties import has_ties, near_ties
from elman.tuning.trial import Trial, flops, make_trial

_STEPS, _BATCH = 5, 17  # of the comparison: more rows than a tile of any engine has
_FLOPS = 2e8  # of a comparison: of larger steps there are fewer, and fewer samples
_LARGE = 3e7  # of one step of one sample: compared once, as it is, in its own dtype
_SEEDS = 4  # trials drawn until one has samples that stay away from thresholds
_ERRORS = 4  # draws of rounding errors: of one number a single draw may be small by chance
_TRUSTED = ("aten", "reference")  # torch's own layers, and the oracle itself
_right: WeakKeyDictionary[Kernel, bool] = WeakKeyDictionary()  # kernels found right before


def verified(job: Job, name: str, schedule: str = "") -> Kernel:
    """The kernel of one engine and schedule, after it has agreed with the oracle. Raises
    EngineError: the engine cannot run the job; the text says why; DisagreementError: the kernel
    computes something else than the oracle."""
    kernel = kernel_of(job, name, schedule)
    if name not in _TRUSTED:
        verify(job, kernel, label((name, schedule)))
    return kernel


def verify(job: Job, kernel: Kernel, who: str) -> None:
    """Compare a kernel with the oracle, unless its program was found right before.

    Args:
        job: what it is to compute.
        kernel: what is compared; a program without a fingerprint is compared once per process.
        who: its name, for the message and the mark on disk.

    Raises:
        DisagreementError: it computes something else.
    """
    if kernel in _right:
        return
    program = kernel.fingerprint()
    mark = {"verified": program, "as": who, **verifying_facts()}
    if program is None or recall(mark) != {"agrees": True}:
        with own_threads():
            reason = _wrong(job, kernel)
        if reason is not None:
            raise DisagreementError(who, job.name, reason)
        if program is not None:
            remember(mark, {"agrees": True})
    _right[kernel] = True


def _wrong(job: Job, kernel: Kernel) -> str | None:
    """What a kernel gets wrong, if anything."""
    oracle, work = kernel_of(job, "reference"), flops(job)
    steps = max(2, min(_STEPS, int(_FLOPS / work)))
    batch = max(1, min(_BATCH, int(_FLOPS / (steps * work))))
    sizes, ways = [(steps, batch, True), (1, 1, False)], (kernel, *kernel.stressed())
    if work > _LARGE:
        sizes, ways = sizes[:1], ways[:1]
    for T, B, ends in sizes:
        trial, want = _settled(job, oracle, T, B, ends)
        for each in ways:
            try:
                reason = _off(each, oracle, trial, want)
            except (ElmanError, RuntimeError) as error:
                reason = f"failed: {error}"
            if reason is not None:
                return reason
    return None


def _settled(
    job: Job, oracle: Kernel, T: int, B: int, ends: bool
) -> tuple[Trial, dict[str, Tensor]]:
    """A trial on which the formula is defined, if there is one, and what the oracle makes of it."""

    def tried(trial: Trial) -> dict[str, Tensor]:
        return (trial if flops(job) > _LARGE else trial.double()).run(oracle)

    plain = make_trial(job, T, B, ends=ends)
    results = tried(plain)
    if finite(results):
        return plain, results
    positive = plain.positive()
    other = tried(positive)
    return (positive, other) if finite(other) else (plain, results)


def _off(kernel: Kernel, oracle: Kernel, trial: Trial, want: dict[str, Tensor]) -> str | None:
    """What is off, if it is more than rounding and thresholds explain."""
    dtype, steps = trial.job.spec.dtype, trial.call.sizes[0]
    sums = {f"gradient of {leaf.name}" for leaf in trial.job.graph.weights}
    got = trial.run(kernel)
    reason = disagreement(got, want, dtype, steps, sums=sums)
    if reason is None:
        return None
    rounded = trial.run(oracle)
    if disagreement(got, rounded, dtype, steps, sums=sums) is None:
        return None  # where the formula itself rounds: (x + M) - M
    calm = _calm(trial)
    steps = calm.call.sizes[0]
    want, rounded, got = calm.double().run(oracle), calm.run(oracle), calm.run(kernel)
    if disagreement(got, rounded, dtype, steps, sums=sums) is None:
        return None
    off = [rounded, *(calm.double().run(unsteady(trial.job, seed)) for seed in range(_ERRORS))]
    lost = lost_in_rounding(want, off) if steps > 1 else frozenset[str]()
    reason = disagreement(got, want, dtype, steps, off, sums, lost)
    if reason is not None or not lost:
        return reason
    # what several steps lose in rounding, one step has to show
    ends = any(d is not None for d in trial.cotangents.last)
    one = make_trial(trial.job, 1, trial.call.sizes[1], ends=ends)
    return _off(kernel, oracle, one, one.double().run(oracle))


def _calm(trial: Trial) -> Trial:
    """Those samples of a trial, or of another one, that stay away from thresholds; of one step if
    there are none of several, and all if there are none at all."""
    job = trial.job
    if not has_ties(job.graph):
        return trial
    steps, batch, _ = trial.call.sizes
    ends = any(d is not None for d in trial.cotangents.last)
    for T, seed in product((steps, 1), range(_SEEDS)):
        other = trial if (T, seed) == (steps, 0) else make_trial(job, T, batch, seed, ends)
        kept = ~near_ties(other.double())
        if kept.any():
            return other.samples(kept)
    return trial
