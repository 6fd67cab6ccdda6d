"""``@cell``: a formula with its signature becomes a :class:`Cell`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from types import MappingProxyType
from typing import Any, Never

from elman.checks import check_list, check_mapping, check_size, check_text, shown
from elman.errors import PickleError, ShapeError, TraceError, diagnostic
from elman.frontend.changes import Change, Data, change_of
from elman.frontend.copies import Copies, Signature, copies, whole_entry
from elman.frontend.dims import Cuts, UncutError, check_groups
from elman.frontend.draws import counting
from elman.frontend.formula import Declaration, traced
from elman.frontend.heads import (
    Division,
    Share,
    Tracing,
    check_divides,
    check_parts,
    check_shares_nothing,
    division,
    sizes_per_head,
    tracing,
)
from elman.frontend.initial import Init, check_init
from elman.frontend.lines import line_of, refuse, where_called
from elman.frontend.naming import changed, is_in_cloudpickle, look_up, nameless
from elman.frontend.signature import (
    Declared,
    bind_dims,
    check_declared,
    defaults_of,
    parse_signature,
)
from elman.frontend.trace import Tracer
from elman.ir.fingerprint import fingerprint
from elman.ir.graph import Graph


@dataclass(frozen=True, eq=False)
class Cell(Declaration):
    """The formula of one time step for one sample.

    ``graph`` is the formula as traced with the options bound so far; static inputs follow the
    inputs there. Calling a cell on traced values inlines its formula into another cell.

    Attributes:
        constants: the names of weights that are never trained.
        init, source: as declared.
    """

    constants: frozenset[str] = frozenset()
    init: Mapping[str, Init] = field(default_factory=dict[str, Init])
    source: str = ""
    heads: int = 1
    whole: Cell | None = None  # the same without heads
    share: Share = field(default=Share())  # of the dims that its function writes
    copies: Copies | None = None  # of one head

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return inspect.getdoc(self.function) or ""

    def __repr__(self) -> str:
        groups = {
            "input": self.inputs,
            "static": self.static,
            "state": self.states,
            "weights": self.weights,
            "output": self.outputs,
        }
        declared = [f"{kind} {', '.join(map(str, of))}" for kind, of in groups.items() if of]
        return f"<cell {self.name}: {'; '.join(declared)}>"

    @property
    def defaults(self) -> dict[str, Any]:
        """The options the cell takes, with their default values."""
        return defaults_of(self.function)

    @property
    def differentiated(self) -> frozenset[str]:
        """Names of the inputs and trained weights, which may need gradients."""
        names = {entry.name for entry in (*self.inputs, *self.weights)}
        return frozenset(names - self.constants)

    def __call__(self, *values: Any, **options: Any) -> Any:
        """Inline the formula: called with traced values inside another cell.

        Raises:
            TraceError: there are no traced values, or they are not the cell's arguments.
        """
        if not any(isinstance(value, Tracer) for value in values):
            raise TraceError(
                f"{self.name} is a formula and cannot be called with numbers",
                f"net = elman.Recurrent({self.name}, input_size, hidden_size); net(x)",
                at=self.where,
            )
        arguments = {**self.options, **options}
        try:
            inspect.signature(self.function).bind(*values, **arguments)
        except TypeError as error:
            takes = ", ".join(inspect.signature(self.function).parameters)
            refuse(f"{self.name}(…): {error}", f"{self.name}({takes})".replace("*, ", ""))
        return self.function(*values, **arguments)

    @cached_property
    def recurrent(self) -> Cell:
        """The same cell; without states, with a scalar one that each step hands on as it is: its
        formula is computed for all steps at once, and the loop over time has nothing else to do."""
        if self.states:
            return self
        taken = {entry.name for entry in (*self.inputs, *self.static, *self.weights, *self.outputs)}
        name = "idle" if "idle" not in taken else f"idle_{len(taken)}"
        return replace(self, states=(Declared(name, ()),), idle=True)

    def with_options(self, **options: Any) -> Cell:
        """The same cell with some of its keyword options bound.

        Raises:
            TraceError: an option that the cell does not take.
        """
        defaults = self.defaults
        for name in options:
            if name not in defaults:
                takes = ", ".join(defaults) or "none"
                raise TraceError(
                    f"{self.name} takes no option {name!r} (it takes: {takes})", at=self.where
                )
        if not options:
            return self
        if self.whole is not None:
            return self.whole.with_options(**options).with_heads(self.heads)
        return replace(self, options={**self.options, **options})

    def with_changes(self, *changes: Change) -> Cell:
        """The same cell with its states read and written through further changes.

        Raises:
            InputError: the cell cannot have one of them.
        """
        if not changes:
            return self
        for change in changes:
            change.check(self.name, [entry.name for entry in self.states])
        if self.whole is not None:
            return self.whole.with_changes(*changes).with_heads(self.heads)
        return replace(self, changes=(*self.changes, *changes))

    def with_heads(self, heads: Any) -> Cell:
        """The same cell as copies of itself side by side, whose units do not see each other's past.

        The formula is that of one head: reductions, ``h.shape[0]``, ``groups=`` and random numbers
        are each head's own. The dims of states, and those of matrices that multiply a value that
        depends on a state, are divided, and so are all arguments that have such a dim: of each gate
        block the units n·H/heads … are head n's. A matrix of which both dims are divided is
        block-diagonal: it is stored as [rows, columns / heads]. Inputs and weights without a
        divided dim are shared by all heads; a scalar state, or an output without a divided dim, is
        one for each head, side by side, if it depends on what is a head's own. A cell that computes
        each unit from its own past alone stays as it is. Of a cell with a matrix per sample, a head
        is a sample, and all named dims are divided.

        Raises:
            ShapeError: a dim that is a number cannot be divided, an output is divided in part, or
                one head has too few units for the formula.
            InputError: heads is not a positive number, or the cell has a matrix per sample and
                weights.
        """
        check_size("heads", heads, 1, MOST_HEADS)
        base = self.whole or self
        if heads == 1:
            return base
        if base.graph.has_matrices:
            trained = [entry for entry in base.weights if entry.name not in base.constants]
            check_shares_nothing(base.name, trained)
            return replace(base, heads=heads, whole=base)
        if base.division.elementwise:
            return base
        share = Share(base._traced[1], heads, base.division)
        check_divides(base.name, heads, share.how)
        for entry in base.outputs:
            check_parts(base.name, entry, share.how)
        head = replace(base, **base._declared_by(share.entry), share=share)
        graph, cuts = head._traced
        signature = Signature((*base.inputs, *base.static), base.states, base.weights, base.outputs)
        head_copies = copies(graph, signature, share, cuts)

        def results(entries: tuple[Declared, ...], names: frozenset[str]) -> tuple[Declared, ...]:
            return tuple(whole_entry(entry, share, entry.name in names) for entry in entries)

        declared = base._declared_by(lambda entry: whole_entry(entry, share))
        declared["states"] = results(base.states, head_copies.states)
        declared["outputs"] = results(base.outputs, head_copies.outputs)
        return replace(base, **declared, heads=heads, whole=base, copies=head_copies)

    def _declared_by(
        self, declare: Callable[[Declared], Declared]
    ) -> dict[str, tuple[Declared, ...]]:
        """Rewritten arguments and results, by the fields of the cell that hold them."""
        fields = ("inputs", "static", "states", "weights", "outputs")
        return {name: tuple(map(declare, getattr(self, name))) for name in fields}

    @property
    def batch_heads(self) -> int:
        """Number of heads that are samples of the batch; 1 if heads are units."""
        return self.heads if self.copies is None else 1

    @property
    def sample(self) -> Cell:
        """The cell of one sample of the batch: of one head, where heads are samples."""
        return self if self.copies is not None or self.whole is None else self.whole

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, if there are several."""
        return [entry.name for entry in self.outputs] if len(self.outputs) > 1 else []

    @cached_property
    def division(self) -> Division:
        """What heads divide."""
        return division(self.graph)

    def bind(self, input_size: int, hidden_size: int, **dims: int) -> dict[str, int]:
        """Sizes of all named dims (with heads, of one head's part).

        Raises:
            ShapeError: they do not fit.
            InputError: one is no size.
        """
        for name, size in {"input_size": input_size, "hidden_size": hidden_size, **dims}.items():
            check_size(name, size, 0)
        if self.batch_heads > 1:
            sizes = {"input_size": input_size, "hidden_size": hidden_size, **dims}
            scalar = not any(entry.shape for entry in self.inputs[:1])  # its size says nothing
            divided = sizes.keys() - ({"input_size"} if scalar else ())
            return self.sample.bind(**sizes_per_head(sizes, self.heads, divided))
        if self.whole is not None:
            sizes_per_head({"hidden_size": hidden_size}, self.heads, {"hidden_size"})
            first = self.whole.inputs[:1]
            if self.inputs[:1] != first and input_size % self.heads:
                raise ShapeError(
                    f"input_size={input_size} cannot be divided among {self.heads} heads, and "
                    f"{self.name} divides {first[0].name}: its units are those of a state, or "
                    "are multiplied by a matrix that multiplies a state"
                )
            dims = sizes_per_head(dims, self.heads, self.whole.division.dims)
        states = () if self.idle else self.states
        sized, further = states or self.outputs, (*self.static, *self.weights)
        bound = bind_dims(self.inputs, sized, further, input_size, hidden_size, dims)
        check_groups(self.graph, bound, self.heads)
        return bound

    @cached_property
    def graph(self) -> Graph:
        """The graph as written, before any rewrite. Raises TraceError or ShapeError at the cell's
        line."""
        return self._traced[0] if self.copies is None else self.copies.graph

    @cached_property
    def _traced(self) -> tuple[Graph, Cuts]:
        """Trace the function, again after each :class:`UncutError`: the graph, and how dims are
        split."""
        cuts: dict[int, tuple[int, ...]] = {}
        while True:
            try:
                with tracing(Tracing(cuts, self.share)), counting():
                    return traced(self, cuts), cuts
            except UncutError as uncut:
                cuts.update(uncut.cuts)
            except (TraceError, ShapeError) as error:
                if self.share.heads == 1:
                    raise
                raise ShapeError(f"in one of {self.share.heads} heads: {error}") from error

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the formula, the same in every process (:mod:`elman.ir.fingerprint`)."""
        return fingerprint(self.graph, len(self.static))

    def __post_init__(self) -> None:
        # what pickle, and torch.serialization.safe_globals, ask of whatever goes by its name
        function = self.function
        vars(self).update(__module__=function.__module__, __qualname__=function.__qualname__)

    def __reduce__(self) -> Any:
        """A cell is saved as its name, as a function is; with options, heads or changes, as a call
        of :func:`bound_cell`. cloudpickle saves one of ``__main__`` as its code.

        Raises:
            PickleError: the name does not stand for this formula.
        """
        if self.idle:
            return getattr, (replace(self, states=(), idle=False), "recurrent")
        module, name = self.function.__module__, self.function.__qualname__
        if module == "__main__" and is_in_cloudpickle():
            values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
            return _made, ({**values, "init": dict(self.init)},)
        public = look_up(module, name)
        if public is self:
            return name
        if not isinstance(public, Cell):
            raise nameless(module, name, self.where, False)
        options = {k: v for k, v in self.options.items() if public.options.get(k) is not v}
        changes = [change.data for change in self.changes]
        if public.function is not self.function:  # defined again since, maybe the same
            try:
                bound = bound_cell(public, options, self.heads, changes)
                unchanged = bound.fingerprint == self.fingerprint
            except PickleError:
                unchanged = False
            if not unchanged:
                raise nameless(module, name, self.where, True)
        return bound_cell, (public, options, self.heads, *([changes] if changes else []))

    def __copy__(self) -> Cell:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Cell:
        return self


def _made(values: Mapping[str, Any]) -> Cell:
    """Rebuild a cell that was saved as its code."""
    return Cell(**values)


def bound_cell(
    cell: Cell, options: Mapping[str, Any], heads: int = 1, changes: Sequence[Data] = ()
) -> Cell:
    """Rebuild a cell with options, changes and heads from a pickle.

    Raises:
        PickleError: the cell no longer takes them, or its name means something else.
        InputError: they are not options, heads or changes.

    Example:
        >>> ready = elman.bound_cell(elman.cells.gru, {})
        >>> ready.name
        'gru'
    """
    cell = same_cell(cell)
    options = check_mapping("options", options, "elman.bound_cell(cell, {})")
    check_list("changes", changes, 'changes=[("Zoneout", {"share": 0.1})]')
    try:
        changed_cell = cell.with_options(**options).with_changes(*map(change_of, changes))
        return changed_cell.with_heads(heads)
    except (TraceError, ShapeError, KeyError) as error:
        raise changed(cell.name, cell.where, str(error).partition("\n")[0]) from None


def same_cell(value: Any, saved: str | None = None) -> Cell:
    """Check that an object is a cell, and that its fingerprint is the saved one, if given.

    Raises:
        PickleError: it is not.
    """
    if not isinstance(value, Cell):
        raise PickleError(f"a cell was saved, but its name now refers to {shown(value)}")
    if saved not in (None, value.fingerprint):
        difference = f"its formula was {saved}, and is {value.fingerprint}"
        raise changed(value.name, value.where, difference)
    return value


def find_cell(
    module: str, name: str, options: dict[str, Any], heads: int = 1, changes: Sequence[Data] = ()
) -> Cell:
    """The cell of a module by its name, with options, heads and changes: for exported programs, and
    for pickles of versions that saved names as text.

    Raises:
        PickleError: there is no such cell.
    """
    cell = look_up(module, name)
    if cell is None:
        raise PickleError(f"a cell was saved as {module}.{name}, which no longer exists")
    return bound_cell(cell, options, heads, changes)


MOST_HEADS = 16_384
_EXAMPLE = '@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")'


def _bare(function: Any) -> str:
    """Error message for ``@cell`` without arguments."""
    code = getattr(function, "__code__", None)
    where = line_of(code.co_filename, code.co_firstlineno) if code else repr(function)
    return diagnostic(
        "@cell does not say what the function's arguments are", [("at", where)], _EXAMPLE
    )


def _unknown(name: str) -> str:
    """Error message for an unknown argument of ``@cell``."""
    takes = [
        p.name for p in inspect.signature(cell).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    near = get_close_matches(name, takes, 1)
    message = f"@cell takes no argument {name!r} (it takes: {', '.join(takes)})"
    return diagnostic(message, [("at", where_called())], f"{near[0]}=…" if near else _EXAMPLE)


def cell(
    bare: None = None,
    /,
    *,
    input: str = "",  # the signature's own word
    static: str = "",
    state: str = "",
    weights: str = "",
    constants: str = "",
    output: str | None = None,
    init: Mapping[str, Init] | None = None,
    source: str = "",
    **unknown: Never,
) -> Callable[[Callable[..., Any]], Cell]:
    """Declare the decorated function as a recurrent cell.

    Args:
        input: per-step inputs, e.g. ``"x[I]"`` or ``"x[I], m"``; a bare name is a scalar per
            sample.
        static: inputs with one value per sequence, e.g. ``"s[S]"``, which all steps read:
            ``net(x, static=s)``. Values that depend only on them and on weights are computed once
            per sequence.
        state: states in order, e.g. ``"h[H], c[H]"``; the function returns them in this order. A
            formula without states is a layer that is not recurrent: :attr:`Cell.recurrent`.
        weights: trained matrices, vectors and scalars in order, e.g.
            ``"W[4H, I], R[4H, H], b[4H]"``.
        constants: matrices, vectors and scalars that are never trained, such as masks and fixed
            matrices: ``"A[M, M], mask[H, H]"``. Pass them to the module,
            ``Recurrent(cell, …, A=…)``, or set them by ``init=``.
        output: values returned *first*, before the next states, e.g. ``"y[P]"`` or ``"y[P], s"``.
            With several outputs a module returns a tuple, and the layer above reads the first.
            Default: the first state.
        init: initial values of weights, constants and states by name: a number; a scheme
            (``"orthogonal"``, ``"eye"``, ``"xavier_uniform"``, ``"zeros"`` …); a tensor or numpy
            array of the declared shape, which is copied; or a function that fills the tensor passed
            to it, or returns its value. Other weights are drawn from U(-1/√H, 1/√H) as in torch;
            other states are zero.
        source: the publication of the formula.

    Returns:
        A decorator that makes a :class:`Cell` of ``function(*inputs, *static, *states, *weights,
        *constants, *, **options)``.

    Raises:
        TraceError: a signature cannot be read, the arguments do not match it, or the function does
            something that is not a formula.
        ShapeError: shapes inside the formula do not fit.

    Example:
        >>> @elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
        ... def plain(x, h, W, R):
        ...     return elman.ops.tanh(W @ x + R @ h)
        ...
        >>> net = elman.Recurrent(plain, 8, 16)
    """

    if bare is not None:
        raise TraceError(_bare(bare))
    for name in unknown:
        raise TraceError(_unknown(name))

    def decorate(function: Callable[..., Any]) -> Cell:
        if not inspect.isfunction(function):
            message = f"@cell decorates a function, not {shown(function)}"
            raise TraceError(message, f"{_EXAMPLE} above def …")
        code = function.__code__
        where = line_of(code.co_filename, code.co_firstlineno)
        parsed = (
            parse_signature("input", input, 2, where),
            parse_signature("static", static, 2, where),
            parse_signature("state", state, 2, where),
            parse_signature("weights", weights, 2, where),
            parse_signature("constants", constants, 2, where),
        )
        inputs, statics, states, trained, fixed = parsed
        outputs = () if output is None else parse_signature("output", output, 2, where)
        beginning = check_mapping("init", init, 'init={"W": "orthogonal", "b": 0.0}')
        check_text("source", source, 'source="where the formula comes from"')
        if not states and not outputs:
            message = "a recurrent cell has at least one state"
            alternative = ("without one", 'output="y[H]" names what a formula returns')
            raise TraceError(diagnostic(message, [("at", where), alternative], _EXAMPLE))
        check_declared(function, parsed, fixed, where)
        for name, scheme in beginning.items():
            check_init(name, scheme, (*trained, *fixed), states, where)
        cell = Cell(
            function.__name__,
            inputs,
            statics,
            states,
            (*trained, *fixed),
            outputs,
            function,
            defaults_of(function),
            constants=frozenset(entry.name for entry in fixed),
            init=MappingProxyType(beginning),
            source=source,
        )
        _ = cell.graph  # a mistake is reported where the cell is written, not where it is used
        return cell

    return decorate
