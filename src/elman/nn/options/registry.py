"""All options of a call: the arguments of ``forward`` beside the input and the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.nn.options.base import StepOption, StepValues
from elman.nn.options.draws import DRAWS
from elman.nn.options.mask import Mask
from elman.nn.options.outputs import check_outputs
from elman.nn.options.reset import Reset
from elman.tuning.request import Rule


class CallOptions(TypedDict, total=False):
    """Options of a call.

    Attributes:
        lengths [B]: steps of each sequence of a padded batch, in any order. The output is zero
            behind each end, the last states are those after each own last step, and padding costs
            no arithmetic.
        reset [T, B]: not 0 where an episode begins: before that step the state becomes the initial
            one, in both directions; laid out (and packed) as x.
        reset_to: what the state becomes: ``"zeros"``, or the ``"initial"`` one that was given; by
            default what a sequence begins with that is given no state.
        mask [T, B]: 0 where a step does not count, as where a value is missing: all states stay as
            they are in all layers and both directions, and what x holds there, NaN too, is not
            read. Laid out (and packed) as x. A reset before such a step is done.
        masked_output: of a step that does not count: ``"held"``, the default: an output that is a
            state is that state, so as before the step; any other is zero. ``"zeros"``: zero.
        draws [T, B, layers·directions, n]: of the module's ``draws``, in training: random numbers
            that the cells use instead of drawing. Laid out (and packed) as x.
        static [B, S]: of a cell with static inputs: one value per sequence, the same for all layers
            and steps; a tuple if there are several; [S] unbatched; a scalar one is [B].
        outputs: ``"states"`` for the last layer's states behind every step too, laid out as the
            output: ``out, states, last = net(x, outputs="states")``; a tuple if the cell has
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
# In the order in which they change a step: states are reset where steps do not count, too.
STEP_OPTIONS: dict[str, StepOption] = {option.name: option for option in (DRAWS, Mask(), Reset())}


def rules_of(steps: Sequence[StepValues]) -> tuple[Rule, ...]:
    """How options in use change the step, in their order."""
    return tuple([STEP_OPTIONS[values.option].rule(values.facts) for values in steps])


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call that say something.

    Raises:
        TypeError: there is no option of such a name.
        InputError: one cannot be so, or not without another one.
    """
    for name in options:
        if name not in NAMES:
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}")
    in_use = {name: value for name, value in options.items() if value is not None}
    check_outputs(in_use.get("outputs"))
    for option in STEP_OPTIONS.values():
        option.check(in_use)
    return in_use


def step_options(options: Mapping[str, Any]) -> list[str]:
    """Names of the options given that have a value for each step."""
    return [name for name in STEP_OPTIONS if name in options]
