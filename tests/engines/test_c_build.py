"""From C text to a library, when things go wrong: caches, compilers, processes, threads, forks."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from elman import cells
from elman.engines.c import build as building
from elman.engines.c import calling, compilers
from elman.engines.c.build import build, find_compiler, load
from elman.engines.c.engine import PRICES, CEngine
from elman.engines.c.isa import SCALAR, detect
from elman.engines.c.kernel import CKernel
from elman.engines.registry import find
from elman.errors import BuildError, EngineError
from elman.nn.runner import Runner
from elman.plan.build import program
from helpers import Sizes, assert_all_same, job_of, random_case
from kernels import c_kernel, call, oracle
from unseen import UNSEEN, three_states

HERE = Path(__file__).parent
SIZES = Sizes(T=7, B=3, I=5, H=13)  # the kernels that test_c_agreement compiles, too
F64 = torch.float64
TINY = '__attribute__((visibility("default"))) long answer(void) { return 42; }\n'

pytestmark = pytest.mark.skipif(
    isinstance(find_compiler(), str), reason=f"there is {find_compiler()}"
)


@pytest.fixture(autouse=True)
def fresh_probes():
    """What is known about compilers belongs to one test."""
    compilers._probe.cache_clear()
    building._hung.clear()
    yield
    compilers._probe.cache_clear()
    building._hung.clear()


@pytest.fixture
def counted(tmp_path, monkeypatch) -> Path:
    """The compiler behind a script that writes one line per kernel it compiles into this file."""
    log, script = tmp_path / "compiled", tmp_path / "cc"
    found = find_compiler()
    assert not isinstance(found, str)
    command = " ".join(f"'{part}'" for part in found.command)
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) ;; *) echo one >> "{log}" ;; esac\n'
        f'exec {command} "$@"\n'
    )
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("ELMAN_CC", str(script))
    return log


def compiler(tmp_path: Path, monkeypatch, body: str, name: str = "cc") -> None:
    """Use a compiler that is this shell script (``--version`` answers)."""
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) echo fake 1.0; exit 0;; esac\n{body}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("ELMAN_CC", str(script))


def run_script(text: str, tmp_path: Path, timeout: float = 120, **env: str) -> str:
    """Run Python text in a process of its own that can import the tests' helpers."""
    path = os.pathsep.join([str(HERE.parent), *sys.path])
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    made = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def answer(path: Path) -> int:
    """Copy a library away, so that each load is a new one, and call it."""
    copy = path.with_name(f"{path.stem}-{time.monotonic_ns()}.so")
    shutil.copy(path, copy)
    return load(copy).answer()


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
    assert path.read_bytes()[-32:] == building.hashlib.sha256(path.read_bytes()[:-32]).digest()


@pytest.mark.parametrize("processes", [2, 20])
def test_processes_that_want_the_same_kernel(empty_cache, counted, tmp_path, processes):
    """All get it; one compiles."""
    run_script(
        f"""
        import os
        from elman.engines.c.build import build, load
        from elman.engines.c.isa import SCALAR

        children = []
        for _ in range({processes}):
            child = os.fork()
            if not child:
                status = 1
                try:
                    status = load(build({TINY!r}, SCALAR)).answer() != 42
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * {processes}
        """,
        tmp_path,
    )
    assert counted.read_text() == "one\n"


def test_locks_that_do_not_work(empty_cache, monkeypatch):
    """A file system without locks: everyone compiles for himself."""

    def acquire(self, timeout=None):
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(building.FileLock, "acquire", acquire)
    assert answer(build(TINY, SCALAR)) == 42


def uncached(monkeypatch, tmp_path) -> Path:
    """Build where the cache cannot be used: it warns, and a folder of this process serves."""
    building._own_folder.cache_clear()
    building._warn_uncached.cache_clear()
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
            building.os, "access", lambda path, mode: Path(path) != folder and access(path, mode)
        )
    assert not uncached(monkeypatch, tmp_path).is_relative_to(tmp_path)


def test_a_full_disk(empty_cache, monkeypatch):
    """A clear error, and no half file is left."""

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(building.os, "fsync", full)
        with pytest.raises(BuildError, match=r"cannot keep a kernel in .*: .*No space left"):
            build(TINY, SCALAR)
    folder = empty_cache / "kernels"
    assert not [path for path in folder.iterdir() if path.suffix != ".lock"]
    assert answer(build(TINY, SCALAR)) == 42


def test_no_compiler(monkeypatch, tmp_path):
    """The reason names the way out; by name engine c raises it, `auto` runs something else."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("ELMAN_CC", raising=False)
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None)
    case = random_case(cells.mgu, SIZES)
    reason = CEngine().supports(job_of(case))
    assert reason is not None
    assert reason.startswith("no C compiler (no gcc, clang or cc on the PATH): install gcc or")
    with pytest.raises(BuildError, match="no C compiler"):
        build(TINY, SCALAR)
    with pytest.raises(EngineError, match="no C compiler"):
        find("c").compile(job_of(case))

    runner = Runner(cells.mgu, case.dims)
    given = tuple(tuple(v.values()) for v in (case.inputs, case.states, case.weights))
    out, _ = runner(*given, "auto")
    assert torch.isfinite(out).all()
    (choice,) = runner.choices.values()
    assert choice.engine == "reference"
    assert "no C compiler" in choice.refusals["c"]


def test_a_compiler_that_is_not_there(monkeypatch):
    """CC names nothing: said with its name, and no other compiler is taken behind one's back."""
    monkeypatch.delenv("ELMAN_CC", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    reason = find_compiler()
    assert isinstance(reason, str)
    assert reason.startswith("no C compiler (no-such-compiler -O3: ")
    assert "No such file" in reason


def test_elman_cc_comes_before_cc(counted, empty_cache, monkeypatch):
    """Make sets CC for everything; ELMAN_CC is ours."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert answer(build(TINY, SCALAR)) == 42
    assert counted.read_text() == "one\n"


def leave(text: str) -> str:
    """A script's lines that find what is to be written, then do this to it ("$2")."""
    return f'while [ "$1" != -o ]; do shift; done; {text}'


REFUSING = {  # what the compiler does -> (its script, all that is said)
    "fails": (
        "echo In file x: >&2; echo 'kernel.c:1: error: no' >&2; exit 1",
        "refused a generated kernel: exit status 1: kernel.c:1: error: no",
    ),
    "fails in silence": ("exit 3", "refused a generated kernel: exit status 3"),
    "writes nothing": ("exit 0", "says it compiled a kernel, and wrote nothing"),
    "makes a folder": (leave('mkdir "$2"'), "says it compiled a kernel, and wrote nothing"),
    "writes no UTF-8": (
        r"printf 'err\366r: \377\033[2J\000' >&2; exit 3",
        "refused a generated kernel: exit status 3: err?r: ??[2J?",
    ),
    "babbles": (
        "head -c 20000000 /dev/zero | tr '\\0' x >&2; head -c 9000000 /dev/zero; exit 3",
        "refused a generated kernel: exit status 3: " + 200 * "x",
    ),
    "is killed": (
        "kill -9 $$",
        "broke down at a generated kernel: ended by SIGKILL, perhaps for want of memory",
    ),
    "crashes": ("kill -11 $$", "broke down at a generated kernel: ended by SIGSEGV"),
    "has its gcc's cc1 killed": (
        "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; exit 1",
        "broke down at a generated kernel: ended by SIGKILL, perhaps for want of memory:"
        " gcc: fatal error: Killed signal terminated program cc1",
    ),
    "has its clang killed": (
        "echo 'clang: error: unable to execute command: Killed' >&2; exit 254",
        "broke down at a generated kernel: ended by SIGKILL, perhaps for want of memory:"
        " clang: error: unable to execute command: Killed",
    ),
    "hangs": ("exec sleep 60", "did not compile a kernel within 0.5 s"),
    "hangs in a child": ("sleep 60", "did not compile a kernel within 0.5 s"),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_compiler_that_does_not_compile(name, empty_cache, tmp_path, monkeypatch):
    """Each ends in one clear line, soon, and leaves nothing behind."""
    script, what = REFUSING[name]
    compiler(tmp_path, monkeypatch, script)
    monkeypatch.setattr(building, "_COMPILE", 0.5 if "hangs" in name else 20.0)
    began = time.monotonic()
    with pytest.raises(BuildError) as error:
        build(TINY, SCALAR)
    assert str(error.value) == f"fake 1.0 {what}"
    assert time.monotonic() - began < 10
    folder = empty_cache / "kernels"
    assert not [path for path in folder.iterdir() if path.suffix != ".lock"]


def test_all_words_of_a_refusal_stand_in_the_traceback(empty_cache, tmp_path, monkeypatch):
    """What is not in the one line: whoever reports a bug needs it."""
    compiler(tmp_path, monkeypatch, "echo first >&2; echo 'an error' >&2; echo last >&2; exit 1")
    with pytest.raises(BuildError) as error:
        build(TINY, SCALAR)
    assert str(error.value).endswith("exit status 1: an error")
    assert error.value.__notes__ == ["first\nan error\nlast"]


def test_a_compiler_that_hangs_is_waited_for_once(empty_cache, tmp_path, monkeypatch):
    """The next kernel of this process does not wait again; what it started is gone."""
    compiler(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; sleep 60")
    monkeypatch.setattr(building, "_COMPILE", 0.5)
    for text in (TINY, TINY + "\n"):
        with pytest.raises(BuildError, match=r"did not compile a kernel within 0.5 s"):
            build(text, SCALAR)
        monkeypatch.setattr(building, "_COMPILE", 60)
    group = int((tmp_path / "pid").read_text())
    await_that(lambda: not alive(group))


def await_that(holds, patience: float = 10.0) -> None:
    """Wait until something is so."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def alive(group: int) -> bool:
    """Whether a process group has processes that have not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state not in "ZX":
            return True
    return False


def real() -> str:
    """The shell's words for the compiler that there is."""
    found = find_compiler()
    assert not isinstance(found, str)
    return " ".join(f"'{part}'" for part in found.command)


ASKED = {  # how a compiler is asked to stop -> the lines of its script
    "SIGINT": "kill -INT $$",
    "SIGTERM": "kill -TERM $$",
    "SIGHUP": "kill -HUP $$",
    "a shell around it": "exit 143",
    "gcc": "echo 'gcc: fatal error: Terminated signal terminated program cc1' >&2; exit 1",
    "clang": "echo 'clang: error: unable to execute command: Interrupt' >&2; exit 254",
}


@pytest.mark.parametrize("how", ASKED)
def test_a_compiler_that_was_asked_to_stop_is_called_again(how, empty_cache, tmp_path, monkeypatch):
    """An interrupted build is no failed one; asked twice, it is told."""
    mark, cc = tmp_path / "asked", real()
    again = f'[ -e {mark} ] && exec {cc} "$@"; touch {mark}; {ASKED[how]}; sleep 5'
    compiler(tmp_path, monkeypatch, again)
    assert answer(build(TINY, SCALAR)) == 42
    compiler(tmp_path, monkeypatch, ASKED[how] + "; sleep 5")
    with pytest.raises(BuildError, match=r"broke down at a generated kernel: ended by SIG"):
        build(TINY + "\n", SCALAR)


def test_a_probe_that_was_asked_to_stop_is_made_again(empty_cache, tmp_path, monkeypatch):
    """Else a signal in the first seconds would choose another engine for the whole process."""
    mark, script = tmp_path / "asked", tmp_path / "cc"
    script.write_text(f"#!/bin/sh\n[ -e {mark} ] || {{ touch {mark}; kill -TERM $$; }}\necho v 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("ELMAN_CC", str(script))
    found = find_compiler()
    assert not isinstance(found, str), found
    assert found.version == "v 1"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_to_the_group_does_not_reach_the_compiler(
    number, empty_cache, tmp_path, monkeypatch
):
    """A terminal's Ctrl-C goes to all of the group: who takes it for a wish gets its kernel."""
    heard = []
    before = signal.signal(number, lambda *_: heard.append(number))
    calls = f"echo >> {tmp_path}/calls; kill -{int(number)} -$GROUP"
    compiler(tmp_path, monkeypatch, f'{calls}; exec {real()} "$@"')
    group = os.getpgrp()
    child = os.fork()
    if not child:  # a group of its own, so that the test's runner hears nothing
        status = 1
        try:
            os.setpgid(0, 0)
            os.environ["GROUP"] = str(os.getpid())
            assert answer(build(TINY, SCALAR)) == 42
            status = 0 if heard else 2
        finally:
            os._exit(status)
    signal.signal(number, before)
    assert os.waitpid(child, 0)[1] == 0
    assert os.getpgrp() == group
    assert (tmp_path / "calls").read_text() == "\n"


def test_an_interruption_ends_the_compiler(empty_cache, tmp_path, monkeypatch):
    """What we do not wait for any more does not run on, and nothing of it is kept."""
    compiler(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; sleep 60")

    def interrupt() -> None:
        await_that(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        signal.raise_signal(signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        build(TINY, SCALAR)
    timer.join()
    await_that(lambda: not alive(int((tmp_path / "pid").read_text())))
    assert not [path for path in (empty_cache / "kernels").iterdir() if path.suffix != ".lock"]
    compiler(tmp_path, monkeypatch, f'exec {shutil.which("gcc") or "cc"} "$@"')
    assert answer(build(TINY, SCALAR)) == 42


def test_a_compiler_that_leaves_somebody_with_its_pipe(empty_cache, tmp_path, monkeypatch):
    """A daemon that it starts is not waited for."""
    compiler(tmp_path, monkeypatch, f'sleep 30 & echo $! > {tmp_path}/pid; exec {real()} "$@"')
    monkeypatch.setattr(calling, "_LAST_WORDS", 0.1)
    began = time.monotonic()
    assert answer(build(TINY, SCALAR)) == 42
    assert time.monotonic() - began < 10
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_leftovers_of_killed_processes(empty_cache, counted):
    """Folders of builds that nobody can be working in are removed, others are not."""
    folder = build(TINY, SCALAR).parent
    for name, age in (("old", building._LEFT + 60), ("new", 60)):
        (folder / f"build-{name}").mkdir()
        (folder / f"build-{name}" / "kernel.c").touch()
        os.utime(folder / f"build-{name}", (time.time() - age,) * 2)
    build(TINY + "\n", SCALAR)
    assert [path.name for path in folder.glob("build-*")] == ["build-new"]


COMMANDS = {  # CC -> (whether it works, what is said)
    '"unbalanced': (False, 'no C compiler (CC="unbalanced is no command: No closing quotation): i'),
    "''": (False, "no C compiler ('': "),
    "/nowhere/\udcff": (False, "no C compiler ('/nowhere/?': No such file or directory): install"),
    "{here}/not executable/cc": (False, "no C compiler ({here}/not executable/cc: "),
    "   ": (True, ""),
    "{here}/my tools/cc": (True, ""),
    "'{here}/my tools/cc' -O1": (True, ""),
    "{here}/\udcff/cc": (True, ""),
}


@pytest.mark.parametrize("cc", COMMANDS, ids=ascii)
def test_commands_of_compilers(cc, empty_cache, tmp_path, monkeypatch):
    """Words as a shell's, or a path; what is neither is told in one line."""
    for name in ("my tools/cc", "\udcff/cc", "not executable/cc"):
        compiler(tmp_path, monkeypatch, f'exec {real()} "$@"', name)
        compilers._probe.cache_clear()
        monkeypatch.delenv("ELMAN_CC")
    (tmp_path / "not executable" / "cc").chmod(0o600)
    works, said = COMMANDS[cc]
    monkeypatch.setenv("CC", cc.format(here=tmp_path))
    found = find_compiler()
    if works:
        assert not isinstance(found, str), found
        assert answer(build(TINY, SCALAR)) == 42
    else:
        assert isinstance(found, str)
        assert "\n" not in found
        assert found.encode()
        assert found.startswith(said.format(here=tmp_path)[:60])


NO_LIBRARY = {  # what a compiler that succeeds wrote -> its script, what is said of it
    "nothing at all": (leave(': > "$2"'), "cannot load"),
    "zeros": (leave('head -c 5000 /dev/zero > "$2"'), "cannot load"),
    "random bytes": (leave('head -c 5000 /dev/urandom > "$2"'), "cannot load"),
    "a head and zeros": (
        leave(r"""printf '\177ELF\2\1\1' > "$2"; head -c 5000 /dev/zero >> "$2" """),
        "wrote a part of one",
    ),
    "a part of a library": (
        '{real} "$@"; ' + leave('head -c 9000 "$2" > "$2".half; mv "$2".half "$2"'),
        "wrote a part of one",
    ),
    "another library": (
        leave('echo "int a;" > "$2".c; {real} -shared -fPIC "$2".c -o "$2"'),
        "it has no answer",
    ),
}


@pytest.mark.parametrize("what", NO_LIBRARY)
def test_a_compiler_that_makes_no_library(what, empty_cache, tmp_path, monkeypatch):
    """What cannot be loaded is not kept: with a mended compiler the next attempt is right."""
    script, said = NO_LIBRARY[what]
    cc = real()
    compiler(tmp_path, monkeypatch, script.replace("{real}", cc))
    with pytest.raises(BuildError, match=said) as error:
        load(build(TINY, SCALAR)).answer()
    assert str(error.value).startswith("fake 1.0 ")
    assert "\n" not in str(error.value)
    assert not list((empty_cache / "kernels").glob("*.so"))
    compiler(tmp_path, monkeypatch, f'exec {cc} "$@"')
    assert answer(build(TINY, SCALAR)) == 42


BROKEN = {"fails": REFUSING["fails"], "hangs": REFUSING["hangs in a child"]} | {
    name: NO_LIBRARY[name] for name in ("random bytes", "a part of a library", "another library")
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_compiler_costs_engine_c_alone(name, empty_cache, tmp_path, monkeypatch):
    """``auto`` goes on without it and says why; by its name, it refuses with the reason."""
    script, _ = BROKEN[name]
    compiler(tmp_path, monkeypatch, script.replace("{real}", real()))
    monkeypatch.setattr(building, "_COMPILE", 0.5 if name == "hangs" else 20.0)
    case = random_case(cells.mgu, SIZES)
    given = tuple(tuple(v.values()) for v in (case.inputs, case.states, case.weights))
    runner = Runner(cells.mgu, case.dims)
    out, _ = runner(*given, "auto")
    assert torch.isfinite(out).all()
    (choice,) = runner.choices.values()
    assert choice.engine != "c"
    reasons = [why for label, why in choice.refusals.items() if label.startswith("c")]
    assert reasons
    assert all(why.startswith("fake 1.0 ") and "\n" not in why for why in reasons), reasons
    with pytest.raises(BuildError, match=r"fake 1\.0 "):
        runner(*given, "c")


@pytest.mark.parametrize(
    "version, what",
    [
        ("exit 4", "cc --version failed (exit status 4)"),
        ("kill -9 $$", "cc --version failed (ended by SIGKILL"),
        ("exec sleep 60", "cc --version did not end within 0.5 s"),
        ("sleep 60", "cc --version did not end within 0.5 s"),
    ],
    ids=["fails", "is killed", "hangs", "hangs in a child"],
)
def test_a_compiler_that_does_not_say_what_it_is(version, what, tmp_path, monkeypatch):
    """It is not used."""
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\n{version}\n")
    script.chmod(0o755)
    monkeypatch.setenv("ELMAN_CC", str(script))
    monkeypatch.setattr(compilers, "_PROBE", 0.5)
    reason = find_compiler()
    assert isinstance(reason, str)
    assert what in reason


def kernel_by(cc: str, monkeypatch, case) -> CKernel:
    monkeypatch.setenv("ELMAN_CC", cc)
    job = job_of(case)
    return CKernel(job, program(job.pair, job.spec, PRICES), "")


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


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])
def test_plain_vectors(dtype, monkeypatch):
    """Without any instruction set of its own; gcc 12 once stopped at this cell in float64."""
    case = random_case(three_states, UNSEEN[three_states], 1, dtype)
    monkeypatch.setenv("ELMAN_ISA", "scalar")
    job = job_of(case)
    kernel = CKernel(job, program(job.pair, job.spec, PRICES), "")
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
        CKernel(job, program(job.pair, job.spec, PRICES), "")


def detect_machine() -> str:
    import platform

    return "x86" if platform.machine().lower() in ("x86_64", "amd64") else "arm"


def test_one_kernel_loaded_twice():
    """Two kernels of the same text share a library, and nothing else."""
    case = random_case(cells.gru, SIZES, 1, F64)
    job = job_of(case)
    first, second = (CKernel(job, program(job.pair, job.spec, PRICES), "") for _ in range(2))
    a, b = call(first, case), call(second, case)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_many_python_threads_at_once():
    """Kernels keep nothing between calls: threads do not disturb one another."""
    cases = [random_case(cells.lstm, Sizes(20, 4, 5, 13), seed, F64) for seed in range(4)]
    kernel = c_kernel(cases[0])
    alone = [call(kernel, case) for case in cases]
    wrong: list[str] = []

    def work(index: int) -> None:
        for _ in range(20):
            got = call(kernel, cases[index])
            wrong.extend(n for n in got if not torch.equal(got[n], alone[index][n]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert not wrong


def test_the_number_of_threads_may_change():
    """Between calls, and between a forward and its backward."""
    case = random_case(cells.lstm, Sizes(20, 4, 5, 13), 1, F64)
    kernel, want = c_kernel(case), oracle(case)
    before = torch.get_num_threads()
    given = tuple(tuple(v.values()) for v in (case.inputs, case.states, case.weights))
    try:
        for forward, backward in ((1, 2), (2, 1), (3, 2), (2, 5)):
            torch.set_num_threads(forward)
            *_, saved = kernel.forward(*given)
            torch.set_num_threads(backward)
            d_last = tuple(case.d_last.values())
            (dx,), *_ = kernel.backward(*given, saved, case.d_output, d_last, keep=False)
            assert dx is not None
            torch.testing.assert_close(dx, want["dx"])
    finally:
        torch.set_num_threads(before)


SCRIPT = f"""
import os, signal, sys, torch
from elman import cells
from helpers import Sizes, assert_all_same, random_case
from kernels import call, c_kernel, oracle

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


def test_workers_of_a_data_loader(tmp_path):
    """Forked workers run kernels while the parent does."""
    run_script(
        SCRIPT
        + """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        check()
        return index

if __name__ == "__main__":
    check()
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        check()
""",
        tmp_path,
    )


@pytest.mark.parametrize("env", [{"OMP_THREAD_LIMIT": "2"}, {"OMP_DYNAMIC": "true"}], ids=str)
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
from elman.engines.c.threads import pool
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
