"""What follows from a module's cell, sizes and options."""

from __future__ import annotations

from typing import NamedTuple

from elman.nn.call.cache import CallCache
from elman.nn.call.signature import Signature
from elman.nn.execute.layer import Runner
from elman.nn.execute.stack import Stack
from elman.plan.spec import USUAL, PlanOptions

PARTS = "_parts"  # the attribute that no copy and no pickle has


class Parts(NamedTuple):
    """What follows from a module's cell, sizes and options.

    Attributes:
        runners: one per layer and direction, by the suffix of its weights' names: ``l0``,
            ``l0_reverse`` …
        stack: of them.
        stack_key: of the stack, for torch's compiler.
        names: of the parameters of each.
        signature: what the module takes.
        draws: how often cells draw random numbers anew: per ``step``, per ``sequence``.
        cuts: where the weights of each lie among all.
        plans: of calls that came before.
        recurrent: of each weight of each, whether it is a matrix that multiplies what depends on a
            state.
        plan: of the module when this was made; runners have :attr:`PlanOptions.compiled` of it.
        begins: whether a sequence that is given no state may begin with something else than zeros:
            with what is learned, or with what cells say (``init=``).
    """

    runners: dict[str, Runner]
    stack: Stack
    stack_key: str
    names: list[list[str]]
    signature: Signature
    cuts: list[slice]
    plans: CallCache
    recurrent: list[list[bool]]
    draws: tuple[str, ...] = ()
    begins: bool = False
    plan: PlanOptions = USUAL
