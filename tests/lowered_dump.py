"""A lowered direction as text that a person reads."""

from __future__ import annotations

from collections.abc import Iterator

from elman.ir.types import GateBlock, show_dim
from elman.lowered.types import (
    Acc,
    Access,
    Accumulate,
    Across,
    Affine,
    Along,
    Const,
    Copy,
    Direction,
    Let,
    Load,
    Matrix,
    MatVec,
    Moved,
    Multiply,
    Once,
    Op,
    Outer,
    Part,
    Prefetch,
    Product,
    Reduce,
    Ref,
    RowSum,
    Space,
    Statement,
    Store,
    Transpose,
    Value,
    WeightRate,
)

_ARRAYS = (Space.INPUT, Space.STATE, Space.GATHERED, Space.D_INPUT, Space.WEIGHT, Space.D_WEIGHT)


def show_access(access: Access) -> str:
    """``tape[16:21]``, of the next step ``st0'[0:5]``, a scalar ``scalar[2]``."""
    region, first = access.region, access.offset
    name = f"{region.space.value}{region.array if region.space in _ARRAYS else ''}"
    units = "" if access.scalar else f":{first + access.units}"
    units += f" + {access.group}g" if access.group else ""
    return f"{name}{chr(39) if access.step else ''}[{first}{units}]"


def _matrix(matrix: Matrix) -> str:
    return f"{show_access(matrix.access)}*{matrix.rows}"


def show_value(value: Value) -> str:
    """A value as a formula of registers ``x0``, ``x1`` …"""
    match value:
        case Ref(index):
            return f"x{index}"
        case Const(number):
            return f"{number:g}"
        case Load(access):
            return show_access(access)
        case Acc(product, index):
            return f"product{product}.{index}"
        case Op(name, args):
            return f"{name}({', '.join(map(show_value, args))})"
        case Affine(coefs, bias, args):
            terms = [
                f"{show_value(arg)}" if coef == 1 else f"{coef:g}·{show_value(arg)}"
                for coef, arg in zip(coefs, args, strict=True)
            ]
            return " + ".join([*terms, *([f"{bias:g}"] if bias or not terms else [])])
        case Reduce(name, columns):
            return f"{name}({', '.join(map(show_access, columns))})"
        case Across(name, column, groups, width):
            return f"{name}({show_access(column)}, {groups}x{width})"
        case Along(access, axis):
            return f"{show_access(access)} along {axis}"
        case Moved(name, access, down=down):
            return f"{name}({show_access(access)}, {down})"


def _statements(statements: tuple[Statement, ...]) -> Iterator[str]:
    count = 0
    for statement in statements:
        match statement:
            case Let(value):
                yield f"x{count} = {show_value(value)}"
                count += 1
            case Store(access, value):
                yield f"{show_access(access)} <- {show_value(value)}"
            case Accumulate(targets, value, axis):
                names = " ".join(map(show_access, targets))
                yield f"{names} <- sum of {f'{axis} of ' if axis else ''}{show_value(value)}"
            case Multiply(targets, left, right, transposed=transposed):
                names = " ".join(map(show_access, targets))
                sides = [
                    show_access(side) + ("ᵀ" if swapped else "")
                    for side, swapped in zip((left, right), transposed, strict=True)
                ]
                yield f"{names} <- {' @ '.join(sides)}"
            case Prefetch(access, write):
                yield f"prefetch {'for writing ' if write else ''}{show_access(access)}"


def _product(number: int, product: Product) -> str:
    accs = [
        " + ".join(
            f"{_matrix(term.matrix)}{'ᵀ' if term.transposed else ''} @ {show_access(operand)}"
            for term, operand in zip(acc, product.operands, strict=True)
        )
        for acc in product.accs
    ]
    return f"product{number} = [{' ; '.join(accs)}]"


def _part(part: Part, label: GateBlock) -> Iterator[str]:
    groups = f"g in {part.groups}, " if part.groups > 1 else ""
    units = "u" if part.axes is None else "row, u"
    yield f"  for {groups}r, {units} in {show_dim((label,))}:"
    for number, product in enumerate(part.products):
        yield f"    {_product(number, product)}"
    for line in _statements(part.body):
        yield f"    {line}"


def _once(computed: WeightRate) -> str:
    match computed:
        case Copy(target, source):
            return f"{show_access(target)} <- {show_access(source)}"
        case Once(_, _, store):
            return f"{show_access(store.access)} <- {show_value(store.value)}"
        case MatVec(target, matrix, vector, transposed):
            mark = "ᵀ" if transposed else ""
            return f"{show_access(target)} <- {_matrix(matrix)}{mark} @ {show_access(vector)}"
        case Outer(target, left, right):
            return f"{_matrix(target)} <- {show_access(left)} ⊗ {show_access(right)}"
        case Transpose(target, source):
            return f"{_matrix(target)} <- {_matrix(source)}ᵀ"


def _sum(term: RowSum) -> str:
    target = term.target.access if isinstance(term.target, Matrix) else term.target
    right = "" if term.right is None else f" ⊗ {show_access(term.right)}"
    return f"{show_access(target)} += Σ {show_access(term.left)}{right}"


def show_direction(direction: Direction) -> str:
    """A direction: what is computed once, each phase by segments, sums over rows."""
    lines = [direction.name]
    lines += [f"  once {_once(computed)}" for computed in direction.setup]
    for phase in direction.phases:
        for segment in phase.segments:
            lines.append(f"{phase.name}{' (wait)' if segment.sync else ''}")
            lines += [f"  for r: {line}" for line in _statements(segment.scalars)]
            for part in segment.parts:
                lines += _part(part, part.gate_block)
    lines += [f"  {_sum(term)}" for term in direction.sums]
    lines += [f"  once {_once(computed)}" for computed in direction.finish]
    return "\n".join(lines)
