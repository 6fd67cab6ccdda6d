"""Formulas of the pages as MathML, which browsers render without a script and without a network.

The part of TeX that the pages use: letters, ``_`` and ``^``, groups, ``\\frac``, ``\\text``,
accents, ``aligned`` and ``cases``, and the symbols below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from docutils import nodes

_TOKEN = re.compile(r"\\[A-Za-z]+|\\\\|\\[^A-Za-z]|\d+(?:\.\d+)?|\S")
LETTERS = {
    "alpha": "α", "beta": "β", "theta": "θ", "lambda": "λ", "delta": "δ", "sigma": "σ",
    "varphi": "φ", "Theta": "Θ", "infty": "∞", "top": "⊤",
}  # fmt: skip
SYMBOLS = {
    "partial": "∂", "sum": "∑", "cdot": "·", "circ": "∘", "odot": "⊙", "otimes": "⊗", "oplus": "⊕",
    "to": "→", "le": "≤", "ge": "≥", "in": "∈", "dots": "…", "lfloor": "⌊", "rfloor": "⌋",
    "times": "×", "mid": "|", "prime": "′", "approx": "≈", "leftarrow": "←",
}  # fmt: skip
FUNCTIONS = {"tanh", "exp", "log", "max", "min"}
SPACES = {"quad": "1em", "qquad": "2em", ",": "0.17em", ";": "0.28em", " ": "0.3em"}
ACCENTS = {"dot": "˙", "bar": "¯", "tilde": "~", "hat": "^"}


class FormulaError(ValueError):
    """A formula uses TeX that is not in the tables above."""


def mathml(tex: str, block: bool = False, number: str = "") -> str:
    """A formula as an element ``math``.

    Args:
        tex: the formula.
        block: whether it stands on a line of its own.
        number: of an equation, at its right.

    Raises:
        FormulaError: a command is unknown, or a group does not end.
    """
    reader = _Reader(tex)
    body = reader.row(())
    if reader.tokens:
        raise FormulaError(f"{tex!r} has an end without a beginning: {reader.tokens[0]}")
    if not block:
        return f"<math>{body}</math>"
    label = f'<span class="eqno">({number})</span>' if number else ""
    return f'<div class="math-block"><math display="block">{body}</math>{label}</div>\n'


class _Reader:
    def __init__(self, tex: str) -> None:
        self.tex, self.tokens = tex, _TOKEN.findall(tex)
        self.texts: list[str] = re.findall(r"\\(?:text|mathrm)\{([^}]*)\}", tex)

    def row(self, ends: tuple[str, ...]) -> str:
        """Elements up to one of the tokens, which stays."""
        parts: list[str] = []
        while self.tokens and self.tokens[0] not in ends:
            if self.tokens[0] == "}":
                break
            parts.append(self.scripted())
        return f"<mrow>{''.join(parts)}</mrow>"

    def scripted(self) -> str:
        """An element with what stands below and above it."""
        base = self.element()
        scripts: dict[str, str] = {}
        while self.tokens and self.tokens[0] in ("_", "^", "'"):
            kind = self.tokens.pop(0)
            scripts["^" if kind == "'" else kind] = "<mo>′</mo>" if kind == "'" else self.element()
        if not scripts:
            return base
        around = "∑" in base
        if len(scripts) == 2:
            tag = "munderover" if around else "msubsup"
            return f"<{tag}>{base}{scripts['_']}{scripts['^']}</{tag}>"
        ((kind, script),) = scripts.items()
        tag = ("munder" if around else "msub") if kind == "_" else ("mover" if around else "msup")
        return f"<{tag}>{base}{script}</{tag}>"

    def element(self) -> str:
        if not self.tokens:
            raise FormulaError(f"{self.tex!r} ends too early")
        token = self.tokens.pop(0)
        if token == "{":
            body = self.row(("}",))
            self.expect("}")
            return body
        if token.startswith("\\"):
            return self.command(token[1:])
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        return f"<mi>{token}</mi>" if token.isalpha() else f"<mo>{escape(token)}</mo>"

    def command(self, name: str) -> str:
        if name in LETTERS:
            return f"<mi>{LETTERS[name]}</mi>"
        if name in SYMBOLS:
            return f"<mo>{SYMBOLS[name]}</mo>"
        if name in FUNCTIONS:
            return f"<mi>{name}</mi><mo>&#x2061;</mo>"
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}"/>'
        if name == "left":
            opening, body = self.element(), self.row(("\\right",))
            self.expect("\\right")
            return f"<mrow>{opening}{body}{self.element()}</mrow>"
        if name in ("{", "}", "|"):
            return f"<mo>{name}</mo>"
        if name in ACCENTS:
            return f'<mover accent="true">{self.element()}<mo>{ACCENTS[name]}</mo></mover>'
        if name == "frac":
            return f"<mfrac>{self.element()}{self.element()}</mfrac>"
        if name in ("text", "mathrm"):
            while self.tokens.pop(0) != "}":
                pass
            text = escape(self.texts.pop(0))
            return f"<mtext>{re.sub(r'^ | $', '&#160;', text)}</mtext>"
        if name == "begin":
            return self.table(self.word())
        raise FormulaError(f"\\{name} of {self.tex!r} is not known to docs/mathml.py")

    def table(self, kind: str) -> str:
        """Lines of cells up to the end of an environment."""
        rows: list[list[str]] = [[]]
        while True:
            rows[-1].append(f"<mtd>{self.row(('&', chr(92) * 2, chr(92) + 'end'))}</mtd>")
            mark = self.tokens.pop(0) if self.tokens else ""
            if mark == "\\\\":
                rows.append([])
            elif mark == "\\end":
                self.word()
                break
            elif mark != "&":
                raise FormulaError(f"{kind} does not end in {self.tex!r}")
        lines = "".join(f"<mtr>{''.join(row)}</mtr>" for row in rows)
        body = f'<mtable class="{kind}" displaystyle="true">{lines}</mtable>'
        return f"<mo>{{</mo>{body}" if kind == "cases" else body

    def word(self) -> str:
        """The name of an environment."""
        self.expect("{")
        letters: list[str] = []
        while self.tokens and self.tokens[0] != "}":
            letters.append(self.tokens.pop(0))
        self.expect("}")
        return "".join(letters)

    def expect(self, token: str) -> None:
        if not self.tokens or self.tokens.pop(0) != token:
            raise FormulaError(f"{self.tex!r} lacks a {token}")


def _inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.Element) -> None:
    writer.body.append(mathml(node.astext(), True, str(node.get("number") or "")))
    raise nodes.SkipNode


def formulas_in(text: str) -> Iterator[str]:
    """The formulas of a page in Markdown."""
    code = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for block, inline in re.findall(r"\$\$(.+?)\$\$|(?<!\$)\$([^$\n]+?)\$", code, re.DOTALL):
        yield block or inline


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
