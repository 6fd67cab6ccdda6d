"""From C text to a library, when things go wrong: caches, compilers, processes, threads, forks."""

from __future__ import annotations

import errno
import importlib.util
import mmap
import os
import shutil
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from calls import backward, call, forward, given_of
from elman import cells
from elman.engines.c.compilation import compilers, kernel_cache
from elman.engines.c.compilation.build import build, find_compiler
from elman.engines.c.compilation.isa import SCALAR, detect
from elman.engines.c.engine import PRICES
from elman.engines.c.process import threads
from elman.engines.c.run.kernel import CKernel
from elman.errors import BuildError, EngineError
from elman.plan.build import program
from fake_compilers import TINY, answer, real
from helpers import Sizes, assert_all_same, job_of, oracle, random_case
from kernels import c_kernel
from scripts import begin_anew, finished, run_script
from unseen import UNSEEN, three_states

SIZES = Sizes(T=7, B=3, I=5, H=13)  # the kernels that test_c_agreement compiles, too
F64 = torch.float64

pytestmark = [
    pytest.mark.skipif(isinstance(find_compiler(), str), reason=f"there is {find_compiler()}"),
    pytest.mark.usefixtures("as_users"),  # what compilers make of texts
]


@pytest.fixture(autouse=True)
def fresh_probes():
    """What is known about compilers belongs to one test."""
    compilers._probe.cache_clear()
    yield
    compilers._probe.cache_clear()


@pytest.fixture
def counted(tmp_path, monkeypatch) -> Path:
    """The compiler behind a script that writes one line per kernel it compiles into this file."""
    log, script = tmp_path / "compiled", tmp_path / "cc"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) ;; *) echo one >> "{log}" ;; esac\n'
        f'exec {real()} "$@"\n'
    )
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("ELMAN_CC", str(script))
    return log


def test_a_kernel_is_compiled_once(empty_cache, counted):
    """Kept under a name made of its content, in a folder that only the user can enter."""
    path = build(TINY, SCALAR)
    assert answer(path) == 42
    assert build(TINY, SCALAR) == path
    assert counted.read_text() == "one\n"
    assert path.is_relative_to(empty_cache)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not stat.S_IMODE(path.stat().st_mode) & 0o077
    assert not [p for p in path.parent.iterdir() if p.suffix not in (".so", ".lock")]
    assert build(TINY + "\n", SCALAR) != path
    assert build(TINY, detect()) != path or detect() is SCALAR


@pytest.mark.parametrize("harm", ["cut short", "emptied", "falsified", "of another kernel"])
def test_a_damaged_kernel_is_made_again(empty_cache, counted, harm):
    """Its hash is checked before it is loaded."""
    path = build(TINY, SCALAR)
    data = path.read_bytes()
    harmed = {
        "cut short": data[: len(data) // 2],
        "emptied": b"",
        "falsified": data[:200] + bytes([data[200] ^ 1]) + data[201:],
        "of another kernel": data[:-32] + bytes(32),
    }
    path.write_bytes(harmed[harm])
    assert answer(build(TINY, SCALAR)) == 42
    assert counted.read_text() == "one\n" * 2
    assert path.read_bytes()[-32:] == kernel_cache.hashlib.sha256(path.read_bytes()[:-32]).digest()


def test_processes_that_want_the_same_kernel(empty_cache, counted, tmp_path):
    """All get it; one compiles."""
    run_script(
        f"""
        import os
        from elman.engines.c.compilation.build import build, load
        from elman.engines.c.compilation.isa import SCALAR

        children = []
        for _ in range(9):
            child = os.fork()
            if not child:
                status = 1
                try:
                    status = load(build({TINY!r}, SCALAR)).answer() != 42
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 9
        """,
        tmp_path,
    )
    assert counted.read_text() == "one\n"


def test_locks_that_do_not_work(empty_cache, monkeypatch):
    """A file system without locks: everyone compiles for himself."""

    def acquire(self, timeout=None):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(kernel_cache.FileLock, "acquire", acquire)
    assert answer(build(TINY, SCALAR)) == 42


def uncached(monkeypatch, tmp_path) -> Path:
    """Build where the cache cannot be used: it warns, and a folder of this process serves."""
    kernel_cache._own_folder.cache_clear()
    kernel_cache._warn_uncached.cache_clear()
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels in .*ELMAN_CACHE"):
        path = build(TINY, SCALAR)
    assert answer(path) == 42
    assert build(TINY, SCALAR) == path, "and it warns once"
    return path


def test_a_cache_that_is_a_file(tmp_path, monkeypatch):
    """Not even a folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "file"))
    assert not uncached(monkeypatch, tmp_path).is_relative_to(tmp_path)


def test_a_cache_that_others_can_write(tmp_path, monkeypatch):
    """Someone else could put a library there."""
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    assert not uncached(monkeypatch, tmp_path).is_relative_to(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    """Read-only: os.access says so (root could write anyway)."""
    folder = tmp_path / "cache" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o500)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    if os.getuid() == 0:
        access = os.access
        monkeypatch.setattr(
            kernel_cache.os,
            "access",
            lambda path, mode: Path(path) != folder and access(path, mode),
        )
    assert not uncached(monkeypatch, tmp_path).is_relative_to(tmp_path)


def full(*_, **__) -> None:
    """Say what a full disk says."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk(empty_cache, monkeypatch):
    """A clear error where no disk takes a kernel, and no half file is left."""
    kernel_cache._own_folder.cache_clear()
    kernel_cache._warn_uncached.cache_clear()
    refused = pytest.raises(BuildError, match=r"cannot keep a kernel in .*: .*No space left")
    monkeypatch.setattr(kernel_cache.os, "fsync", full)
    with pytest.warns(RuntimeWarning, match="No space left"), refused:
        build(TINY, SCALAR)
    for folder in (empty_cache / "kernels", kernel_cache._own_folder()):
        assert not [path for path in folder.iterdir() if path.suffix != ".lock"]
    monkeypatch.undo()
    assert answer(build(TINY, SCALAR)) == 42


def test_a_cache_whose_disk_is_full(empty_cache, monkeypatch, counted):
    """It is asked for what it has, and no more for what it cannot take."""
    another, store = TINY + "\n", kernel_cache.store
    kept = build(another, SCALAR)

    def store_elsewhere(path, data):
        if path.is_relative_to(empty_cache):
            full()
        store(path, data)

    monkeypatch.setattr("elman.engines.c.compilation.build.store", store_elsewhere)
    assert not uncached(monkeypatch, empty_cache).is_relative_to(empty_cache)
    before = counted.read_text()
    assert build(another, SCALAR) == kept
    assert answer(build(TINY + "\n\n", SCALAR)) == 42
    assert counted.read_text() == before + "one\n"


def test_a_cache_that_is_removed_while_a_kernel_is_compiled(empty_cache, monkeypatch, tmp_path):
    """The compiler refuses, and is not to blame."""
    script = tmp_path / "cc"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *kernel.c*) rm -rf "{empty_cache}/kernels" ;; esac\n'
        f'exec {real()} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("ELMAN_CC", str(script))
    assert not uncached(monkeypatch, empty_cache).is_relative_to(empty_cache)


def test_a_folder_where_a_kernel_should_lie(empty_cache, monkeypatch):
    """What cannot be replaced is left alone."""
    path = build(TINY, SCALAR)
    path.unlink()
    path.mkdir()
    assert not uncached(monkeypatch, empty_cache).is_relative_to(empty_cache)


def test_no_disk_at_all(monkeypatch, tmp_path):
    """Neither a cache nor a folder for what passes."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(kernel_cache.tempfile, "mkdtemp", full)
    kernel_cache._own_folder.cache_clear()
    kernel_cache._warn_uncached.cache_clear()
    with pytest.warns(RuntimeWarning), pytest.raises(BuildError, match="no folder for compiled"):
        build(TINY, SCALAR)


def test_elman_cc_comes_before_cc(counted, empty_cache, monkeypatch):
    """Make sets CC for everything; ELMAN_CC is ours."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert answer(build(TINY, SCALAR)) == 42
    assert counted.read_text() == "one\n"


def test_further_flags(empty_cache, monkeypatch):
    """ELMAN_CFLAGS come after ours, for the text alone: parts are shared with who has none."""
    asks = "long part(void);\n" + TINY.replace("42", "part() + FURTHER + __OPTIMIZE__")
    part = "long part(void) {\n#ifdef FURTHER\n#error\n#endif\nreturn 5; }\n"
    paths = []
    for number in ("10", "20"):
        monkeypatch.setenv("ELMAN_CFLAGS", f"-O1 '-DFURTHER={number} + 1'")
        paths.append(build(asks, SCALAR, (part,)))
        assert answer(paths[-1]) == 5 + int(number) + 1 + 1
    assert paths[0] != paths[1]
    assert len(list(paths[0].parent.glob("*.o"))) == 1
    monkeypatch.setenv("ELMAN_CFLAGS", "-O'")
    with pytest.raises(BuildError, match=r"ELMAN_CFLAGS=-O' are not compiler flags: No clos"):
        build(asks, SCALAR)


def test_leftovers_of_killed_processes(empty_cache, counted):
    """Folders of builds that nobody can be working in are removed, others are not."""
    folder = build(TINY, SCALAR).parent
    for name, age in (("old", kernel_cache._LEFT + 60), ("new", 60)):
        (folder / f"build-{name}").mkdir()
        (folder / f"build-{name}" / "kernel.c").touch()
        os.utime(folder / f"build-{name}", (time.time() - age,) * 2)
    build(TINY + "\n", SCALAR)
    assert [path.name for path in folder.glob("build-*")] == ["build-new"]


def kernel_by(cc: str, monkeypatch, case) -> CKernel:
    monkeypatch.setenv("ELMAN_CC", cc)
    job = job_of(case)
    return CKernel(job, program(job.pair, job.spec, PRICES))


OTHERS = {
    "gcc": shutil.which("gcc"),
    "clang": shutil.which("clang"),
    "ziglang": f"{sys.executable} -m ziglang cc" if importlib.util.find_spec("ziglang") else None,
}


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("cell", [cells.lstm_layernorm], ids=["lstm_layernorm"])
def test_every_compiler_agrees(cell, name, dtype, monkeypatch):
    """gcc, clang and zig's clang make kernels that give the oracle's results."""
    command = OTHERS[name]
    if command is None:
        pytest.skip(f"{name} is not installed")
    case = random_case(cell, SIZES, 1, dtype)
    got = call(kernel_by(command, monkeypatch, case), case)
    assert_all_same(got, oracle(case), dtype, case.T)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.long), F64], ids=["float32", "float64"]
)
def test_plain_vectors(dtype, monkeypatch):
    """Without any instruction set of its own; gcc 12 once stopped at this cell in float64."""
    case = random_case(three_states, UNSEEN[three_states], 1, dtype)
    monkeypatch.setenv("ELMAN_ISA", "scalar")
    job = job_of(case)
    kernel = CKernel(job, program(job.pair, job.spec, PRICES))
    assert kernel.describe()["isa"] == "scalar"
    assert_all_same(call(kernel, case), oracle(case), dtype, case.T)


def test_instruction_sets_that_there_are_not(monkeypatch):
    """ELMAN_ISA names one; unknown and missing ones are told with those that there are."""
    job = job_of(random_case(cells.gru, SIZES, 1))
    monkeypatch.setenv("ELMAN_ISA", "mmx")
    with pytest.raises(EngineError, match=r"ELMAN_ISA='mmx'; there are avx512, avx2, neon, scalar"):
        detect()
    monkeypatch.setenv("ELMAN_ISA", "neon" if detect_machine() == "x86" else "avx2")
    with pytest.raises(EngineError, match=r"but this machine has .*scalar"):
        CKernel(job, program(job.pair, job.spec, PRICES))


def detect_machine() -> str:
    import platform

    return "x86" if platform.machine().lower() in ("x86_64", "amd64") else "arm"


def test_many_python_threads_at_once():
    """Kernels keep nothing between calls: threads do not disturb one another."""
    cases = [random_case(cells.lstm, Sizes(20, 4, 5, 13), seed, F64) for seed in range(4)]
    kernel = c_kernel(cases[0])
    alone = [call(kernel, case) for case in cases]

    def wrong(index: int) -> list[str]:
        results = [call(kernel, cases[index]) for _ in range(20)]
        return [n for got in results for n in got if not torch.equal(got[n], alone[index][n])]

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(wrong, range(4)))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
@pytest.mark.parametrize("name", [b"a b", "é".encode(), b"\xff"])
def test_libraries_whose_paths_have_odd_characters(tmp_path, name):
    """They are found among what is mapped: torch may be installed in such a folder."""
    folder = tmp_path / os.fsdecode(name)
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no such name here: {error}")
    library = folder / "libgomp.so"
    library.write_bytes(b"1")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ):
        assert str(library) in threads._loaded()


@pytest.mark.slow
def test_a_locale_that_is_not_utf8():
    """Texts of ours have signs of mathematics. Python chooses UTF-8 in the locale C unless told."""
    script = """
from elman.engines import c
from elman.engines.c.text import units
from elman.interchange.c import project
import locale, pathlib, sys
assert locale.getencoding() != "utf-8" and not sys.flags.utf8_mode
headers = pathlib.Path(c.__file__).with_name("headers")
exported = pathlib.Path(project.__file__).parent
for folder, read in ((headers, units.file), (exported, project.read_text_file)):
    files = [*folder.glob("*.[ch]")]
    assert files
    for path in files:
        assert read(path.name) == path.read_bytes().decode(), path
"""
    words = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    finished(begin_anew("-c", script, **words))


def test_the_number_of_threads_may_change():
    """Between calls, and between a forward and its backward."""
    case = random_case(cells.lstm, Sizes(20, 4, 5, 13), 1, F64)
    kernel, want = c_kernel(case), oracle(case)
    before = torch.get_num_threads()
    given = given_of(case)
    try:
        for ahead, back in ((1, 2), (2, 1), (3, 2), (2, 5)):
            torch.set_num_threads(ahead)
            *_, saved = forward(kernel, given)
            torch.set_num_threads(back)
            dx, *_ = backward(kernel, given, saved, case.d_output, case.d_last.values())
            assert dx is not None
            torch.testing.assert_close(dx, want["dx"])
    finally:
        torch.set_num_threads(before)


SCRIPT = f"""
import os, signal, sys, torch
from elman import cells
from helpers import Sizes, assert_all_same, oracle, random_case
from calls import call
from kernels import c_kernel

signal.alarm(100)  # a hang ends the process
torch.set_num_threads(2)
case = random_case(cells.lstm, {Sizes(20, 4, 5, 13)!r}, 1, torch.float64)
kernel, want = c_kernel(case), oracle(case)

def check():
    assert_all_same(call(kernel, case), want, torch.float64, case.T)
"""


def test_a_fork_after_threads_started(tmp_path):
    """A pool does not survive a fork: the child computes alone, and correctly."""
    run_script(
        SCRIPT
        + """
torch.ones(3000, 3000) @ torch.ones(3000, 300)
check()
for _ in range(3):
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(60)
            check()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    check()
""",
        tmp_path,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [{"OMP_THREAD_LIMIT": "2"}, pytest.param({"OMP_DYNAMIC": "true"}, marks=pytest.mark.long)],
)
def test_a_pool_that_gives_fewer_threads(env, tmp_path):
    """More workers are asked for than come: shares and buffers follow those that do."""
    run_script(
        SCRIPT
        + """
from elman.plan.schedule import SPLITS, Bound
for split in SPLITS:
    fixed = Bound(SPLITS.index(split), 5, 7)
    kernel.schedule = lambda T, B: fixed
    kernel._plans.clear()
    for _ in range(5):
        check()
""",
        tmp_path,
        **env,
    )


def test_inside_another_parallel_region(tmp_path):
    """Called by threads of the same pool: each call runs on its caller alone."""
    run_script(
        SCRIPT
        + """
import ctypes
from elman.engines.c.process.threads import pool
library = ctypes.CDLL(pool().library)
check()
kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
done = []

def body(_):
    check()
    done.append(1)

library.GOMP_parallel(kind(body), None, 2, 0)
assert len(done) == 2, done
""",
        tmp_path,
    )
