"""Write README.md's measured tables from the committed results: python benchmarks/readme.py."""

from __future__ import annotations

from pathlib import Path

from elman.bench.readme import markdown, rewritten, section
from elman.bench.results import read_rows
from elman.bench.suites import SUITES
from elman.errors import ElmanError

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Rewrite the table of each suite that README.md has markers for."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    for suite in SUITES.values():
        if section(text, suite) is None:
            print(f"{suite.name}: README.md has no markers for it")
            continue
        rows = read_rows(ROOT / "benchmarks" / "results" / f"{suite.name}.jsonl")
        text = rewritten(text, suite, markdown(suite, rows))
        print(f"{suite.name}: {len(rows)} rows")
    readme.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    try:
        main()
    except (ElmanError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
