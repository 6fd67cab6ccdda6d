"""Statements: what they define and use, substitution, dead code, text."""

from __future__ import annotations

from elman.engines.triton.statements import (
    Statement,
    Var,
    assign,
    code,
    defined,
    free,
    live,
    printed,
    substituted,
)

A, B, C, INDEX = map(Var, "abci")
BODY = [
    assign(A, "tl.load({} + {})", Var("x"), 3),
    Statement(code("range({})", B), (INDEX,), body=(assign(C, "{} * {} + b", A, INDEX),)),
    Statement(code("lib.put({}, {})", Var("y"), C)),
]


def test_names():
    """In order; the variable of a loop, and what a body defines, are not free."""
    assert defined(BODY) == ["a", "i", "c"]
    assert free(BODY) == ["x", "b", "y"]
    assert free([assign(A, "{} + 1", A)]) == ["a"]


def test_substitution():
    """Variables alone, in targets, expressions and bodies; text that looks like one stays."""
    lines = printed(substituted(BODY, {"a": "a_0", "b": "b_0", "c": "c_0"}))
    assert lines == [
        "a_0 = tl.load(x + 3)",
        "for i in range(b_0):",
        "    c_0 = a_0 * i + b",
        "lib.put(y, c_0)",
    ]


def test_dead_code():
    """What nothing reads goes, and what only that reads; the names read before are told."""
    statements = [assign(A, "1"), assign(B, "{}", A), assign(C, "{} + {}", A, Var("x"))]
    read = {"c"}
    assert printed(live(statements, read)) == ["a = 1", "c = a + x"]
    assert read == {"a", "c", "x"}


def test_templates():
    """Fields by place, by number, by name; expressions are put in as they are."""
    inner = code("{0} + {0}", A)
    assert str(code("f({}, {unit})", inner, unit=2.5)) == "f(a + a, 2.5)"
    assert list(inner.uses) == ["a", "a"]
