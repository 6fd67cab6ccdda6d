"""What how_we_test.md counts: test functions, random cases and their seeds, campaigns.

Counts are read from the texts of the tests, so that neither a copy of them nor a run is needed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from results_page import folded, grid

from elman import cells

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
TIERS = {"make test": "ci", "make test-long": "long"}  # the profile of hypothesis in each
MANY = 20  # seeds of a test that has a row of its own
Names = dict[str, Any]


@dataclass
class Test:
    """One test function.

    Attributes:
        file: below tests/.
        marks: what pytest.mark is asked for in front of it, or for its whole file.
        examples: how many hypothesis draws, by tier; parameters of a test multiply them.
        seeds: from which the test draws by itself, by tier.
    """

    file: str
    name: str
    marks: set[str]
    examples: dict[str, int] = field(default_factory=dict)
    seeds: dict[str, set[int]] = field(default_factory=dict)

    @property
    def tiers(self) -> list[str]:
        """Those in which the test runs."""
        return [tier for tier in TIERS if tier == "make test-long" or "long" not in self.marks]


def functions(root: Path) -> list[Test]:
    """Every test function below a folder whose conftest.py has the profiles of hypothesis."""
    conftest = (root / "conftest.py").read_text("utf-8")
    profiles = {
        name: int(count)
        for name, count in re.findall(r'register_profile\("(\w+)", max_examples=(\d+)', conftest)
    }
    return [
        test
        for path in sorted(root.rglob("test_*.py"))
        for test in _tests(path.relative_to(root).as_posix(), path.read_text("utf-8"), profiles)
    ]


def _tests(file: str, text: str, profiles: Mapping[str, int]) -> Iterator[Test]:
    """The test functions of a file."""
    tree, shared = ast.parse(text), dict[str, Names]()
    for tier, profile in TIERS.items():
        step = (lambda n, values: values) if profile == "long" else (lambda n, values: values[::n])
        usual = SimpleNamespace(max_examples=profiles[profile])
        shared[tier] = {"range": range, "max": max, "every": step, "settings": lambda u=usual: u}
        _assign(tree.body, shared[tier])
    whole = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for name, _ in _marks(getattr(node.value, "elts", [node.value]))
    }
    classes = (node.body for node in tree.body if isinstance(node, ast.ClassDef))
    for node in chain(tree.body, *classes):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found = Test(file, node.name, whole | {name for name, _ in _marks(node.decorator_list)})
            for tier in found.tiers:
                found.examples[tier] = _examples(node, shared[tier]) if "@given" in text else 0
                found.seeds[tier] = _seeds(node, shared[tier]) if "seed" in text else set()
            yield found


def _value(node: ast.expr, names: Names) -> Any:
    """The value of an expression of the names, or None: most are of no concern here."""
    try:
        return eval(compile(ast.Expression(node), "tests", "eval"), {"__builtins__": {}}, names)
    except Exception:
        return None


def _assign(body: Iterable[ast.stmt], names: Names) -> None:
    """Add the constants of a file, or of a function, to the names."""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if (value := _value(node.value, names)) is not None:
                names[node.targets[0].id] = value


def _marks(asked: Iterable[ast.expr]) -> Iterator[tuple[str, list[ast.expr]]]:
    """Names and arguments of each pytest.mark among decorators."""
    for node in asked:
        of, given = (node.func, node.args) if isinstance(node, ast.Call) else (node, [])
        if (text := ast.unparse(of)).startswith("pytest.mark."):
            yield text.removeprefix("pytest.mark."), given


def _examples(test: ast.FunctionDef, names: Names) -> int:
    """How many examples hypothesis draws for a test, and for functions inside of it."""
    count = 0
    for node in ast.walk(test):
        if isinstance(node, ast.FunctionDef):
            calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
            by_name = {ast.unparse(each.func): each.keywords for each in calls}
            asked = {each.arg: each.value for each in by_name.get("settings", ())}
            if "given" in by_name:
                usual = names["settings"]().max_examples
                count += _value(asked["max_examples"], names) if "max_examples" in asked else usual
    return count


def _seeds(test: ast.FunctionDef, names: Names) -> set[int]:
    """The numbers that a parameter ``seed`` of a test takes, and loops over ``seed`` in it."""
    options: dict[str, Sequence[Any]] = {}
    for mark, given in _marks(test.decorator_list):
        if mark == "parametrize":
            name, values = _value(given[0], names), _value(given[1], names)
            if isinstance(values, Sequence) and str(name).isidentifier():
                options[name] = values
    found = set(options.get("seed", ()))
    loops = [  # a list of what seeds draw runs nothing of it
        node.iter
        for node in ast.walk(test)
        if isinstance(node, ast.For) and getattr(node.target, "id", "") == "seed"
    ]
    for values in product(*options.values()) if loops else ():
        own = names | dict(zip(options, values, strict=True))
        _assign(test.body, own)
        found = found.union(*(_value(loop, own) or () for loop in loops))
    return {seed for seed in found if isinstance(seed, int)}


def page() -> str:
    """What the page shows: sums, random cases by file, functions by folder."""
    found = functions(TESTS)
    return "\n".join([*_sums(found), *_random(found), *_folders(found)])


def _sums(found: Sequence[Test]) -> Iterator[str]:
    texts = sum(1 for _ in (TESTS / "golden").rglob("*.txt"))
    yield f"The tests are {len(found):,} functions, most of them with parameters. They read {texts}"
    yield f"golden texts, and run the {len(cells.ALL)} cells of the library.\n"
    lines = []
    for tier in TIERS:
        own = [test for test in found if tier in test.examples]
        drawing = [test.examples[tier] for test in own if test.examples[tier]]
        seeds = sum(len(test.seeds[tier]) for test in own if _many(test))
        counts = (len(own), len(drawing), sum(drawing), seeds)
        lines.append((f"`{tier}`", *(f"{count:,}" for count in counts)))
    headers = (
        "",
        "test functions",
        "with cases of hypothesis",
        "cases",
        f"seeds, if {MANY} or more",
    )
    yield from grid(headers, lines)


def _many(test: Test) -> bool:
    return len(test.seeds["make test-long"]) >= MANY


def _random(found: Sequence[Test]) -> Iterator[str]:
    """Random cases by file."""
    by_file = defaultdict[str, list[Test]](list)
    for test in found:
        if test.examples["make test-long"] or _many(test):
            by_file[test.file].append(test)
    lines = []
    for file, own in by_file.items():
        cases = [sum(_cases(test, tier) for test in own) for tier in TIERS]
        seeds = set[int]().union(*(test.seeds["make test-long"] for test in own if _many(test)))
        lines.append((f"`tests/{file}`", *(f"{count:,}" for count in cases), _spans(seeds) or "–"))
    headers = ("file", *(f"`{tier}`" for tier in TIERS), "seeds")
    yield from folded(f"Random cases of {len(lines)} files", grid(headers, lines))


def _cases(test: Test, tier: str) -> int:
    return test.examples.get(tier, 0) + len(test.seeds.get(tier, ())) * _many(test)


def _spans(numbers: Iterable[int]) -> str:
    """Numbers as spans: 0 to 39, 100."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in spans)


def _folders(found: Sequence[Test]) -> Iterator[str]:
    """Test functions by folder."""
    counts = Counter(f"tests/{test.file}".rpartition("/")[0] for test in found)
    lines = [(f"`{folder}`", str(count)) for folder, count in sorted(counts.items())]
    headers = ("folder", "test functions")
    yield from folded(f"Test functions of {len(lines)} folders", grid(headers, lines))


def campaigns() -> str:
    """A table of the scripts that draw for hours: what each asks, and how it is called."""
    lines = []
    for path in sorted((ROOT / "benchmarks" / "robustness").glob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if command := re.search(
            rf"^    python (\S+/{path.name} --?\S[^\[\n]*|\S+/{path.name} )", doc, re.M
        ):
            asks = " ".join(doc.partition("\n\n")[0].split()).replace("``", "`")
            lines.append((f"`{command[1].strip()}`", asks))
    return "\n".join(grid(("campaign", "what it asks"), lines))
