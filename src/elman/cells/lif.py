"""Leaky integrate-and-fire neurons."""

from elman.frontend.cell import cell
from elman.frontend.lines import refuse
from elman.ops import spike, stop_gradient

RESETS = ("subtract", "zero", "none")
RESETS_BEFORE = ("subtract", "zero", "zero_before", "none")  # where a reset comes a step later


def check_reset(reset_mechanism, known=RESETS):
    """Raise TraceError: a cell knows no such reset."""
    if reset_mechanism not in known:
        refuse(
            f"reset_mechanism must be one of {', '.join(known)}, not {reset_mechanism!r}",
            'reset_mechanism="subtract"',
        )


def reset_where(fired, v, threshold, reset_mechanism, rest=0.0):
    """v [H], less the threshold, or (``"zero"``) at the number ``rest`` where ``fired`` [H] is
    1."""
    if reset_mechanism == "subtract":
        return v - threshold * fired
    if reset_mechanism == "none":
        return v
    return v * (1 - fired) + rest * fired if rest else v * (1 - fired)


def integrated(rest, current, m, threshold, reset_mechanism):
    """The membrane after a step: what is left of m and the current, reset where m was above
    threshold.

    The reset passes no gradient, as in snnTorch.

    Raises:
        TraceError: there is no such reset.
    """
    check_reset(reset_mechanism, RESETS_BEFORE)
    fired = stop_gradient(m > threshold)
    if reset_mechanism == "zero_before":
        return rest * (1 - fired) + current
    return reset_where(fired, rest + current, threshold, reset_mechanism)


def fired_late(m, before, threshold, reset_mechanism, surrogate, reset_delay):
    """Spikes [H] of m [H], and m: its reset comes a step later, or with ``reset_delay=False`` now.

    snnTorch's reset at once has the surrogate's gradient, and spares a membrane that was above the
    threshold ``before`` [H], and so has been reset in this step.
    """
    s = spike(m - threshold, surrogate)
    if reset_delay or reset_mechanism == "none":
        return s, m
    new = s - stop_gradient(before > threshold)
    return s, m - new * (threshold if reset_mechanism == "subtract" else m)


def fired_at_once(v, threshold, surrogate, detach_reset, reset_mechanism="zero", rest=0.0):
    """Spikes [H] of v [H], and v after their reset, as Norse and SpikingJelly do it.

    The reset has the surrogate's gradient unless ``detach_reset``.

    Raises:
        TraceError: there is no such reset.
    """
    check_reset(reset_mechanism)
    s = spike(v - threshold, surrogate)
    fired = stop_gradient(s) if detach_reset else s
    return s, reset_where(fired, v, threshold, reset_mechanism, rest)


@cell(
    input="x[I]",
    state="m[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's Leaky, behind a Linear",
)
def lif(
    x,
    m,
    W,
    b,
    *,
    beta=0.9,
    threshold=1.0,
    reset_mechanism="subtract",
    surrogate="atan",
    reset_delay=True,
):
    """Spikes s [H] of membranes m [H], which leak by ``beta`` and are reset a step after a spike.

    ``reset_mechanism`` is ``"subtract"`` (the threshold), ``"zero"`` (membrane and current of that
    step, as snnTorch documents it, and RLeaky and Synaptic do it), ``"zero_before"`` (the membrane
    alone, as Leaky does it in versions 0.9 and 1.0), or ``"none"``. ``reset_delay=False`` resets
    membranes in the step of the spike. ``surrogate``: see :func:`elman.ops.spike`.
    """
    before, m = m, integrated(beta * m, W @ x + b, m, threshold, reset_mechanism)
    return fired_late(m, before, threshold, reset_mechanism, surrogate, reset_delay)
