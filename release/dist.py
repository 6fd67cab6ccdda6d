"""What is published: sdist and wheel in dist/, built from what is committed. `make dist`.

    python release/dist.py [--base https://…/blob/v0.1.0/]

--base: where a reader of the package's page finds the files of the repository; links of the README
lead there. Without it they are plain text, since a relative link leads nowhere on such a page.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LINK = re.compile(r"\[([^]]*)\]\((?![a-z]+:|#)([^)]*)\)")  # to a file beside the README
PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
IMAGE = re.compile(r'(src|srcset)="(?![a-z]+:)([^"]*)"')


def main() -> None:
    """Build both, and have their metadata checked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="", help="where the repository's files are published")
    base = parser.parse_args().base
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        tree = committed(Path(name))
        readme = tree / "README.md"
        readme.write_text(published(readme.read_text("utf-8"), base), "utf-8")
        tool("build", "--no-isolation", "--outdir", str(DIST), str(tree))
    made = sorted(map(str, DIST.iterdir()))
    tool("twine", "check", "--strict", *made)
    print("\n".join(made))


def committed(folder: Path) -> Path:
    """The repository as its last commit has it, in a folder of its own."""
    archive = folder / "tree.tar"
    subprocess.run(["git", "archive", "-o", str(archive), "HEAD"], cwd=ROOT, check=True)
    tree = folder / "tree"
    with tarfile.open(archive) as file:
        file.extractall(tree, filter="data")
    return tree


def published(readme: str, base: str) -> str:
    """A README as it can be read away from the repository: ``[text](docs/page.md)`` leads to
    ``base``, or is ``text (docs/page.md)``; pictures are those of ``base``, or left out."""
    there = f"{base.rstrip('/')}/"
    readme = IMAGE.sub(rf'\1="{there}\2?raw=true"', readme) if base else PICTURE.sub("", readme)
    return LINK.sub(rf"[\1]({there}\2)" if base else r"\1 (`\2`)", readme)


def tool(module: str, *words: str) -> None:
    """Run a module of this interpreter; end with its status if it fails."""
    done = subprocess.run([sys.executable, "-m", module, *words], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
