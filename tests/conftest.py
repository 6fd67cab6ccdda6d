"""What every test gets: a cache of its own, poisoned buffers, golden texts, hypothesis profiles."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_LINES = 60  # a longer text is read by nobody: print less, or split it

KERNELS = ("elman.tuning.kernels._kernels", "kernels._kernels")  # what a process has made
_optimized: tuple[dict[object, object], ...] = tuple({} for _ in KERNELS)

# Compiling a kernel inside an example is slow by nature: no deadline, no health check on time.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("usual", max_examples=10, **PATIENT)
settings.register_profile("ci", max_examples=10, derandomize=True, **PATIENT)
settings.register_profile("long", max_examples=500, print_blob=True, **PATIENT)
settings.load_profile("ci" if os.environ.get("CI") else "usual")


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write tests/golden/*.txt anew; runs only the tests that have a golden text",
    )
    parser.addoption(
        "--once",
        action="store_true",
        help="run each test with the first of its parameters alone, as `make check` does",
    )
    parser.addoption(
        "--kernel-texts",
        type=Path,
        metavar="FILE",
        help="append a hash of every kernel text that is generated; see tests/kernel_texts.py",
    )
    parser.addoption(
        "--failures",
        type=Path,
        metavar="FILE",
        help="append the report of each test that fails as soon as it has: a run may be cut short",
    )


class Failures:
    """Appends reports of failed tests to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report):
        """Of every test, in the process that gathers them."""
        if report.failed:
            with self._file.open("a") as lines:
                lines.write(f"{report.nodeid} ({report.duration:.0f} s)\n{report.longreprtext}\n\n")


def pytest_make_parametrize_id(val):
    """Cells and all else that has a name by it; containers, and types of numbers, as texts."""
    if isinstance(val, (str, int, float, type, type(None))):
        return None  # as ever
    name = getattr(val, "name", None)
    if isinstance(name, str):
        return name
    if isinstance(val, (set, frozenset)):
        return "+".join(sorted(map(str, val))) or "nothing"
    if type(val).__name__ not in ("tuple", "list", "dict", "dtype"):
        return None
    text = "-".join(map(_named, val)) if isinstance(val, (tuple, list)) else str(val)
    odd = len(text) > 60 or " at 0x" in text or "set(" in text
    return None if odd else text.removeprefix("torch.")


def _named(val):
    """An element of a parameter."""
    return pytest_make_parametrize_id(val) or str(val)


def pytest_configure(config):
    """Move elman's cache and poison its buffers, before anything imports elman.

    ELMAN_CACHE: a fresh folder, private to this run and gone after it; ELMAN_TEST_CACHE names one
    that is kept instead. ELMAN_POISON: engines fill their fresh buffers with NaN, so that an
    element nobody wrote shows. OMP_WAIT_POLICY: threads of torch's own products sleep while they
    wait; spinning, two workers of pytest-xdist take each other's cores, and a product of small
    matrices takes a scheduler's tick. ELMAN_CFLAGS: kernels are not optimized, which takes a third
    of the time, and at the sizes of tests they run as fast; ``as_users`` has what users have, and
    ``ELMAN_CFLAGS= pytest`` all tests. TORCHINDUCTOR_VEC_ISA_OK: torch takes the processor's
    instructions as given, instead of compiling programs that use them. Processes that tests start
    keep Python's bytecode, whatever the environment says: each imports elman. Workers inherit all
    of them. A shell has what it starts in the background ignore Ctrl-C, which some tests send.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under nohup
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["ELMAN_POISON"] = "1"
    os.environ.setdefault("ELMAN_CFLAGS", "-O0")
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput"):
        _move_cache(config)
    if (failures := config.getoption("--failures")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(failures.absolute()))
    if texts := config.getoption("--kernel-texts"):
        import kernel_texts

        kernel_texts.record(texts.absolute())


def _move_cache(config):
    """ELMAN_CACHE for this process and all that it starts."""
    kept = os.environ.get("ELMAN_TEST_CACHE")
    if kept:
        folder = Path(kept).expanduser().resolve()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.mkdtemp(prefix="elman-tests-"))
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["ELMAN_CACHE"] = str(folder)
    for name in ("ELMAN_ENGINE", "ELMAN_FORCE_ENGINE"):
        os.environ.pop(name, None)  # a user's setting would choose the engine under test


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Leave the million objects of torch and the tests to no garbage collector: it would look at
    them again and again, an eighth of what tests take in this process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # of what -m and -k leave
def pytest_collection_modifyitems(config, items):
    """With --update-golden run only tests with a golden text; with --once one case of each test."""
    chosen = items
    if config.getoption("--update-golden"):
        chosen = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
    elif config.getoption("--once"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        chosen = [item for item in items if item is first[item.nodeid.partition("[")[0]]]
    if chosen is not items:
        dropped = set(items) - set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = chosen


def pytest_runtest_setup(item):
    """Skip gpu tests where there is none, all with one reason at one place."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device: torch.cuda.is_available()")


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    """What is said once per process is said once per test."""
    monkeypatch.setattr("elman.errors._warned", set())


@pytest.fixture(autouse=True)
def compiled_afresh():
    """Programs that torch compiled for one test count against no limit of others: it compiles one
    function eight times."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


@pytest.fixture(scope="session")
def thread_count() -> int:
    """How many threads torch has before the first test."""
    import torch

    return torch.get_num_threads()


@pytest.fixture(autouse=True)
def threads_as_before(thread_count):
    """Undo what runs of the trainer set: torch's number of threads, on which schedules depend."""
    import torch

    yield
    if torch.get_num_threads() != thread_count:
        torch.set_num_threads(thread_count)


@pytest.fixture(scope="session")
def cache_folder() -> Path:
    """The folder that elman's caches of this run live in."""
    return Path(os.environ["ELMAN_CACHE"])


@pytest.fixture
def empty_cache(tmp_path, monkeypatch, cache_folder) -> Path:
    """A cold cache for one test: ELMAN_CACHE points to an empty private folder, so that every
    kernel is compiled once more. Where that is not the point: ``nothing_known``."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("ELMAN_CACHE", str(folder))
    return folder


@pytest.fixture
def nothing_known(empty_cache, cache_folder) -> Path:
    """Nothing has been measured or verified: as ``empty_cache``, but with this run's kernels, which
    are found by their content and say nothing of that."""
    kernels = cache_folder / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    (empty_cache / "kernels").symlink_to(kernels, target_is_directory=True)
    return empty_cache


@pytest.fixture
def as_users(monkeypatch) -> None:
    """Kernels are optimized as users have them, and shared with no test that does without."""
    monkeypatch.delenv("ELMAN_CFLAGS", raising=False)
    for owner, made in zip(KERNELS, _optimized):
        monkeypatch.setattr(owner, made)


@pytest.fixture(scope="session")
def translations_read_once():
    """torch's exporter to ONNX reads its translations once for all tests: each export reads the
    texts of 500 functions, half of what one takes."""
    _registration = pytest.importorskip("torch.onnx._internal.exporter._registration")
    pytest.importorskip("onnxscript")
    apis = _registration.onnxscript_apis
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            apis, "get_torchlib_ops", functools.cache(apis.get_torchlib_ops), raising=False
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _graphs_verified():
    """The compiler's graphs keep their invariants, whatever a test compiles."""
    from graph_verify import always_verified

    with always_verified():
        yield


@pytest.fixture
def golden(request):
    """Compare a text with ``tests/golden/<name>.txt``: ``golden("plan_gru", str(plan))``."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        got = text.rstrip("\n") + "\n"
        assert got.count("\n") <= GOLDEN_LINES, (
            f"golden text {name!r} has {got.count(chr(10))} lines; at most {GOLDEN_LINES} are read"
        )
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(got, encoding="utf-8", newline="\n")
            return
        assert path.exists(), f"no golden text {path}; look at the text, then: make golden"
        want = path.read_text(encoding="utf-8")
        assert got == want, f"{path} differs; if the change is meant: make golden, read the diff"

    return compare
