"""Docstrings name parameters and attributes that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "benchmarks", "tests")
HEADING = re.compile(r"^ +(?:Args|Attributes):$", re.MULTILINE)
BASES = re.compile(r"^class \w+\((\w+)", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes):\n((?:    .*\n?|\n)+)", re.MULTILINE)
SHAPE = re.compile(r"\[[^]]*\]|\([^)]*\)")
ENTRY = re.compile(r"^    ([\w*]+(?:(?:, | and )[\w*]+)*)[^:\n]*:(?!:)", re.MULTILINE)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(node: ast.Module | Definition) -> Iterator[Definition]:
    """The functions and classes in a module, nested ones too, but none within an ``if``."""
    for inner in node.body:
        if isinstance(inner, Definition):
            yield inner
            yield from definitions(inner)


def entries(node: Definition) -> Iterator[tuple[str, str]]:
    """Section and name of each entry of a docstring."""
    for section, text in SECTION.findall(ast.get_docstring(node) or ""):
        for names in ENTRY.findall(SHAPE.sub("", text)):
            yield from ((section, name.strip("*")) for name in re.split(", | and ", names))


def parameters(node: Definition, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The names of what a function takes, or a class: by its own or a base's ``__init__``, or as
    fields."""
    if isinstance(node, ast.ClassDef):
        for ancestor in lineage(node, classes):
            for inner in ancestor.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    return parameters(inner, classes)
        return attributes(node, classes)
    args = node.args
    starred = [arg for arg in (args.vararg, args.kwarg) if arg]
    return {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *starred)}


def lineage(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """A class and its bases, depth first."""
    yield node
    for base in map(ast.unparse, node.bases):
        if base in classes and base != node.name:
            yield from lineage(classes[base], classes)


def attributes(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """What a class and its bases define, annotate or assign to ``self``."""
    names: set[str] = set()
    for ancestor in lineage(node, classes):
        names |= {inner.name for inner in ancestor.body if isinstance(inner, Definition)}
        for inner in ast.walk(ancestor):
            match inner:
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    names.add(name)
    return names


def complaints(trees: dict[str, ast.Module]) -> Iterator[str]:
    """A line for each entry that names nothing."""
    found = [(file, node) for file, tree in trees.items() for node in definitions(tree)]
    classes = {node.name: node for _, node in found if isinstance(node, ast.ClassDef)}
    for file, node in found:
        for section, name in entries(node):
            if section == "Args":
                known = parameters(node, classes)
            else:
                known = attributes(node, classes) if isinstance(node, ast.ClassDef) else set()
            if name not in known:
                yield f"{file}:{node.lineno}: {section}: {name!r} of {node.name}"


@pytest.mark.slow
def test_entries_name_what_exists():
    """``Args`` are a function's parameters or a class's fields, ``Attributes`` are a class's."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    documented = {file for file, text in texts.items() if HEADING.search(text)}
    bases = {name for file in documented for name in BASES.findall(texts[file])}
    defined = re.compile(rf"^class (?:{'|'.join(bases)})\b", re.MULTILINE)
    trees = {
        file: ast.parse(text)
        for file, text in texts.items()
        if file in documented or defined.search(text)  # all 940 files take three times as long
    }
    assert len(trees) > 300
    wrong = [*complaints(trees)]
    assert not wrong, "\n".join(wrong)


def test_entries_of_nothing_are_found():
    """Of functions, of fields, of attributes in ``__init__``; names in shapes are none."""
    text = '''
class Base:
    def __init__(self, size):
        self.size = size

class Derived(Base):
    """Sizes.

    Args:
        size, length: of each.

    Attributes:
        size [T, B]: of each.
        width: of each.
    """

def scaled(x, *, by):
    """Scale.

    Args:
        x [T, B]: values.
        factor: number.

    Returns:
        result: values.
    """
'''
    found = [line.rpartition(": ")[2] for line in complaints({"x.py": ast.parse(text)})]
    assert found == ["'length' of Derived", "'width' of Derived", "'factor' of scaled"]
