"""Compilers that are missing, broken, killed, slow or talkative: one clear line each."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import threading
import time

import pytest
import torch

from calls import call_of, given_of
from elman import cells
from elman.engines.c.compilation import build as building
from elman.engines.c.compilation import calling, compilers
from elman.engines.c.compilation.build import build, find_compiler, load
from elman.engines.c.compilation.isa import SCALAR
from elman.engines.c.engine import CEngine
from elman.engines.registry import find
from elman.errors import BuildError, EngineError
from elman.nn.execute.layer import Runner
from fake_compilers import TINY, alive, answer, await_that, compiler, leave, real
from helpers import Sizes, job_of, random_case, run_layer

SIZES = Sizes(T=7, B=3, I=5, H=13)  # the kernels that test_c_agreement compiles, too

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
    given = call_of(given_of(case))
    with pytest.warns(UserWarning, match="mgu runs step by step.*no C compiler"):
        out, _, _ = run_layer(runner, given, "auto")
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


REFUSING = {  # what the compiler does -> (its script, all that is said)
    "fails": (
        "echo In file x: >&2; echo 'kernel.c:1: error: no' >&2; exit 1",
        "refused a generated kernel: exit status 1: kernel.c:1: error: no",
    ),
    "fails in silence": ("exit 3", "refused a generated kernel: exit status 3"),
    "writes nothing": ("exit 0", "reported success, but wrote no file"),
    "makes a folder": (leave('mkdir "$2"'), "reported success, but wrote no file"),
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
        "refused a generated kernel: exit status 1, perhaps for want of memory:"
        " gcc: fatal error: Killed signal terminated program cc1",
    ),
    "has its clang killed": (
        "echo 'clang: error: unable to execute command: Killed' >&2; exit 254",
        "refused a generated kernel: exit status 254, perhaps for want of memory:"
        " clang: error: unable to execute command: Killed",
    ),
    "hangs": ("exec sleep 600", "did not compile a kernel within 0.5 s"),
    "hangs in a child": ("sleep 600", "did not compile a kernel within 0.5 s"),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_compiler_that_does_not_compile(name, empty_cache, tmp_path, monkeypatch):
    """Each ends in one clear line, soon, and leaves nothing behind."""
    script, what = REFUSING[name]
    compiler(tmp_path, monkeypatch, script)
    monkeypatch.setattr(building, "_COMPILE", 0.5 if "hangs" in name else 100.0)
    began = time.monotonic()
    with pytest.raises(BuildError) as error:
        build(TINY, SCALAR)
    assert str(error.value) == f"fake 1.0 {what}"
    assert time.monotonic() - began < 100
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


ASKED = {  # how a compiler is asked to stop -> the lines of its script
    "SIGINT": "kill -INT $$",
    "SIGTERM": "kill -TERM $$",
    "SIGHUP": "kill -HUP $$",
    "a shell around it": "exit 143",
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


@pytest.mark.parametrize("slow_s", [0, 1], ids=["running", "just started"])
def test_an_interruption_ends_the_compiler(slow_s, empty_cache, tmp_path, monkeypatch):
    """What we do not wait for any more does not run on, and nothing of it is kept or left open."""
    start = calling.subprocess.Popen

    def start_slowly(*args, **kwargs):
        process = start(*args, **kwargs)
        time.sleep(slow_s)
        return process

    monkeypatch.setattr(calling.subprocess, "Popen", start_slowly)
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
    compiler(tmp_path, monkeypatch, f'sleep 600 & echo $! > {tmp_path}/pid; exec {real()} "$@"')
    began = time.monotonic()
    assert answer(build(TINY, SCALAR)) == 42
    assert time.monotonic() - began < 100
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


COMMANDS = {  # CC -> (whether it works, what is said)
    '"unbalanced': (
        False,
        'no C compiler (CC="unbalanced is not a command: No closing quotation): i',
    ),
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
        "wrote only part of a file",
    ),
    "a part of a library": (
        '{real} "$@"; ' + leave('head -c 9000 "$2" > "$2".half; mv "$2".half "$2"'),
        "wrote only part of a file",
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


BROKEN = {"hangs": REFUSING["hangs in a child"]} | {
    name: NO_LIBRARY[name] for name in ("a part of a library", "another library")
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_compiler_costs_engine_c_alone(name, empty_cache, tmp_path, monkeypatch):
    """``auto`` goes on without it and says why; by its name, it refuses with the reason."""
    script, _ = BROKEN[name]
    compiler(tmp_path, monkeypatch, script.replace("{real}", real()))
    monkeypatch.setattr(building, "_COMPILE", 0.5 if name == "hangs" else 20.0)
    case = random_case(cells.mgu, SIZES)
    given = call_of(given_of(case))
    runner = Runner(cells.mgu, case.dims)
    with pytest.warns(UserWarning, match=r"mgu runs step by step.*slow: c: fake 1\.0 "):
        out, _, _ = run_layer(runner, given, "auto")
    assert torch.isfinite(out).all()
    (choice,) = runner.choices.values()
    assert choice.engine != "c"
    reasons = [why for label, why in choice.refusals.items() if label.startswith("c")]
    assert reasons
    assert all(why.startswith("fake 1.0 ") and "\n" not in why for why in reasons), reasons
    with pytest.raises(BuildError, match=r"fake 1\.0 "):
        run_layer(runner, given, "c")


@pytest.mark.parametrize(
    "version, what",
    [
        ("exit 4", "cc --version failed (exit status 4)"),
        ("kill -9 $$", "cc --version failed (ended by SIGKILL"),
        ("exec sleep 600", "cc --version did not end within 0.5 s"),
        ("sleep 600", "cc --version did not end within 0.5 s"),
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


def test_a_system_with_short_longs_is_refused(monkeypatch):
    """Kernels take addresses as C's long: where that has 32 bits, engine c says so in one line."""
    monkeypatch.setattr(compilers.ctypes, "c_long", ctypes.c_int32)
    monkeypatch.setattr(compilers.platform, "system", lambda: "Windows")
    reason = find_compiler()
    assert reason == "engine c does not run on Windows: its kernels need a C long of 64 bits"
