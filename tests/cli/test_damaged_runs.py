"""`elman runs` and reports beside damaged run folders: each says why, all others stay."""

from __future__ import annotations

import builtins
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elman.cli import main
from elman.cli._reporting import report_run
from elman.train.folder import RunFolder
from elman.train.record import read_record

FILES = ("config.json", "facts.json", "result.json", "metrics.csv")
JSON = FILES[:3]
SMALL = (
    *("--hidden=8", "--embedding=4", "--layers=1", "--batch=4", "--bptt=8", "--steps=6"),
    *("--validation-chars=100", "--engine=aten", "--accelerator=cpu", "--threads=1"),
    *("--minutes=0.01", "--validate-every=3", "--log-every=1"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A complete run with a comparison."""
    root = tmp_path_factory.mktemp("whole")
    text = root / "text.txt"
    text.write_text("".join(random.Random(0).choices("the cat\n", k=2000)))
    with pytest.raises(SystemExit, match="0"):
        main(("train", f"--data={text}", f"--out={root / 'runs'}", *SMALL))
    (folder,) = (root / "runs").iterdir()
    shutil.rmtree(folder / "checkpoints")
    return folder


@pytest.fixture
def root(whole, tmp_path) -> Path:
    """A folder of two equal runs, "bad" and "good"."""
    for name in ("bad", "good"):
        shutil.copytree(whole, tmp_path / "runs" / name)
    return tmp_path / "runs"


def row_of(said: str, name: str) -> str:
    """Find the row of a run in the table."""
    (row,) = [line for line in said.splitlines() if line.startswith(f"│ {name} ")]
    return " ".join(row.split())


GOOD = (
    "│ good │ gru 1 x 8 │ 6/6 │",
    "bits/char │",
    "characters │",
    "│ aten │",
)


def check(said: str, damage: str) -> None:
    """The good run's row is whole; the other one is damaged as told."""
    assert all(part in row_of(said, "good") for part in GOOD)
    lines = [line for line in said.splitlines() if line.startswith("bad: damaged: ")]
    assert len(lines) == 1, said
    assert damage in lines[0]


def changed(path: Path, place: str, value: Any) -> None:
    """Put another value at a place ("baseline.loss") of a JSON file."""
    content = json.loads(path.read_text())
    *outer, last = place.split(".")
    inner = content
    for name in outer:
        inner = inner[name]
    inner[last] = value
    path.write_text(json.dumps(content))


VALUES = [  # file, place, another value, what is said of it
    ("config.json", "hidden", "8", "hidden: a whole number is wanted, not '8'"),
    ("config.json", "cell", ["gru"], "cell: a text is wanted, not ['gru']"),
    ("config.json", "engine", {}, "engine: a text is wanted, not {}"),
    ("config.json", "steps", [], "steps: a whole number is wanted, not []"),
    ("config.json", "lr", 10**400, "lr: a number is wanted, not 1000"),
    ("config.json", "lr", float("nan"), "lr must be positive, not nan"),
    ("config.json", "task", [], "an unknown task: []"),
    ("config.json", "hiden", 8, "unknown fields: hiden"),
    ("facts.json", "baseline", [1, 2], "baseline: an object is wanted, not [1, 2]"),
    ("facts.json", "baseline", None, "baseline: an object is wanted, not None"),
    ("facts.json", "baseline", {}, "baseline.name is missing"),
    ("facts.json", "baseline.loss", "3", "baseline.loss: a number is wanted, not '3'"),
    ("facts.json", "baseline.loss", 10**400, "baseline.loss: a number is wanted, not 1000"),
    ("facts.json", "baseline.accuracy", 7, "baseline.accuracy: 7.0 is not in [0, 1]"),
    ("facts.json", "machine", "a PC", "machine: an object is wanted, not 'a PC'"),
    ("facts.json", "digest", 7, "digest: a text is wanted, not 7"),
    ("result.json", "steps", -1, "steps: -1 is not in"),
    ("result.json", "valid_loss", None, "valid_loss: a number is wanted, not None"),
    ("result.json", "valid_loss", "low", "valid_loss: a number is wanted, not 'low'"),
    ("result.json", "valid_accuracy", float("nan"), "valid_accuracy: nan is not in [0, 1]"),
    ("result.json", "speed", 2, "speed: an object is wanted, not 2"),
    ("result.json", "speed.ratio", [2.0], "speed.ratio: a number is wanted, not [2.0]"),
    ("result.json", "speed.ratio", True, "speed.ratio: a number is wanted, not True"),
    ("result.json", "speed.items_per_s", {}, "speed.items_per_s.elman is missing"),
    ("result.json", "speed.items_per_s.torch.q1", 0, "speed.items_per_s.torch.q1: 0.0 is not in"),
    ("result.json", "speed.items_per_s.torch.q1", 1e17, "speed.items_per_s.torch: the quartiles"),
    ("result.json", "choices", "aten", "choices: an object is wanted, not 'aten'"),
    ("result.json", "sample", 7, "sample: a text is wanted, not 7"),
    ("result.json", "table", [], "table: an object is wanted, not []"),
]  # fmt: skip


@pytest.mark.parametrize("file, place, value, reason", VALUES)
def test_values_of_another_kind(elman, root, file, place, value, reason):
    """The field is named with its value; the good run keeps its row."""
    changed(root / "bad" / file, place, value)
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: {reason}")


def emptied(path: Path) -> None:
    """No byte is left."""
    path.write_bytes(b"")


def cut(path: Path) -> None:
    """Half of the first line is left."""
    path.write_bytes(path.read_bytes().split(b"\n")[0][:10])


def as_folder(path: Path) -> None:
    """A folder of the file's name."""
    path.unlink()
    path.mkdir()


def as_itself(path: Path) -> None:
    """A link to itself."""
    path.unlink()
    path.symlink_to(path)


def as_nothing(path: Path) -> None:
    """A link to a file that is gone."""
    path.unlink()
    path.symlink_to(path.with_name("gone"))


def as_pipe(path: Path) -> None:
    """A pipe into which nobody writes: who opens it waits."""
    path.unlink()
    os.mkfifo(path)


def binary(path: Path) -> None:
    """Bytes that are no text."""
    path.write_bytes(b"\xff\xfe\x00\x81" * 99)


def huge(path: Path) -> None:
    """More than memory would hold, on a disk that need not."""
    os.truncate(path, 1 << 40)


FORMS = [  # what is done to a file, what is said of a .json, and of metrics.csv
    (emptied, "it is empty", "it is empty"),
    (cut, "it is no JSON", "it is empty"),
    (binary, "it is no JSON", "it is"),
    (as_folder, "it is no regular file", "it is no regular file"),
    (as_pipe, "it is no regular file", "it is no regular file"),
    (as_itself, "Too many levels of symbolic links", "Too many levels of symbolic links"),
    (as_nothing, "No such file or directory", "No such file or directory"),
    (huge, "at most 134217728 are read", "at most 134217728 are read"),
]


@pytest.mark.parametrize("form, of_json, of_csv", FORMS, ids=[row[0].__name__ for row in FORMS])
@pytest.mark.parametrize("file", FILES)
def test_files_of_another_form(elman, root, file, form, of_json, of_csv):
    """Each file, whatever lies in its place."""
    form(root / "bad" / file)
    code, said, err = elman("runs", f"--out={root}")
    assert (code, err) == (0, "")
    check(said, f"{file}: ")
    check(said, of_csv if file == "metrics.csv" else of_json)


@pytest.mark.parametrize(
    "content, reason",
    [
        ("[]", "an object is wanted, not []"),
        ("null", "an object is wanted, not None"),
        ("7", "an object is wanted, not 7"),
        ('{"a":' * 100_000, "its values are nested too deep"),
        ('{"a":' * 90 + "1" + "}" * 90, "its values are nested too deep"),
        ('{"a": ' + "9" * 5000 + "}", "it is no JSON"),
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
    plain = builtins.open

    def refusing(path, *args, **options):
        if str(path) == str(root / "bad" / file):
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path, *args, **options)

    monkeypatch.setattr("io.open", refusing)
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
    assert "damaged: result.json: it is no JSON" in page
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
    from elman.train.folder import is_run as plain

    def is_run(path: Path) -> bool:
        found = plain(path)
        if path.name == "bad":
            shutil.rmtree(path)
        return found

    monkeypatch.setattr("elman.train.folder.is_run", is_run)
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


NAMES = ["[bold]", "[/]", "[red]x[/bold]", "a\x1b[2Jb", "a\nb", "caf\udce9", "\ud800", ":smile:",
         "$x^{", "\\", "[link=", "\u4e2d\u6587", "\x00"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=map(ascii, NAMES))
def test_texts_stand_as_they_are(elman, root, name):
    """Markup, control characters, half file names, formulas: shown, in the list and the report."""
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
    assert "trained on" in (root / "bad" / "report.html").read_text()


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


def test_a_report_that_cannot_be_written(elman, root):
    """The others are."""
    (root / "bad" / "report.html").unlink()
    (root / "bad" / "report.html").mkdir()
    code, said, _ = elman("runs", f"--out={root}", "--report")
    assert code == 0
    assert "bad: the report cannot be written" in said
    assert f"report: {root / 'good' / 'report.html'}" in said


@pytest.mark.parametrize("form", [as_folder, as_itself])
def test_a_lock_that_is_no_file(elman, root, form):
    """`elman runs` does not mind; who goes on with the run is told."""
    (root / "bad" / "result.json").unlink()
    (root / "bad" / ".lock").write_text("")
    form(root / "bad" / ".lock")
    assert "damaged" not in elman("runs", f"--out={root}")[1]
    code, _, err = elman("train", f"--resume={root / 'bad'}")
    assert code == 1
    assert "the lock of the run cannot be taken" in err


@pytest.mark.parametrize("file", JSON)
def test_a_damaged_run_is_not_resumed(elman, root, file):
    """Told with path, file and reason."""
    (root / "bad" / file).write_text("[]")
    code, _, err = elman("train", f"--resume={root / 'bad'}")
    assert code == 1
    assert "the run is damaged" in err
    assert f"{file}: an object is wanted, not []" in err


def places(content: Any, outer: tuple = ()) -> Iterator[tuple]:
    """Walk through the places of a JSON value."""
    yield outer
    parts = content.items() if isinstance(content, dict) else ()
    parts = enumerate(content) if isinstance(content, list) else parts
    for key, part in parts:
        yield from places(part, (*outer, key))


NUMBERS = [0, -1, 2.5, 1e300, -1e300, 1e-320, 10**30, 10**400, float("nan"), float("inf")]
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
        if not where:
            continue
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
