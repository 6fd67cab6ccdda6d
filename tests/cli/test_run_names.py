"""Names and texts of runs that are markup, control characters or half a character."""

from __future__ import annotations

import html
import os
import random

import pytest

from run_folders import SMALL, changed, row_of

pytestmark = pytest.mark.usefixtures("without_charts")

NAMES = ["[bold]", "[/]", "[red]x[/bold]", "a\x1b[2Jb", "a\nb", "caf\udce9", "\ud800", ":smile:",
         "$x^{", "\\", "[link=", "\u4e2d\u6587", "\x00"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=map(ascii, NAMES))
def test_texts_stand_as_they_are(elman, root, name):
    """Markup, control characters, half file names, formulas: shown, in the list and the report;
    beside plots in ``report/test_page``."""
    for place in ("cell", "engine", "data"):
        changed(root / "bad" / "config.json", place, name)
    changed(root / "bad" / "facts.json", "baseline.name", name)
    changed(root / "bad" / "facts.json", "source", name)
    changed(root / "bad" / "result.json", "sample", name)
    changed(root / "bad" / "result.json", "choices", {"recurrent": {"engine": name}})
    folders = [str(root / "bad"), str(root / "good")]
    code, said, err = elman("runs", *folders, "--report")
    assert (code, err) == (0, "")
    row = row_of(said, "bad")
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    assert f"│ {shown} 1 x 8 │" in row
    assert f"│ {shown} │" in row
    assert "differs in" in said
    assert "damaged" not in said
    assert html.escape(shown) in (root / "bad" / "report.html").read_text()


def test_folder_whose_name_is_no_text(elman, root):
    """Listed and reported under its escaped name."""
    os.rename(root / "bad", os.fsencode(root) + b"/[caf\xe9]")
    code, said, _ = elman("runs", f"--out={root}", "--report")
    assert code == 0
    assert "gru 1 x 8" in row_of(said, "[caf\\udce9]")


def test_train_on_a_file_whose_name_is_no_text(elman, tmp_path):
    """From the first line to the report and back."""
    (tmp_path / "[").mkdir()
    data, out = os.fsencode(tmp_path) + b"/[/caf\xe9].txt", f"--out={tmp_path}/r\udce9[/]"
    with open(data, "w") as file:
        file.write("".join(random.Random(0).choices("the cat\n", k=2000)))
    code, said, err = elman("train", f"--data={os.fsdecode(data)}", out, *SMALL, "--no-compare")
    assert (code, err) == (0, "")
    assert "/[/caf\\udce9].txt" in said
    assert elman("runs", out)[0] == 0
