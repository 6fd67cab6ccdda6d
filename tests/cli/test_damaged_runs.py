"""`elman runs` and reports beside damaged run folders: each says why, all others stay."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from damage import FORMS
from run_folders import FILES, JSON, changed, row_of

GOOD = ("│ good │ gru 1 x 8 │ 6/6 │", "bits/char │", "characters/s │", "│ aten │")


def check(said: str, damage: str) -> None:
    """The good run's row is whole; the other one is damaged as told."""
    assert all(part in row_of(said, "good") for part in GOOD)
    lines = [line for line in said.splitlines() if line.startswith("bad: damaged: ")]
    assert len(lines) == 1, said
    assert damage in lines[0]


PAIRS = {"name": "", "true": [1, 2], "predicted": [1], "over_time": True}
VALUES = [  # file, place, another value, what is said of it
    ("config.json", "hidden", "8", "hidden: expected an integer, got '8'"),
    ("config.json", "engine", {}, "engine: expected text, got {}"),
    ("config.json", "lr", 10**400, "lr: expected a number, got 1000"),
    ("config.json", "lr", float("nan"), "lr must be positive, not nan"),
    ("config.json", "task", [], "an unknown task: []"),
    ("config.json", "hiden", 8, "unknown fields: hiden"),
    ("facts.json", "baseline", [1, 2], "baseline: expected an object, got [1, 2]"),
    ("facts.json", "baseline", {}, "baseline.name is missing"),
    ("facts.json", "baseline.loss", "3", "baseline.loss: expected a number, got '3'"),
    ("facts.json", "baseline.score", "7", "baseline.score: expected a number, got '7'"),
    ("facts.json", "digest", 7, "digest: expected text, got 7"),
    ("result.json", "steps", -1, "steps: -1 is not in"),
    ("result.json", "valid_loss", None, "valid_loss: expected a number, got None"),
    ("result.json", "speed.waited", float("nan"), "speed.waited: nan is not in [0, 1]"),
    ("result.json", "speed", 2, "speed: expected an object, got 2"),
    ("result.json", "speed.ratio", True, "speed.ratio: expected a number, got True"),
    ("result.json", "speed.items_per_s", {}, "speed.items_per_s.elman is missing"),
    ("result.json", "speed.items_per_s.torch.q1", 0, "speed.items_per_s.torch.q1: 0.0 is not in"),
    ("result.json", "speed.items_per_s.torch.q1", 1e17, "speed.items_per_s.torch: the quartiles"),
    ("result.json", "shown", {}, "shown: expected a list, got {}"),
    ("result.json", "shown", [7], "shown.0: expected an object, got 7"),
    ("result.json", "shown", [PAIRS], "shown.0: 1 predictions of 2 targets"),
    ("result.json", "shown", [PAIRS | {"true": ["high"]}], "shown.0.true.0: expected a number"),
    ("result.json", "table", [], "table: expected an object, got []"),
]  # fmt: skip


@pytest.mark.parametrize("file, place, value, reason", VALUES)
def test_values_of_another_kind(elman, root, file, place, value, reason):
    """The field is named with its value; the good run keeps its row."""
    changed(root / "bad" / file, place, value)
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: {reason}")


def cut(path: Path) -> None:
    """A part of the first line is left."""
    path.write_bytes(path.read_bytes().split(b"\n")[0][:10])


OTHER_FORMS = {  # what is done to a file -> what is said of a .json, and of metrics.csv
    "emptied": ("it is empty", "it is empty"),
    "cut": ("it is not JSON", "it is empty"),
    "no text": ("it is not JSON", "it is"),
    **dict.fromkeys(("a folder", "a pipe"), ("it is not a regular file",) * 2),
    "a link to itself": ("Too many levels of symbolic links",) * 2,
    "a link to nothing": ("No such file or directory",) * 2,
    "huge": ("at most 134217728 are read",) * 2,
}


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("file", FILES)
def test_files_of_another_form(elman, root, file, form):
    """Each file, whatever lies in its place."""
    (FORMS | {"cut": cut})[form](root / "bad" / file)
    of_json, of_csv = OTHER_FORMS[form]
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: ")
    check(said, of_csv if file == "metrics.csv" else of_json)


@pytest.mark.parametrize(
    "content, reason",
    [
        ("[]", "expected an object, got []"),
        ("null", "expected an object, got None"),
        ("7", "expected an object, got 7"),
        ('{"a":' * 100_000, "its values are nested too deep"),
        ('{"a":' * 90 + "1" + "}" * 90, "its values are nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "it is not JSON"),
    ],
)
@pytest.mark.parametrize("file", JSON)
def test_json_of_another_form(elman, root, file, content, reason):
    """What is JSON but no object that can be used."""
    (root / "bad" / file).write_text(content)
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: {reason}")


@pytest.mark.parametrize("file", FILES)
def test_files_that_may_not_be_read(elman, root, file, monkeypatch):
    """Root may read all, so the refusal is made up."""
    plain = os.open

    def refusing(path, *args, **options):
        if str(path) == str(root / "bad" / file):
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *args, **options)

    monkeypatch.setattr("os.open", refusing)
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: it cannot be read: Permission denied")


def test_missing_files(elman, root):
    """What every run has must be there; result.json and metrics.csv may come later."""
    (root / "bad" / "facts.json").unlink()
    check(elman("runs", f"--out={root}")[1], "facts.json: it is missing")
    (root / "bad" / "config.json").unlink()
    (root / "bad" / "facts.json").write_text("{}")
    (root / "bad" / "checkpoints").mkdir()
    check(elman("runs", f"--out={root}")[1], "config.json: it is missing")


@pytest.mark.parametrize("file", ["result.json", "metrics.csv"])
def test_a_run_under_way_is_not_damaged(elman, root, file):
    """Its result and metrics are not there yet."""
    (root / "bad" / file).unlink()
    assert "damaged" not in elman("runs", f"--out={root}")[1]


def test_the_rest_of_a_damaged_run_is_shown(elman, root):
    """Its row has what the other files say; so has its report, which names the damage."""
    (root / "bad" / "result.json").write_text("{")
    said = elman("runs", f"--out={root}", "--report")[1]
    assert "│ bad │ gru 1 x 8 │ 6/6 │" in row_of(said, "bad")
    page = (root / "bad" / "report.html").read_text()
    assert "damaged: result.json: it is not JSON" in page
    assert page.count("<svg") == 5
    (root / "bad" / "result.json").unlink()
    (root / "bad" / "metrics.csv").write_text("")
    elman("runs", f"--out={root}", "--report")
    page = (root / "bad" / "report.html").read_text()
    assert "damaged: metrics.csv: it is empty" in page
    assert "No metrics yet." in page


def test_folders_that_are_none(elman, root):
    """Links in a circle, links to nothing, files, empty folders: nothing hides the good run."""
    shutil.rmtree(root / "bad")
    (root / "bad").symlink_to(root / "bad")
    (root / "gone").symlink_to(root / "nowhere")
    (root / "file").write_text("no folder")
    (root / "empty").mkdir()
    code, said, _ = elman("runs", f"--out={root}")
    assert code == 0
    check(said, "config.json: it cannot be read: Too many levels of symbolic links")
    for name in ("gone", "file", "empty"):
        assert f"{name}:" not in said


def test_a_folder_that_goes_away_while_it_is_listed(elman, root, monkeypatch):
    """Somebody removes a run between the list and the reading."""
    from elman.train.run.folder import is_run as plain

    def is_run(path: Path) -> bool:
        found = plain(path)
        if path.name == "bad":
            shutil.rmtree(path)
        return found

    monkeypatch.setattr("elman.train.run.folder.is_run", is_run)
    code, said, _ = elman("runs", f"--out={root}")
    assert code == 0
    check(said, "config.json: it is missing")


def test_a_folder_of_runs_that_is_none(elman, tmp_path):
    """A file: no runs; a link to itself: an error with its path."""
    (tmp_path / "file").write_text("")
    assert "no runs in" in elman("runs", f"--out={tmp_path / 'file'}")[1]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    code, _, err = elman("runs", f"--out={tmp_path / 'loop'}")
    assert code == 1
    assert "the folder of the runs cannot be read" in err
    assert elman("runs", str(tmp_path / "[/]"))[0] == 1


def test_a_report_that_cannot_be_written(elman, root):
    """The others are."""
    (root / "bad" / "report.html").unlink()
    (root / "bad" / "report.html").mkdir()
    code, said, _ = elman("runs", f"--out={root}", "--report")
    assert code == 0
    assert "bad: the report cannot be written" in said
    assert f"report: {root / 'good' / 'report.html'}" in said


@pytest.mark.parametrize("form", ["a folder", "a link to itself"])
def test_a_lock_that_is_no_file(elman, root, form):
    """`elman runs` does not mind; who goes on with the run is told."""
    (root / "bad" / "result.json").unlink()
    (root / "bad" / ".lock").write_text("")
    FORMS[form](root / "bad" / ".lock")
    assert "damaged" not in elman("runs", f"--out={root}")[1]
    code, _, err = elman("resume", str(root / "bad"))
    assert code == 1
    assert "the lock of the run cannot be taken" in err


@pytest.mark.parametrize("file", JSON)
def test_a_damaged_run_is_not_resumed(elman, root, file):
    """Told with path, file and reason."""
    (root / "bad" / file).write_text("[]")
    code, _, err = elman("resume", str(root / "bad"))
    assert code == 1
    assert "the run is damaged" in err
    assert f"{file}: expected an object, got []" in err
