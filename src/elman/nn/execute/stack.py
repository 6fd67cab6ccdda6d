"""All layers and directions of a module: their construction, groups, and the loop over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from elman.engines.call import Call
from elman.errors import InputError, ShapeError
from elman.frontend.cell import Cell
from elman.ir.types import axes_of, dim_size, is_matrix, shape_size
from elman.nn.execute.group import BoundGroup, Group
from elman.nn.execute.layer import Formula, Rules, Runner
from elman.nn.layout.layout import StateForm
from elman.nn.options.bound import BoundCall
from elman.nn.options.outputs import OutputLayout, Outputs, RunSettings, run_layers
from elman.nn.options.registry import STEP_OPTIONS
from elman.passes.draws import draws
from elman.plan.spec import PlanOptions
from elman.tuning.request import Request, bucket


class GroupRequests(NamedTuple):
    """The requests of a call to one group.

    Attributes:
        group: of layers or directions.
        calls: of each, with what stands for the inputs of those above.
        requests: for their kernels.
        between: steps between two kept states; 0: everything is kept.
    """

    group: Group
    calls: list[Call]
    requests: tuple[Request, ...]
    between: int


Bound = dict[tuple[int, ...], BoundGroup]  # by group, and how many steps and samples it is given


class Stack:
    """All layers of a module.

    Args:
        runners: one per layer and direction, in the order of their weights.
        directions: 1 or 2.
        joined: whether nothing ever stands between one layer and the next.
        form: how their states lie.
        takes: which of the inputs each reads.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        directions: int,
        joined: bool,
        form: StateForm,
        takes: Sequence[tuple[int, ...]],
    ) -> None:
        self.runners, self.directions = list(runners), directions
        self.form, self.takes = form, list(takes)
        self.draws = [draws(runner.cell.graph) for runner in runners]
        self._single = self._cut(directions)
        alike = form.alike and all(runner.cell is self.runners[0].cell for runner in self.runners)
        at_once = directions == 1 and joined and alike and len(self.runners) > 1
        self._groups = self._cut(len(self.runners)) if at_once else self._single
        last = self.runners[-1]
        self._output_layouts = OutputLayout.of(last.cell, dict(last.dims), directions)

    def __reduce__(self) -> Any:
        joined = self._groups is not self._single
        return Stack, (self.runners, self.directions, joined, self.form, self.takes)

    def _cut(self, size: int) -> list[tuple[Group, int]]:
        return [
            (Group(self.runners[at : at + size], self.directions == 2), size)
            for at in range(0, len(self.runners), size)
        ]

    @property
    def groups(self) -> dict[str, Group]:
        """Groups of several members, by a name for records."""
        return {
            f"layer {at}" if group.directions else "layers": group
            for at, (group, count) in enumerate(self._groups)
            if count > 1
        }

    def output_layout(self, outputs: Outputs = None) -> OutputLayout:
        """The layout of the last layer's output, for the ``outputs`` of a call."""
        return self._output_layouts[int(outputs == "states")]

    def groups_for(self, between: bool) -> list[tuple[Group, int]]:
        """The groups that run one after another, each with its number of members; ``between``:
        whether dropout or a residual lies between layers."""
        return self._single if between else self._groups

    def run(
        self, call: BoundCall, settings: RunSettings, bound: Bound
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Run all layers.

        Args:
            call: in the inner layout.
            settings: of the call.
            bound: kernels of calls of this kind; what is missing is added.

        Returns:
            Every value that the last layer returns [T, B, n · directions], and the last states,
            laid out as those of the call.
        """
        layout = self.output_layout(settings.outputs)
        groups, packed = self.groups_for(settings.between), call.packed
        size = () if packed is None else (bucket(packed.steps), bucket(packed.mean_batch))
        if packed is not None and settings.checkpoint:
            bound = {}  # spans depend on the lengths themselves
        alone = len(self.runners) == 1 and packed is None
        states = [call.states] if alone else self.form.rows(call.states)
        limits = settings.checkpoint._replace(groups=len(groups))

        def run_group(
            group: Group, inputs: tuple[Tensor, ...], first: int, end: int
        ) -> tuple[Tensor, Sequence[Tensor]]:
            key = (first, *size)
            binding = bound.get(key)
            rules = None if binding is None else binding.rules
            calls, rules = self._calls(group, inputs, states, call, first, settings, rules)
            if binding is None:
                binding = bound[key] = group.bind(calls, settings.engine, rules, limits)
            result = group.run(binding, calls)
            return result.output, result.last

        if alone:
            output, last = run_group(groups[0][0], call.inputs, 0, 1)
            return layout.split(output), tuple(last)
        output, ends = run_layers(groups, run_group, call.inputs, settings, layout)
        return output, self.form.join(ends)

    def ask(self, call: BoundCall, settings: RunSettings) -> list[GroupRequests]:
        """Build the requests of a call to each group without running it; the module's input stands
        for the output of the layer below.

        Args:
            call: in the inner layout.
            settings: of the call; an engine is named, or ``auto``.

        Raises:
            InputError: a memory budget is less than any way needs.
        """
        groups, states = self.groups_for(settings.between), self.form.rows(call.states)
        limits = settings.checkpoint._replace(groups=len(groups))
        questions: list[GroupRequests] = []
        at, flows = 0, call.inputs[0].requires_grad
        for group, count in groups:
            calls, rules = self._calls(
                group, call.inputs, states, call, at, settings, compute=False
            )
            engine = str(settings.engine)
            members, between = group.requests(calls, flows, engine, rules, limits)
            questions.append(GroupRequests(group, calls, members, between))
            at, flows = at + count, flows or any(member.training for member in members)
        return questions

    def _calls(
        self,
        group: Group,
        inputs: Sequence[Tensor],
        states: Sequence[tuple[Tensor, ...]],
        call: BoundCall,
        first: int,
        settings: RunSettings,
        rules: tuple[Rules, ...] | None = None,
        compute: bool = True,
    ) -> tuple[list[Call], tuple[Rules, ...]]:
        """The calls of a group's layers and directions, and how the steps of each change.

        Args:
            inputs: of the module, the first that of the group.
            states: of each layer and direction of the module; of one alone with their axis.
            call: of the module.
            first: which layer and direction is the group's first.
            settings: of the call.
            rules: how the steps change, if that is known.
            compute: as of :meth:`Runner.precompute_static`.
        """
        end = first + len(group.runners)
        calls = [
            STEP_OPTIONS[values.option].for_layers(values, first, end, self.draws[first])
            for values in call.steps
        ]
        steps = [values for values in calls if values is not None]
        if rules is None:
            rules = group.rules(steps, end == len(self.runners), settings.outputs)
        read = tuple([inputs[k] for k in self.takes[first]])
        stacked = states[0] is call.states
        plain = [
            Call(read, states[k], tuple(call.weights[k]), call.packed, stacked)
            for k in range(first, end)
        ]
        return group.calls(plain, steps, rules, compute), rules


def heads_in_batch(formulas: Sequence[Formula]) -> int:
    """Number of heads that are samples of the batch; 1 if heads are units.

    Args:
        formulas: of each layer.

    Raises:
        InputError: layers differ in that.
    """
    counts = {cell.batch_heads: cell.name for cell, *_ in formulas}
    if len(counts) > 1:
        units, samples = (counts.pop(1), *counts.values())
        raise InputError(
            f"heads of {samples}, which has a matrix per sample, are samples, and those of {units} "
            "are units",
            "a module for each, one after the other",
        )
    return next(iter(counts))


Shared = dict[tuple[str, str], tuple[int, tuple[int, ...]]]  # kind, name -> first layer, its sizes
_APART = "modules of one layer each, one after the other, may differ in their sizes"


def runners_of(
    formulas: Sequence[Formula],
    input_size: int,
    bidirectional: bool,
    residual: bool,
    options: PlanOptions,
) -> dict[str, Runner]:
    """Build one runner per layer and direction, by the suffix of its weights' names.

    Args:
        formulas: of each layer.
        input_size: of the lowest layer; those above read the output of the one below.
        bidirectional, residual: as of the module.
        options: of all layers.

    Raises:
        InputError, ShapeError: the cells cannot be stacked so.
    """
    size, runners = input_size, dict[str, Runner]()
    sizes = Shared()
    matrix: tuple[int, int] | None = None  # rows and columns of the output of the layer below
    for layer, (cell, *_) in enumerate(formulas):
        if not cell.inputs:
            raise InputError(f"{cell.name} has no input: there is nothing to run it over")
        output = cell.graph.output.shape
        scalars = [not value.shape for value in cell.graph.outputs]
        if (layer + 1 < len(formulas) and not output) or (bidirectional and all(scalars)):
            raise InputError(
                f"{cell.name} has a scalar output, which allows only one layer in one direction"
            )
        bound = _bind_layer(formulas[layer], layer, size, input_size, matrix, bidirectional)
        _check_shared(cell, layer, bound, sizes)
        for end in ("", "_reverse")[: 1 + bidirectional]:
            runners[f"l{layer}{end}"] = Runner(cell.sample, bound, options)
        width = dim_size(output[0], bound) * (1 + bidirectional) if output else 1
        width *= cell.batch_heads
        matrix = axes_of(output[0][0], bound) if output else None
        if residual and layer and width != size:
            raise ShapeError(
                f"{cell.name}, layer {layer}: residual adds its input [{size}] to its output "
                f"[{width}], which must have the same size",
                "one hidden_size for all layers, or residual=False",
            )
        size = width
    return runners


def _bind_layer(
    formula: Formula,
    layer: int,
    size: int,
    input_size: int,
    matrix: tuple[int, int] | None,
    bidirectional: bool,
) -> dict[str, int]:
    """Sizes of the dims of a layer's cell.

    Args:
        formula, layer: of the layer.
        size: units of the output of the layer below, or of the module's input.
        input_size, bidirectional: of the module.
        matrix: rows and columns of the output of the layer below, if it is a matrix.

    Raises:
        InputError: the cell reads a matrix, and the layer below gives none, or two side by side.
        ShapeError: sizes do not fit.
    """
    cell, height, dims = formula
    entry, below = cell.inputs[0], f"{size} units"
    if matrix is not None:
        below = f"a matrix [{matrix[0]}, {matrix[1]}]"
        below += " of each direction" if bidirectional else ""
        below += "" if is_matrix(entry) else f", which a vector reads as {size} units"
    reads_matrix = layer > 0 and is_matrix(entry)
    if reads_matrix:
        if matrix is None or bidirectional:
            message = (
                f"{cell.name}, layer {layer}: {entry} is a matrix, and the output of the layer"
            )
            out = "lower(x)[0].unflatten(-1, (K, V))"
            if matrix is not None:  # columns of the two lie side by side
                out = f"lower(x)[0][..., :{matrix[1]}]"
            raise InputError(f"{message} below is {below}", f"a module for each: upper({out})")
        size = matrix[1] * cell.batch_heads
    try:
        bound = cell.bind(size, height, **dims)
    except ShapeError as error:
        subject = f"{cell.name}, layer {layer}: {error}"
        if not layer or (size == input_size and matrix is None):
            raise ShapeError(subject) from None
        read = f"{entry} is the output of the layer below: {below}, not {input_size}"
        raise ShapeError(subject, _APART, input=read) from None
    axes = axes_of(entry.shape[0][0], bound) if reads_matrix else None
    if axes is not None and axes != matrix:
        subject = f"{cell.name}, layer {layer}: {entry} is {[*axes]}"
        raise ShapeError(f"{subject}, and the output of the layer below is {below}", _APART)
    return bound


def _check_shared(cell: Cell, layer: int, bound: Mapping[str, int], shared: Shared) -> None:
    """Check that further and static inputs have the same size in all layers.

    Args:
        cell, layer, bound: of one layer.
        shared: of the layers below, to which this one's are added.

    Raises:
        ShapeError: a size follows that of the first input, which is another in the layers above.
    """
    for kind, entries in (("further", cell.inputs[1:]), ("static", cell.static)):
        for entry in entries:
            shape = shape_size(entry.shape, dict(bound))
            first, first_place = shared.setdefault((kind, entry.name), (layer, shape))
            if first_place != shape:
                sizes = [size[0] if size else "no axis" for size in (shape, first_place)]
                unlike = (
                    f"{cell.name}, layer {layer}: {entry} has size {sizes[0]} here and {sizes[1]} "
                    f"in layer {first}, but all layers get the same {kind} inputs"
                )
                apart = (
                    f"no num_layers=, but one cell per layer, without {entry.name} above: "
                    f"Recurrent([{cell.name}, …]"
                )
                raise ShapeError(unlike, f"{apart}, …)")
