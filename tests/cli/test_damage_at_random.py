"""Run folders changed at random: no error, and the other runs as they were."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from damage import NUMBERS, places
from elman.cli._reporting import report_run
from elman.train.run.folder import RunFolder
from elman.train.run.record import read_record
from run_folders import FILES, row_of

SCALARS = st.sampled_from([None, True, "", "7", "[/]", "\ud800", "$x^{", *NUMBERS])
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
CELLS = ["", "0", "-1", "nan", "inf", "-inf", "1e300", "1e-300", "1e-320", "9" * 20, "x", '"', ","]


@st.composite
def damages(draw, folder: Path) -> dict[str, bytes]:
    """Draw new contents for some files of a run: bytes cut, flipped, put in; values changed."""
    names = draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=3, unique=True))
    return {name: draw(damaged(name, (folder / name).read_bytes())) for name in names}


@st.composite
def damaged(draw, name: str, held: bytes) -> bytes:
    """Draw another content of a file."""
    start = draw(st.integers(0, len(held)))
    kind = draw(st.sampled_from(["cut", "bytes", "value", "value", "value"]))
    if kind == "cut":
        return held[:start]
    if kind == "bytes":
        return held[:start] + draw(st.binary(max_size=8)) + held[start + 1 :]
    if name == "metrics.csv":
        lines = [line.split(",") for line in held.decode().splitlines()]
        for _ in range(draw(st.integers(1, 4))):
            line = draw(st.sampled_from(lines))
            line[draw(st.integers(0, len(line) - 1))] = draw(st.sampled_from(CELLS))
        return "".join(",".join(line) + "\n" for line in lines).encode()
    content = json.loads(held)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(content))))
        inner = content
        for key in where[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            del inner[where[-1]]
        else:
            inner[where[-1]] = draw(ANY)
    return json.dumps(content).encode()


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_damage_hides_a_run(elman, root, whole, data):
    """Whatever is done to a run's files: no error, a report of each, the good rows as before."""
    for name in FILES:
        shutil.copy(whole / name, root / "bad" / name)
    before = row_of(elman("runs", f"--out={root}")[1], "good")
    for name, content in data.draw(damages(whole)).items():
        (root / "bad" / name).write_bytes(content)

    for words in ([f"--out={root}"], [str(root / "bad"), str(root / "good")]):
        code, said, err = elman("runs", *words)
        assert (code, err) == (0, "")
        assert row_of(said, "good") == before
        assert "bad" in said
    record = read_record(RunFolder(root / "bad"))
    if record.config is not None:
        assert record.name in report_run(record).read_text()
