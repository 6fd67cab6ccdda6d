"""Other pictures of a graph: a layer norm as one shape, the forward alone, parameters as shapes,
symbols alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter

from elman.drawing.picture import Line, Mark, Picture

_CHAIN = {"+", "sqrt", "1 / ·"}  # from a variance to what its operands are multiplied by


def collapse_norms(picture: Picture) -> Picture:
    """The picture with each layer norm as one shape, which reads what is normalised."""
    for key, mark in picture.marks.items():
        if mark.label == "var" and mark.kind == "function":
            group = _norm(picture, key)
            if group is not None:
                return collapse_norms(_merge(picture, group))
    return picture


def forward_only(picture: Picture) -> Picture:
    """The picture without what the backward adds at its shapes and lines."""
    marks = {
        key: replace(mark, back="", back_name="", back_tag="", reads=False)
        for key, mark in picture.marks.items()
    }
    lines = [replace(line, back="", red=False) for line in picture.lines]
    return Picture(picture.title, picture.subtitle, marks, lines)


def symbols_alone(picture: Picture) -> Picture:
    """The picture without weights and factors: what is legible where it is small."""
    red = {line.head for line in picture.lines if line.red}
    marks = {
        key: replace(
            mark,
            back=_symbol(mark),
            back_name="",
            tag="",
            back_tag="",
            reads=mark.reads or key in red,
        )
        for key, mark in picture.marks.items()
    }
    lines = [replace(line, back="", red=False) for line in picture.lines]
    return Picture(picture.title, "", marks, lines)


def _symbol(mark: Mark) -> str:
    """What stands in the mirror of a shape: its operation, of a function the derivative."""
    if mark.kind == "function" and "·" not in mark.label:
        return f"{mark.label}′"
    return f"d{mark.label}" if mark.kind in ("next", "output") else mark.back


def parameters_as_nodes(picture: Picture) -> Picture:
    """The picture with each parameter, or value of parameters alone, as a leaf, whose mirror is
    its gradient."""
    leaves: dict[str, Mark] = {}
    marks: dict[str, Mark] = {}
    lines = [*picture.lines]
    for key, mark in picture.marks.items():
        names, gradients = _parts(mark.tag), _parts(mark.back_tag)
        numbers = [name for name in names if re.fullmatch(r"[-+\d.e]+", name)]
        for name in [name for name in names if name not in numbers]:
            leaf = leaves.setdefault(name, Mark(f"parameter {name}", "parameter", name, ""))
            leaf.zone = min(leaf.zone, mark.zone)
            leaf.back = leaf.back or next(
                (d for d in gradients if d in (f"∂{name}", f"∂({name})")), ""
            )
            lines.append(Line(leaf.key, key))
        marks[key] = replace(mark, tag=", ".join(numbers), back_tag="")
    marks = {leaf.key: leaf for leaf in leaves.values()} | marks
    return Picture(picture.title, picture.subtitle, marks, lines)


def _parts(tag: str) -> list[str]:
    """The values in a tag, between commas outside of brackets."""
    return [part for part in re.split(r", (?![^()]*\))", tag) if part]


def _norm(picture: Picture, variance: str) -> set[str] | None:
    """The shapes of a layer norm around its variance; None if others read what is inside."""
    marks, tails = picture.marks, _tails(picture.lines)
    normalised = set(tails[variance])
    means = [
        key
        for key, mark in marks.items()
        if mark.label == "mean" and set(tails.get(key, ())) == normalised
    ]
    if not means:
        return None
    mean = means[0]
    factors = {variance}
    for key, mark in marks.items():  # each behind those that it reads
        read = set(tails.get(key, ()))
        if mark.label in _CHAIN and read and read <= factors:
            factors.add(key)
    centred = {
        key
        for key, mark in marks.items()
        if mark.kind == "sum" and mean in tails[key] and set(tails[key]) <= {mean, *normalised}
    }
    results = {
        key
        for key, mark in marks.items()
        if mark.kind == "times" and set(tails[key]) & centred and set(tails[key]) & factors
    }
    inside = {mean, *factors, *centred}
    group = inside | results
    outside = [line for line in picture.lines if line.tail in inside and line.head not in group]
    return None if outside or not results else group


def _merge(picture: Picture, group: set[str]) -> Picture:
    """The picture with these shapes as one."""
    members = [mark for key, mark in picture.marks.items() if key in group]
    joint = Mark(
        key=" ".join(mark.key for mark in members),
        kind="function",
        label="layer norm",
        back="layer norm′",
        needed=any(mark.needed for mark in members),
        taped=any(mark.taped for mark in members),
        reads=any(mark.needed for mark in members),
        zone=min(mark.zone for mark in members),
    )
    lines = dict.fromkeys(
        line if group.isdisjoint((line.tail, line.head)) else _redirect(line, group, joint.key)
        for line in picture.lines
        if not group.issuperset((line.tail, line.head))
    )
    marks = {key: mark for key, mark in picture.marks.items() if key not in group}
    marks[joint.key] = joint
    tails = _tails(lines)
    order = TopologicalSorter({key: tails.get(key, ()) for key in marks}).static_order()
    return Picture(picture.title, picture.subtitle, {key: marks[key] for key in order}, [*lines])


def _redirect(line: Line, group: set[str], key: str) -> Line:
    """A line into or out of the group; what flows back into it is inside the shape."""
    if line.head in group:
        return Line(line.tail, key)
    return replace(line, tail=key)


def _tails(lines: Iterable[Line]) -> Mapping[str, list[str]]:
    """The values that each shape reads."""
    tails: dict[str, list[str]] = {}
    for line in lines:
        tails.setdefault(line.head, []).append(line.tail)
    return tails
