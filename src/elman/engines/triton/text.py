"""Lines of a kernel, as text: what they assign, under other names; functions they call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def assigned(lines: Iterable[str]) -> list[str]:
    """The names that lines assign, in order."""
    matches = (re.match(r"\s*(\w+(?:, \w+)*) =", line) for line in lines)
    return list(dict.fromkeys(name for match in matches if match for name in match[1].split(", ")))


def renamed(lines: Iterable[str], names: Mapping[str, str]) -> list[str]:
    """Lines with some names replaced by others."""
    if not names:
        return list(lines)
    pattern = re.compile(rf"\b({'|'.join(sorted(names, key=len, reverse=True))})\b")
    return [pattern.sub(lambda match: names[match[1]], line) for line in lines]


def added(count: int) -> str:
    """A function that adds so many blocks to so many others, one by one."""
    first, second = ([f"{letter}{k}" for k in range(count)] for letter in "ab")
    sums = [f"{a} + {b}" for a, b in zip(first, second, strict=True)]
    return (
        f"@triton.jit\ndef added{count}({', '.join([*first, *second])}):\n"
        f"    return {', '.join(sums)}\n"
    )
