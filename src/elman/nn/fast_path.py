"""The fast path of a call: all layers, from arguments to results in the caller's layout, with every
check and decision made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from elman.engines import registry
from elman.engines.base import Kernel
from elman.engines.call import Call, DirectCall
from elman.engines.together import Together
from elman.nn.autograd.function import run
from elman.nn.draws import Draws, draw_keys, keys_of, no_keys
from elman.nn.options import Option, extended
from elman.nn.reset import Reset
from elman.nn.signature import Signature
from elman.nn.stack import Group
from elman.nn.states import StateForm

# (x, states, weights, *marks), all in the caller's layout, -> output and last states;
# marks are resets and draws, those that are given;
# no states stand for zeros
Run = Callable[..., tuple[Tensor, Sequence[Tensor]]]


@dataclass(frozen=True)
class FastPath:
    """What calls of one layout have in common.

    Attributes:
        group: all layers, or both directions of one.
        form: how states lie.
        zeros: of each state, its leading axis and its sizes behind the batch.
        batched, batch_first: whether x has an axis of samples, and whether that comes first.
        draws: how often cells draw random numbers anew in such calls.
        drawn: whether calls are given these numbers.
    """

    group: Group
    form: StateForm
    zeros: tuple[tuple[int, tuple[int, ...]], ...]
    batched: bool
    batch_first: bool
    draws: tuple[str, ...]
    drawn: bool

    @staticmethod
    def of(
        group: Group,
        signature: Signature,
        batched: bool,
        batch_first: bool,
        draws: tuple[str, ...],
        drawn: bool,
    ) -> FastPath:
        """Of a module's layers and signature; the other arguments as the attributes."""
        zeros = tuple([(signature.lead, sizes) for _, sizes in signature.states])
        first = batched and batch_first
        return FastPath(group, signature.form, zeros, batched, first, draws, drawn)

    def prepared(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        marks: Sequence[Tensor],
        engine: str,
    ) -> Run | None:
        """What runs calls like this one; None where the layers are not a single kernel."""
        resets = len(marks) > self.drawn
        if resets and x.shape[self.batch_first] == 1 and not self.group.directions:
            one = self.prepared(x, states, weights, marks[1:], engine)
            return None if one is None else self._with_reset_states(one)
        opened = self._opened(x, states, weights)
        options, runners = self._options(opened, marks, no_keys), self.group.runners
        rules, calls = self.group.rules(options), self._calls(opened, options)
        if self._alone:
            found = runners[0].settled(calls[0], engine, rules[0])
        else:
            found = self.group.settled(calls, engine, rules)
        if found is None:
            return None
        kernel, oracle, training = found
        joined = self.group.arrangement(rules).joined

        def by_kernel(
            x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *marks: Tensor
        ) -> tuple[Tensor, Sequence[Tensor]]:
            opened = self._opened(x, states, weights)
            calls = self._calls(opened, self._options(opened, marks, draw_keys))
            call = calls[0] if self._alone else joined(calls)
            output, last, _ = run(kernel, oracle, call, training)
            return self._closed(output, last if self._alone else self.form.joined([last]))

        if training or options:
            return by_kernel
        direct = self._direct(kernel, opened)
        return by_kernel if direct is None else self._in_layout(direct)

    def _with_reset_states(self, one: Run) -> Run:
        """Calls of one step: a reset only zeroes the states before it."""

        def reset_first(
            x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *marks: Tensor
        ) -> tuple[Tensor, Sequence[Tensor]]:
            if states:
                mask = marks[0].transpose(0, 1) if self.batch_first else marks[0]
                states = Reset(mask, "zeros").only_step(tuple(states), None)
            return one(x, states, weights, *marks[1:])

        return reset_first

    def _in_layout(self, direct: DirectCall) -> Run:
        """A direct call, which takes x [T, B, n], or [B, T, n] and [T, n] where their memory is the
        same, with results in the caller's layout."""
        if self.batched and not self.batch_first:
            return direct

        def laid_out(
            x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
        ) -> tuple[Tensor, Sequence[Tensor]]:
            own = states if self.batched else [state.unsqueeze(1) for state in states]
            return self._closed(*direct(x, own, weights))

        return laid_out

    @property
    def _alone(self) -> bool:
        """Whether there is one layer in one direction."""
        return len(self.group.runners) == 1

    def _options(
        self, call: Call, marks: Sequence[Tensor], draw: Callable[..., list[Tensor]]
    ) -> list[Option]:
        """The options that change the step of a call.

        Args:
            call: as of :meth:`_opened`.
            marks: in the caller's layout.
            draw: makes the keys of random numbers that are not given.
        """
        made: list[Option] = []
        rows = [self._of_steps(mark) for mark in marks]
        if self.drawn:
            keys = keys_of(rows.pop(), call.inputs[0].dtype)
            made.append(Draws(self.draws, keys, given=True))
        elif self.draws:
            x, lead = call.inputs[0], len(self.group.runners)
            keys = draw(self.draws, lead, x.shape[:2], x.shape[1], x.dtype, x.device)
            made.append(Draws(self.draws, keys))
        return made + [Reset(reset, "zeros") for reset in rows]

    def _of_steps(self, mark: Tensor) -> Tensor:
        """A mark in the inner layout, [T, B, ...]."""
        if self.batch_first:
            return mark.transpose(0, 1)
        return mark if self.batched else mark.unsqueeze(1)

    def _opened(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]) -> Call:
        """A call in the inner layout: x [T, B, n], states [layers · directions, B, n]."""
        if self.batch_first:
            x = x.transpose(0, 1)
        elif not self.batched:
            x, states = x.unsqueeze(1), [state.unsqueeze(1) for state in states]
        if not states:
            batch = x.shape[1]
            states = [x.new_zeros(lead, batch, *sizes) for lead, sizes in self.zeros]
        return Call((x,), tuple(states), tuple(weights), None, True)

    def _closed(self, output: Tensor, last: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """Results in the caller's layout."""
        if self.batched:
            return (output.transpose(0, 1) if self.batch_first else output), last
        return output.squeeze(1), [state.squeeze(1) for state in last]

    def _calls(self, call: Call, options: Sequence[Option]) -> list[Call]:
        """The call of each layer and direction; those of layers above lack their input."""
        if self._alone:
            return [extended(call, options)]
        calls: list[Call] = []
        at = 0
        for runner, own in zip(self.group.runners, self.form.rows(call.states), strict=True):
            count, index = len(runner.cell.weights), len(calls)
            plain = Call(call.inputs, own, call.weights[at : at + count])
            calls.append(extended(plain, options, self.group.directions and index == 1, index))
            at += count
        return calls

    def _direct(self, kernel: Kernel, call: Call) -> DirectCall | None:
        """The engine's direct call, where it has one: see :meth:`Engine.direct`."""
        kernels = [kernel]
        if not self._alone:
            if self.group.directions or type(kernel) is not Together:
                return None
            kernels = kernel.kernels
        return registry.find(kernel.engine).direct(kernels, call)
