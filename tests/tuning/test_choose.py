"""The choice: verified, benchmarked, remembered, refused with reasons; the user's things
untouched."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
import torch

import elman
from elman import cells
from elman.engines import deadline
from elman.engines.call import Gradients
from elman.errors import BuildError, EngineError
from elman.tuning import choose as room
from elman.tuning import decisions
from elman.tuning.choose import choose
from elman.tuning.contest import _sample
from elman.tuning.request import bucket
from elman.tuning.trial import make_trial
from helpers import OwnBackwardEngine, OwnBackwardKernel, Sizes, job_of, random_case, stand_in


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """All calls take as long, and nobody else wants the cores; a test may set both."""
    told = [1e-3, 0.0]

    def sampled(run):
        run()
        return tuple(told)

    monkeypatch.setattr("elman.tuning.contest._sample", sampled)
    return told


@pytest.fixture
def job(monkeypatch, empty_cache):
    """A GRU's job under a cold cache."""
    return job_of(random_case(cells.gru, Sizes(4, 2, 3, 5)))


def stored(folder):
    """All entries of the tuning cache."""
    return sorted((folder / "tuning").glob("*.json"))


def fresh(job, steps=4):
    """Why another process would run what it runs."""
    decisions._decided.clear()
    return choose(job, steps, 2).why


class WrongKernel(OwnBackwardKernel):
    """Off by a little in one gradient."""

    def backward(self, *args):
        d_inputs, d_states, d_weights = super().backward(*args)
        return Gradients(d_inputs, d_states, (d_weights[0] * 1.01, *d_weights[1:]))


class WrongEngine(OwnBackwardEngine):
    """Computes a wrong gradient."""

    def compile(self, job, schedule=None):
        return WrongKernel(job)


class BrokenEngine(OwnBackwardEngine):
    """Has no compiler."""

    def compile(self, job, schedule=None):
        raise BuildError("no C compiler was found")


def test_buckets():
    """Size buckets are (2^(k-1), 2^k]."""
    sizes = (1, 2, 3, 4, 5, 8, 9, 1000, 1024, 1025)
    assert [bucket(size) for size in sizes] == [0, 1, 2, 2, 3, 3, 4, 10, 10, 11]


def test_winner_is_measured_and_remembered(job, monkeypatch, empty_cache):
    """Both engines are timed; the second time the disk knows."""
    stand_in(monkeypatch, OwnBackwardEngine())
    first = choose(job, 4, 2)
    again = choose(job, 3, 2)

    assert (first.why, again.why) == ("benchmarked", "remembered")
    assert set(first.medians_s) == {"c", "aten"}
    assert (again.engine, again.medians_s) == (first.engine, first.medians_s)
    assert len(stored(empty_cache)) == 1
    assert choose(job, 5, 2).why == "benchmarked"
    assert len(stored(empty_cache)) == 2


def test_what_another_version_measured_is_ignored(job, monkeypatch, empty_cache):
    """Its engines were others; the older version finds what it knew."""
    stand_in(monkeypatch, OwnBackwardEngine())
    choose(job, 4, 2)
    with monkeypatch.context() as upgraded:
        upgraded.setattr("elman.tuning.machine.__version__", "99.0")
        assert fresh(job) == "benchmarked"
        assert fresh(job) == "remembered"
    assert fresh(job) == "remembered"
    assert len(stored(empty_cache)) == 2


def test_a_wrong_engine_is_refused(job, monkeypatch, clock):
    """It is recorded with what is off, and another engine runs."""
    stand_in(monkeypatch, WrongEngine())
    choice = choose(job, 4, 2)

    assert choice.engine == "aten"
    assert choice.refusals["c"].startswith(
        "does not agree with the reference: gradient of W is off by"
    )
    assert choose(job, 4, 2).refusals["c"] == choice.refusals["c"]


def test_an_engine_that_cannot_be_built_is_refused(job, monkeypatch):
    """auto goes on with its reason; asked for by name, it raises it."""
    stand_in(monkeypatch, BrokenEngine())
    choice = choose(job, 4, 2)

    assert (choice.engine, choice.refusals["c"]) == ("aten", "no C compiler was found")
    with pytest.raises(BuildError, match="no C compiler was found"):
        choose(job, 4, 2, "c")


class BuggyEngine(OwnBackwardEngine):
    """Breaks an invariant of its own in one method."""

    def __init__(self, method):
        super().__init__()

        def fail(*args):
            raise AssertionError("matrices lie elsewhere")

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["supports", "schedules", "compile"])
def test_a_bug_of_an_engine_does_not_reach_users_of_auto(job, monkeypatch, method):
    """auto goes on without the engine, with a warning; asked for by name, an error says it."""
    stand_in(monkeypatch, BuggyEngine(method))
    bug = r"cannot run gru, by a bug in elman: AssertionError at test_choose.py:\d+ matrices lie"
    with pytest.warns(UserWarning, match=f"engine [a-z-]+ {bug} elsewhere.*; please report it"):
        choice = choose(job, 4, 2)
    assert choice.engine == "aten"
    assert "by a bug in elman" in choice.refusals["c"]
    with pytest.raises(EngineError, match=f"engine c {bug}"):
        choose(job, 4, 2, "c")


def test_a_choice_without_an_engine_that_failed_to_build_is_not_remembered(
    job, monkeypatch, empty_cache
):
    """What kept it from being built may be gone next time: a killed compiler, a full disk."""
    with monkeypatch.context() as patch:
        stand_in(patch, BrokenEngine())
        assert choose(job, 4, 2).why == "benchmarked"
        assert not stored(empty_cache)

    stand_in(monkeypatch, OwnBackwardEngine())
    choice = choose(job, 4, 2)
    assert choice.why == "benchmarked"
    assert set(choice.medians_s) == {"c", "aten"}
    assert len(stored(empty_cache)) == 1


def test_reference_runs_only_what_no_other_engine_can(monkeypatch, empty_cache):
    """It is not benchmarked; the others' reasons are kept."""
    stand_in(monkeypatch, BrokenEngine())
    with pytest.warns(UserWarning, match=r"mgu runs step by step on .*c: no C comp"):
        choice = choose(job_of(random_case(cells.mgu, Sizes(4, 2, 3, 5))), 4, 2)
    assert (choice.engine, choice.why, dict(choice.medians_s)) == ("reference", "only", {})
    assert choice.refusals["aten"] == "mgu is not the formula of torch's RNN, GRU or LSTM"


def test_deterministic_algorithms_measure_nothing(job, monkeypatch, empty_cache):
    """The first engine that can run is taken."""
    stand_in(monkeypatch, OwnBackwardEngine())
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    choice = choose(job, 4, 2)

    assert (choice.engine, choice.why) == ("c", "deterministic")
    assert not stored(empty_cache)


def test_named_engine_measures_its_schedules(job, monkeypatch):
    """Several schedules compete; one does not."""
    stand_in(monkeypatch, OwnBackwardEngine(("wide", "narrow")))
    choice = choose(job, 4, 2, "c")
    assert set(choice.medians_s) == {"c:wide", "c:narrow"}
    assert choose(job, 4, 2, "aten").why == "named"
    with pytest.raises(EngineError, match="no engine 'cudnn'"):
        choose(job, 4, 2, "cudnn")


def test_nothing_of_the_users_is_touched(monkeypatch, empty_cache):
    """Random state, grad mode, gradients, hooks on saved tensors, autocast."""
    stand_in(monkeypatch, OwnBackwardEngine())
    net = elman.Recurrent(cells.gru, 3, 5)
    x = torch.randn(4, 2, 3, requires_grad=True)
    before = torch.get_rng_state()
    packed = []

    def pack(value):
        packed.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        out, _ = net(x)
        count = len(packed)
        net(x)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(packed) == 2 * count
    assert torch.is_grad_enabled()
    assert x.grad is None
    assert out.requires_grad
    with torch.no_grad():
        net(x)
        assert not torch.is_grad_enabled()


def garbage(text):
    return lambda path: path.write_bytes(text)


def edited(**changes):
    """Change what an entry says, keeping it well-formed."""

    def edit(path):
        entry = json.loads(path.read_text())
        entry["value"].update(changes)
        path.write_text(json.dumps(entry))

    return edit


SPOILS = {
    "garbage": garbage(b"\x00\xff{"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "empty": garbage(b""),
    "a list": garbage(b"[1, 2]"),
    "nested": garbage(b"[" * 100000),
    "an engine that is none": edited(samples={"cudnn": [[1.0, 0.0, 1]]}),
    "a schedule that is none": edited(samples={"c:wider": [[1.0, 0.0, 1]]}),
    "samples of another type": edited(samples=["c"]),
    "times that are none": edited(samples={"c": [["fast", 0.0, 1]]}),
    "times that are not finite": edited(samples={"c": [[float("nan"), 0.0, 1]]}),
    "times that are not positive": edited(samples={"c": [[0.0, 0.0, 1]]}),
    "waiting that is none": edited(samples={"c": [[1.0, None, 1]]}),
    "numbers that are too many": edited(samples={"c": [[1.0, 0.0, 1, 0.0]]}),
    "tries that are none": edited(tries="many"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_spoilt_files_are_ignored(job, monkeypatch, empty_cache, spoil):
    """They are benchmarked again and replaced; nothing crashes."""
    stand_in(monkeypatch, OwnBackwardEngine())
    choose(job, 4, 2)
    (path,) = stored(empty_cache)
    assert fresh(job) == "remembered"
    SPOILS[spoil](path)

    assert fresh(job) == "benchmarked"
    assert fresh(job) == "remembered"


def test_an_entry_of_another_key_is_not_believed(job, monkeypatch, empty_cache):
    """A file copied over another's name."""
    stand_in(monkeypatch, OwnBackwardEngine())
    choose(job, 4, 2)
    (path,) = stored(empty_cache)
    choose(job, 8, 2)
    (other,) = [found for found in stored(empty_cache) if found != path]
    other.write_bytes(path.read_bytes())

    assert fresh(job, 8) == "benchmarked"


def test_folder_is_private(job, monkeypatch, empty_cache):
    """0700; one that others may write is not used, which is said once."""
    stand_in(monkeypatch, OwnBackwardEngine())
    choose(job, 4, 2)
    folder = empty_cache / "tuning"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    with pytest.warns(UserWarning, match=f"no records of benchmarks in {folder}: others") as said:
        assert [fresh(job) for _ in range(2)] == ["benchmarked"] * 2
    assert len(said) == 1


def test_a_home_that_cannot_be_written(job, monkeypatch, tmp_path):
    """Benchmarked each time, and nothing is lost but the memory."""
    stand_in(monkeypatch, OwnBackwardEngine())
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ELMAN_CACHE", str(blocked / "cache"))

    assert [fresh(job) for _ in range(2)] == ["benchmarked", "benchmarked"]
    monkeypatch.delenv("ELMAN_CACHE")
    monkeypatch.setattr(
        decisions, "cache_folder", lambda: (_ for _ in ()).throw(RuntimeError("no home"))
    )
    assert fresh(job) == "benchmarked"


def test_budget_is_kept(monkeypatch, empty_cache):
    """Long sequences are cut: what is run to choose is a small part of them."""
    stand_in(monkeypatch, OwnBackwardEngine())
    own = job_of(random_case(cells.gru, Sizes(1, 4, 16, 16)))
    tried = []

    def recorded(job, steps, batch, seed=0):
        tried.append(steps)
        return make_trial(job, steps, batch, seed)

    monkeypatch.setattr(room, "make_trial", recorded)
    monkeypatch.setattr("elman.tuning.contest._sample", lambda run: (1e-3, 0.0))  # nothing is run
    choice = choose(own, 100_000, 4)
    assert choice.why == "benchmarked"
    assert len(tried) == 1
    assert max(tried) < 10_000
    assert bucket(100_000) == 17


def test_measured_again_whatever_is_remembered(job, monkeypatch):
    """``again`` does not ask the disk, and replaces what it knew."""
    stand_in(monkeypatch, OwnBackwardEngine())
    assert choose(job, 4, 2).why == "benchmarked"
    assert choose(job, 4, 2, again=True).why == "benchmarked"
    assert choose(job, 4, 2).why == "remembered"


def test_only_so_many_size_classes_are_measured(monkeypatch, empty_cache):
    """Beyond eight, a new class runs what the most similar one found best."""
    stand_in(monkeypatch, OwnBackwardEngine())
    module = elman.GRU(3, 5)
    for bucket_of_T in range(10):
        module(torch.randn(1 << bucket_of_T, 2, 3))
    choices = list(module.runners["l0"].choices.values())
    assert [choice.why for choice in choices] == ["benchmarked"] * 8 + ["near"] * 2
    assert choices[-1].kernel is choices[7].kernel


class EndlessKernel(OwnBackwardKernel):
    """An iteration that does not converge."""

    def forward(self, call):
        while True:
            deadline.check()


class EndlessEngine(OwnBackwardEngine):
    """Its kernels never end by themselves."""

    def compile(self, job, schedule=None):
        return EndlessKernel(job)


@pytest.mark.parametrize(("endless", "other"), [("c", "deer"), ("deer", "c")])
def test_endless_candidate_is_given_up(job, monkeypatch, endless, other):
    """What iterates without end is benchmarked for a bounded time, whether first in order or not,
    and is known to be slow from then on: later processes do not wait for it again."""
    ticks = SimpleNamespace(perf_counter=itertools.count().__next__)  # a second for each look at it
    monkeypatch.setattr("elman.tuning.contest._sample", _sample)
    monkeypatch.setattr("elman.tuning.contest.waited_s", lambda: None)
    for watch in ("elman.tuning.contest.time", "elman.engines.deadline.time"):
        monkeypatch.setattr(watch, ticks)
    for engine, name in ((EndlessEngine(), endless), (OwnBackwardEngine(), other)):
        engine.name = name
        stand_in(monkeypatch, engine)
    choice = choose(job, 4, 2)
    assert choice.engine != endless
    assert choice.medians_s[endless] > 2 * choice.medians_s[choice.engine]
