"""All options of a call: the arguments of ``forward`` other than the input and the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.nn.options.base import StepOption
from elman.nn.options.bound import StepValues
from elman.nn.options.draws import DRAWS
from elman.nn.options.mask import Mask
from elman.nn.options.outputs import check_outputs
from elman.nn.options.reset import Reset
from elman.tuning.request import Rule


class CallOptions(TypedDict, total=False):
    """Options of a call.

    Attributes:
        lengths [B]: number of steps of each sequence of a padded batch, in any order. The output is
            zero past each end, the last states are those of each sequence's last step, and padding
            costs no arithmetic.
        reset [T, B]: nonzero where an episode starts: the state is reset before that step, in both
            directions. It has the layout of x.
        reset_to: the state after a reset: ``"zeros"``, or ``"initial"``, the state passed to the
            call. Default: the default initial state.
        mask [T, B]: zero for steps to skip, such as missing ones: all states of all layers keep
            their values, and x is not read there, even if it is NaN. It has the layout of x. A
            reset takes effect in a masked step, too.
        masked_output: output of a masked step. ``"held"``, the default, repeats an output that is
            a state and sets any other to zero; ``"zeros"`` sets all to zero.
        draws [T, B, layers·directions, n]: random numbers from the module's ``draws``, in training,
            used instead of new ones. They have the layout of x.
        static [B, S]: static inputs, one value per sequence for all layers and steps; a tuple if
            the cell has several; [S] unbatched; a scalar one is [B].
        outputs: ``"states"`` also returns the last layer's states after every step, in the layout
            of the output: ``out, states, last = net(x, outputs="states")``; a tuple if the cell has
            several.
    """

    lengths: Tensor | Sequence[int] | None
    reset: Tensor | PackedSequence | None
    reset_to: Literal["zeros", "initial"] | None
    mask: Tensor | PackedSequence | None
    masked_output: Literal["held", "zeros"] | None
    draws: Tensor | PackedSequence | None
    static: Any
    outputs: Literal["states"] | None


NAMES = tuple(CallOptions.__annotations__)
# In the order in which they change a step: resets come last, since they take effect in masked
# steps, too.
STEP_OPTIONS: dict[str, StepOption] = {option.name: option for option in (DRAWS, Mask(), Reset())}


def rules_of(steps: Sequence[StepValues]) -> tuple[Rule, ...]:
    """The rules of the options in use, in their order."""
    return tuple([STEP_OPTIONS[values.option].rule(values.facts) for values in steps])


def select_options(options: Mapping[str, Any], caller: str = "forward") -> dict[str, Any]:
    """The options of a call that are not None.

    Args:
        caller: the method that takes them.

    Raises:
        TypeError: there is no option of this name.
        InputError: an option is invalid, or requires another one.
    """
    for name in options:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1)
            message = f"{caller}() got an unexpected keyword argument {name!r}"
            raise TypeError(f"{message}; its options are {', '.join(near or NAMES)}")
    in_use = {name: value for name, value in options.items() if value is not None}
    check_outputs(in_use.get("outputs"))
    for option in STEP_OPTIONS.values():
        option.check(in_use)
    return in_use


def step_options(options: Mapping[str, Any]) -> list[str]:
    """Names of a call's options that have a value for each step."""
    return [name for name in STEP_OPTIONS if name in options]
