"""What is compiled once for many kernels, and how much of all is kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from elman import cells
from elman.cli import doctor
from elman.engines.c.compilation import build as building
from elman.engines.c.compilation import compilers, eviction
from elman.engines.c.compilation.build import build, built, find_compiler, load
from elman.engines.c.compilation.isa import SCALAR
from elman.engines.c.engine import PRICES
from elman.engines.c.run.kernel import CKernel
from elman.errors import BuildError, EngineError
from elman.plan.build import program
from fake_compilers import TINY, alive, answer, await_that, compiler, leave, real
from forked import Forked
from helpers import Sizes, job_of, random_case
from scripts import begin, finished

HIDDEN = '__attribute__((visibility("hidden")))'
PARTS = tuple(f"{HIDDEN} long part{n}(void) {{ return {n}; }}\n" for n in (20, 22))
WHOLE = (
    f"{HIDDEN} long part20(void);\n{HIDDEN} long part22(void);\n"
    '__attribute__((visibility("default"))) long answer(void) { return part20() + part22(); }\n'
)

pytestmark = pytest.mark.skipif(
    isinstance(find_compiler(), str), reason=f"there is {find_compiler()}"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """What is known about compilers, and what was used, belongs to one test."""
    compilers._probe.cache_clear()
    building._hung.clear()
    monkeypatch.setattr(eviction, "_used", set())
    yield
    compilers._probe.cache_clear()
    building._hung.clear()


@pytest.fixture
def calls(tmp_path, monkeypatch) -> Path:
    """Takes a line per call of the compiler."""
    log = tmp_path / "calls"
    log.touch()
    compiler(tmp_path, monkeypatch, f'echo one >> {log}; exec {real()} "$@"')
    return log


def count(log: Path) -> int:
    return len(log.read_text().splitlines())


def test_parts_are_compiled_once(empty_cache, calls):
    """The first kernel brings them along, the second is one call."""
    assert answer(build(WHOLE, SCALAR, PARTS)) == 42
    assert count(calls) == 4, "the text, two parts, the link"
    assert answer(build(WHOLE + "\n", SCALAR, PARTS)) == 42
    assert count(calls) == 5
    build(WHOLE, SCALAR, PARTS)
    assert count(calls) == 5
    other = PARTS[0].replace("return 20", "return 21")
    assert answer(build(WHOLE, SCALAR, (other, PARTS[1]))) == 43, "a part is part of the key"


def test_another_kernel_is_one_call_of_the_compiler(empty_cache, calls):
    """Other sizes of the same widths: nothing that they have in common is compiled again."""
    for input_units, more in ((5, range(3, 20)), (6, [1])):
        before = count(calls)
        job = job_of(random_case(cells.gru, Sizes(T=7, B=3, I=input_units, H=13)))
        CKernel(job, program(job.pair, job.spec, PRICES))
        assert count(calls) - before in more


def test_a_damaged_part_is_made_again(empty_cache, calls):
    """Its hash is checked."""
    build(WHOLE, SCALAR, PARTS)
    for path in (empty_cache / "kernels").glob("*.o"):
        path.write_bytes(path.read_bytes()[:-40])
    assert answer(build(WHOLE + "\n", SCALAR, PARTS)) == 42
    assert answer(build(WHOLE + "\n\n", SCALAR, PARTS)) == 42


MAKES_NONE = {
    "fails at parts": 'case "$*" in *part1.c*) echo an error >&2; exit 1;; esac; {real} "$@"',
    "writes no objects": 'case "$*" in *-c\\ *) '
    + leave('echo no > "$2"')
    + ';; *) {real} "$@";; esac',
}


@pytest.mark.parametrize("what", MAKES_NONE)
def test_a_broken_compiler_leaves_no_parts_behind(what, empty_cache, tmp_path, monkeypatch):
    """One clear line; with a mended compiler the next attempt is right."""
    cc = real()
    compiler(tmp_path, monkeypatch, MAKES_NONE[what].replace("{real}", cc))
    with pytest.raises(BuildError, match=r"^fake 1\.0 "):
        built(WHOLE, SCALAR, PARTS)
    compiler(tmp_path, monkeypatch, f'exec {cc} "$@"')
    assert answer(build(WHOLE, SCALAR, PARTS)) == 42


def test_an_interruption_ends_every_compiler(empty_cache, tmp_path, monkeypatch):
    """Those that run at once; nothing is kept."""
    monkeypatch.setattr(building, "threads", lambda: 3)
    compiler(tmp_path, monkeypatch, f"echo > {tmp_path}/pid-$$; sleep 60")

    def pids() -> list[int]:
        return [int(path.name[4:]) for path in tmp_path.glob("pid-*")]

    def interrupt() -> None:
        await_that(lambda: len(pids()) == 3)
        signal.raise_signal(signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        build(WHOLE, SCALAR, PARTS)
    timer.join()
    await_that(lambda: not any(map(alive, pids())))
    assert not [path for path in (empty_cache / "kernels").iterdir() if path.suffix != ".lock"]


def aged(path: Path, days: float) -> Path:
    os.utime(path, (time.time() - 86400 * days,) * 2)
    return path


def forget() -> None:
    """As if another process had used what this one did."""
    eviction._used.clear()


def test_what_was_used_longest_ago_goes(empty_cache, monkeypatch):
    """Libraries and parts, with their locks, until a tenth of the limit is free."""
    paths = [aged(build(TINY + n * "\n", SCALAR), 10 - n) for n in range(4)]
    parts = [aged(path, 30) for path in _parts(empty_cache)]
    size = paths[0].stat().st_size
    forget()
    monkeypatch.setenv("ELMAN_CACHE_SIZE", f"{4.5 * size:.0f}")
    newest = build(TINY + 5 * "\n", SCALAR)
    assert [path.exists() for path in paths] == [False, True, True, True]
    assert not paths[0].with_suffix(".lock").exists()
    assert newest.exists()
    assert not any(path.exists() for path in parts)
    assert answer(build(TINY, SCALAR)) == 42, "what is wanted again is made again"


def _parts(cache: Path) -> list[Path]:
    aged(build(WHOLE, SCALAR, PARTS), 40)
    return list((cache / "kernels").glob("*.o"))


def test_what_this_process_uses_stays(empty_cache, monkeypatch):
    """However small the limit; what others used long ago goes, what they have just built stays."""
    old, new = (build(TINY + n * "\n", SCALAR) for n in (3, 4))
    aged(old, 1)
    forget()
    monkeypatch.setenv("ELMAN_CACHE_SIZE", "0")
    ours = [build(TINY + n * "\n", SCALAR) for n in (1, 2)]
    whole = build(WHOLE, SCALAR, PARTS)
    assert all(path.exists() for path in (*ours, whole))
    assert len(list((empty_cache / "kernels").glob("*.o"))) == len(PARTS)
    assert not old.exists()
    assert new.exists(), "its process is about to load it"


def test_a_use_is_noted_once_a_day(empty_cache):
    """So that what is in use is not the oldest, and a use is no write."""
    path = build(TINY, SCALAR)
    early, late = aged(path, 0.9).stat().st_mtime, aged(path, 1.1).stat().st_mtime
    build(TINY, SCALAR)
    assert path.stat().st_mtime > late + 86400
    aged(path, 0.9)
    build(TINY, SCALAR)
    assert path.stat().st_mtime == pytest.approx(early, abs=60)


def test_a_folder_of_garbage(empty_cache, monkeypatch):
    """What is no file of ours is neither counted nor removed, and disturbs nothing."""
    folder = build(TINY, SCALAR).parent
    (folder / "a.so").mkdir()
    (folder / "a.so" / "b.so").write_bytes(bytes(10_000))
    (folder / "dangling.so").symlink_to(folder / "nowhere")
    (folder / "outside.o").symlink_to(__file__)
    (folder / "note.txt").write_bytes(bytes(10_000))
    (folder / os.fsdecode(b"\xff.so")).write_bytes(b"x")
    aged(folder / os.fsdecode(b"\xff.so"), 1)
    monkeypatch.setenv("ELMAN_CACHE_SIZE", "0")
    assert answer(build(TINY + "\n", SCALAR)) == 42
    names = {path.name for path in folder.iterdir()}
    assert {"a.so", "dangling.so", "outside.o", "note.txt"} <= names
    assert os.fsdecode(b"\xff.so") not in names
    assert Path(__file__).exists()


def test_a_library_that_is_removed_before_it_is_loaded(empty_cache, monkeypatch, calls):
    """Another process makes room in between: it is built again, and if that goes on it is told."""
    removals = 2

    def removing(path: Path):
        nonlocal removals
        if removals:
            removals -= 1
            path.unlink()
        return load(path)

    monkeypatch.setattr(building, "load", removing)
    library, fingerprint = built(TINY, SCALAR)
    assert library.answer() == 42
    assert len(fingerprint) == 64
    assert count(calls) == 3
    removals = 9
    with pytest.raises(BuildError, match="removed before it was loaded"):
        built(TINY + "\n", SCALAR)


SCRIPT = f"""
import os, sys
from elman.engines.c.compilation.build import built
from elman.engines.c.compilation.isa import SCALAR

for n in range(int(sys.argv[1])):
    library, _ = built({WHOLE!r} + n % 5 * chr(10), SCALAR, {PARTS!r})
    assert library.answer() == 42
    from elman.engines.c.compilation import eviction
    eviction._used.clear()
print("right")
"""


def started(rounds: int, **env: str) -> Forked:
    return begin("-W", "ignore", "-c", SCRIPT, str(rounds), **env)


def test_two_processes_that_take_the_room_from_each_other(empty_cache):
    """Each removes what the other has just built; both get what they want."""
    both = [started(7, ELMAN_CACHE_SIZE="1") for _ in range(2)]
    assert finished(*both) == "right\nright\n"


def test_a_process_killed_in_the_middle(empty_cache, tmp_path, monkeypatch):
    """What it left is nobody's kernel, does not hold others up, and goes in time."""
    cc = real()
    compiler(tmp_path, monkeypatch, f'touch {tmp_path}/begun; sleep 2; exec {cc} "$@"')
    process = started(1)
    await_that(lambda: (tmp_path / "begun").exists())
    process.kill()
    process.communicate()
    folder = empty_cache / "kernels"
    (folder / ".incomplete-half").write_bytes(b"half")
    assert not [path for path in folder.iterdir() if path.suffix in (".so", ".o")]
    compiler(tmp_path, monkeypatch, f'exec {cc} "$@"', "mended")
    left = [path for path in folder.iterdir() if path.suffix != ".lock"]
    assert len(left) == 2
    for path in left:
        aged(path, 1)
    assert answer(build(WHOLE, SCALAR, PARTS)) == 42
    assert not any(path.exists() for path in left)


SIZES = {
    "1000": 1000,
    "1.5 KiB": 1536,
    "2M": 2_000_000,
    "3 gib": 3 << 30,
    "0": 0,
    " 7 TB ": 7 * 10**12,
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes(text, monkeypatch):
    """A number, and a unit as of decimal or binary thousands."""
    monkeypatch.setenv("ELMAN_CACHE_SIZE", text)
    assert eviction.limit_bytes() == SIZES[text]


def test_a_size_that_is_none(empty_cache, monkeypatch):
    """Told with one that is, before anything is compiled."""
    monkeypatch.setenv("ELMAN_CACHE_SIZE", "plenty")
    said = r"ELMAN_CACHE_SIZE='plenty' is not a size; .*: ELMAN_CACHE_SIZE='1 GiB'"
    with pytest.raises(EngineError, match=said):
        build(TINY, SCALAR)
    assert not list((empty_cache / "kernels").glob("*.so"))
    monkeypatch.delenv("ELMAN_CACHE_SIZE")
    assert eviction.limit_bytes() == 1 << 30


def test_doctor_says_how_much_is_kept(empty_cache, monkeypatch):
    """The folder, its size now, and the limit; a limit that is none is told with a way out."""
    build(WHOLE, SCALAR, PARTS)
    monkeypatch.setenv("ELMAN_CACHE_SIZE", "64 MiB")
    (found,) = doctor.caches()
    size = sum(path.stat().st_size for path in (empty_cache / "kernels").iterdir())
    assert f"{empty_cache}: 1 kernels of {size / 2**20:.1f} MiB (at most 64 MiB)" in found.result
    assert not found.fix
    monkeypatch.setenv("ELMAN_CACHE_SIZE", "plenty")
    wrong, _ = doctor.caches()
    assert "not a size" in wrong.result
    assert wrong.fix == "unset ELMAN_CACHE_SIZE"
