"""Hashes of every kernel text that a test run generates, to prove that a change changes none.

``pytest --kernel-texts=FILE`` appends lines of a key (language, cell, fingerprint of its formula,
spec, schedule) and a hash; ``python tests/kernel_texts.py OLD NEW`` compares two such files. A key
has several hashes where texts differ by something else, as random prices.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def record(file: Path) -> None:
    """Append the hash of every text that this process generates from now on to a file."""
    from elman.engines.c.compilation import build
    from elman.engines.c.run.kernel import CKernel
    from elman.interchange.c.project import Project

    @cache
    def write(key: str, text: str) -> None:
        with file.open("a") as lines:
            lines.write(f"{key}\t{hashlib.sha256(text.encode()).hexdigest()[:16]}\n")

    def after(owner: Any, name: str, note: Any) -> None:
        function = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            note(result, *args, **kwargs)
            return result

        setattr(owner, name, noting)

    def c(_: Any, made: Any, job: Any, program: Any, blocks: Any = None, timed: bool = False):
        write(
            f"c {made.isa.name} {key_of(job)} {blocks and blocks.name} {timed=}",
            made.emitter.text(),
        )

    def compiled(_: Any, text: str, isa: Any, units: Any = ()) -> None:
        for part in (text, *units):
            write(f"c {isa.name} compiled", part)

    def c99(texts: dict[str, str], project: Any) -> None:
        jobs = " ".join(key_of(layer.job) for layer in project.layers)
        write(f"c99 {jobs}", texts[f"{project.name}.h"] + texts[f"{project.name}.c"])

    after(CKernel, "__init__", c)
    after(build, "build", compiled)
    after(Project, "files", c99)
    if find_spec("triton"):
        from elman.engines.triton.device import source
        from elman.engines.triton.run.kernel import TritonKernel

        def triton(_: Any, made: Any, job: Any, *rest: Any) -> None:
            for text in made.texts:
                write(f"triton {key_of(job)} {made.fixed.name} {made.heads}", text)

        after(TritonKernel, "__init__", triton)
        after(source, "defined", lambda _, name, text, __: write(f"triton {name} compiled", text))


def key_of(job: Any) -> str:
    """The cell, the formula and the spec of a job."""
    from elman.ir.fingerprint import fingerprint

    spec = job.spec
    fields = (spec.dims, spec.dtype, spec.device, sorted(spec.wants), spec.training, spec.options)
    return f"{job.name} {fingerprint(job.graph)} {' '.join(map(str, fields))}"


if __name__ == "__main__":
    old, new = defaultdict(set), defaultdict(set)
    for path, hashes in zip(sys.argv[1:], (old, new), strict=True):
        for line in Path(path).read_text().splitlines():
            hashes[line.rpartition("\t")[0]].add(line)
    changed = [key for key in old.keys() & new.keys() if old[key] != new[key]]
    for key in sorted(changed):
        print(f"{key}: {len(old[key] - new[key])} texts gone, {len(new[key] - old[key])} new")
    missing, more = len(old.keys() - new.keys()), len(new.keys() - old.keys())
    print(f"{len(changed)} keys changed, {missing} missing, {more} new, of {len(old)}")
    sys.exit(bool(changed))
