"""Triton code as data: expressions of variables, statements; slices, dead code and text of them.

Writers emit statements; nothing reads or changes the text that is printed of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from string import Formatter


@dataclass(frozen=True)
class Var:
    """A variable of a kernel, or one of its arguments that are arrays."""

    name: str


@dataclass(frozen=True)
class Code:
    """An expression: text and variables in their order."""

    parts: tuple[str | Var, ...]

    @property
    def uses(self) -> Iterator[str]:
        """Names of its variables."""
        return (part.name for part in self.parts if isinstance(part, Var))

    def __str__(self) -> str:
        return "".join(part.name if isinstance(part, Var) else part for part in self.parts)


Operand = Var | Code | str | int | float


@dataclass(frozen=True)
class Statement:
    """``targets = value``; ``value`` without targets; with a body ``for targets in value:``, or
    ``value:``.

    Attributes:
        sign: between targets and value: ``=`` or ``+=``.
    """

    value: Code
    targets: tuple[Var, ...] = ()
    sign: str = "="
    body: tuple[Statement, ...] = ()


def code(template: str, *operands: Operand, **named: Operand) -> Code:
    """An expression from a template of ``str.format`` and what fills its fields."""
    parts: list[str | Var] = []
    rest = iter(operands)
    for literal, field in _fields(template):
        if literal:
            parts.append(literal)
        if field is None:
            continue
        if field == "":
            operand = next(rest)
        else:
            operand = operands[int(field)] if field.isdecimal() else named[field]
        if isinstance(operand, Code):
            parts += operand.parts
        else:
            parts.append(operand if isinstance(operand, Var) else str(operand))
    return Code(tuple(parts))


@lru_cache(maxsize=1024)
def _fields(template: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((literal, field) for literal, field, _, _ in Formatter().parse(template))


def assign(target: Var, template: str | Code, *operands: Operand) -> Statement:
    """A variable's definition."""
    value = template if isinstance(template, Code) else code(template, *operands)
    return Statement(value, (target,))


def joined(operands: Iterable[Operand], separator: str = ", ") -> Code:
    """Expressions side by side."""
    terms = list(operands)
    return code(separator.join(["{}"] * len(terms)), *terms)


def defined(statements: Iterable[Statement]) -> list[str]:
    """The names that statements define, in order."""
    names: dict[str, None] = {}
    for statement in statements:
        names.update(dict.fromkeys(target.name for target in statement.targets))
        names.update(dict.fromkeys(defined(statement.body)))
    return list(names)


def free(statements: Iterable[Statement]) -> list[str]:
    """The names that statements use and do not define before, in order: a kernel's arguments."""
    known: set[str] = set()
    names: dict[str, None] = {}

    def visit(each: Iterable[Statement]) -> None:
        for statement in each:
            names.update(dict.fromkeys(n for n in statement.value.uses if n not in known))
            known.update(target.name for target in statement.targets)
            visit(statement.body)

    visit(statements)
    return list(names)


def substituted(statements: Iterable[Statement], names: Mapping[str, str]) -> list[Statement]:
    """Statements with other variables in the place of some."""

    def put(part: str | Var) -> str | Var:
        return Var(names.get(part.name, part.name)) if isinstance(part, Var) else part

    return [
        replace(
            statement,
            value=Code(tuple(map(put, statement.value.parts))),
            targets=tuple(Var(names.get(t.name, t.name)) for t in statement.targets),
            body=tuple(substituted(statement.body, names)),
        )
        for statement in statements
    ]


def live(statements: Sequence[Statement], read: set[str]) -> list[Statement]:
    """Assignments without those that nothing reads; ``read``: names that are read afterwards, to
    which those are added that are read here."""
    used: list[Statement] = []
    for statement in reversed(statements):
        if any(target.name in read for target in statement.targets):
            used.append(statement)
            read.update(statement.value.uses)
    return used[::-1]


def printed(statements: Iterable[Statement], indent: int = 0) -> list[str]:
    """Lines of statements."""
    lines: list[str] = []
    for statement in statements:
        text, has_body = str(statement.value), bool(statement.body)
        if statement.targets:
            targets = ", ".join(target.name for target in statement.targets)
            text = f"for {targets} in {text}" if has_body else f"{targets} {statement.sign} {text}"
        lines.append("    " * indent + text + ":" * has_body)
        lines += printed(statement.body, indent + 1)
    return lines


def kernel(
    name: str, arguments: Iterable[str], statements: Iterable[Statement], unspecialised: list[str]
) -> str:
    """The text of a kernel; ``unspecialised``: arguments for whose values it is not compiled
    anew."""
    head = f"def {name}({', '.join(arguments)}):"
    decorator = f"@triton.jit(do_not_specialize={unspecialised})"
    return "\n".join([decorator, head, *printed(statements, 1), ""])


def with_heads(arrays: Sequence[str], axis: int) -> tuple[list[str], list[Statement]]:
    """A kernel's arguments with strides from head to head, and the statements that go to a
    program's head; ``axis``: of the grid of programs."""
    own = [name for name in arrays if "_" not in name]  # else a stride
    head = f"tl.program_id({axis}).to(tl.int64)"
    offsets = [Statement(code(f"{head} * {name}_h"), (Var(name),), "+=") for name in own]
    return [*arrays, *(f"{name}_h" for name in own)], offsets
