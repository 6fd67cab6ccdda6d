"""Contestants compute the same thing, whoever they are; one that does not is never timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from benchmarks import contestants
from benchmarks.cases import OURS, Case, Effort, KindCase
from benchmarks.contestants import BUILT_IN, CONTESTANTS, FORWARD, TRAIN
from benchmarks.measures import training
from benchmarks.measures.training import measure_steps
from benchmarks.peers.loops import TUNED
from benchmarks.peers.remote import enter
from benchmarks.peers.steps import STEPS
from benchmarks.problem import Contestant, Problem, draw_problem
from benchmarks.suites import SUITES
from benchmarks.suites.ecornn import LAYOUTS, layout_name
from benchmarks.suites.persistent import name_of
from benchmarks.suites.scan import WORK as SCAN
from benchmarks.suites.svail import CHOSEN, MOVED, PLACES, case_name, measure_variants
from benchmarks.users import PROJECTS
from benchmarks.workloads import language, weight_residency
from benchmarks.workloads.fitting import COMBINATIONS, FIT, SWITCHES
from benchmarks.workloads.products import measure_products
from elman.errors import EngineError, VerifyError
from elman.nn import using
from helpers import assert_close, need_engine

LEAST = Effort(1e-9, 1, 1)
BY_NAME: dict[str, Any] = {case.name: case for suite in SUITES.values() for case in suite.cases}
SMALL = Case("small", TRAIN, "gru", 5, 2, 8, contestants=("torch", "elman-aten"), baseline="torch")
FITTED = Case("small 6,5,19", FIT, "tanh_readout", 6, 5, 19, baseline="torch")
PRODUCT = replace(BY_NAME[layout_name(LAYOUTS[0])], B=3, I=5, H=7)
MODEL = replace(BY_NAME["model 2 lstm 35,20,200"], T=3, B=2, H=6)
RESIDENT = replace(BY_NAME[name_of(512, 4)], T=3, B=2, H=9, I=4)
MODELS = [case for case in BY_NAME.values() if case.measure.name == "users"]
FORECAST = BY_NAME["tirex slstm 20,1,512"]
LAYERS = [  # of a GRU, each kind is run by test_suites_in_tiny
    case
    for suite in ("layers", "streams")
    for case in SUITES[suite].cases
    if isinstance(case, KindCase) and case.measure.name == "layers" and case.cell == "lstm"
]
SLOW = pytest.mark.slow  # torch's compiler takes a while to begin


def small(case: Any) -> Any:
    """The same with sizes that are no multiples of anything, but units of heads."""
    return replace(case, T=9, B=4, H=12 if case.kind in ("heads", "tirex") else 13, I=5, judged=0)


def pairs() -> Iterator[Any]:
    """Cases with those who are to agree with the baseline's float64 run, in float64 or float32:
    those that ``test_suites_in_tiny`` leaves out, as it runs one of several cells or libraries."""

    def row(case: Case, *names: str, double: bool = False, marks: Any = ()) -> Any:
        return pytest.param(case, names, double, id=f"{case.name}: {', '.join(names)}", marks=marks)

    for cell in ("leaky_memory", *STEPS):
        for layers in (1, 2) if cell in STEPS else (1,):
            case = replace(SMALL, name=f"{cell} x {layers}", cell=cell, T=7, layers=layers)
            yield row(replace(case, baseline="loop"), OURS, double=True)
    for cell in TUNED:
        case = replace(SMALL, name=f"tuned {cell}", cell=cell, T=7, baseline="tuned-loop")
        yield row(case, OURS, double=True)
    for n in (0, 3):
        case = replace(SMALL, name=f"scan {n}", measure=SCAN, cell="mingru", T=37, I=n)
        yield row(replace(case, baseline="loop"), "jax")
    for case in LAYERS:
        beside = case.kind == "beside"
        names, marks = case.contestants[: 1 if beside else None], [pytest.mark.long] * beside
        # two processes each, where two run beside each other
        yield row(replace(case, T=min(case.T, 7), B=min(case.B, 3), H=5), *names, marks=marks)
    for name in ("numpy", "quadratic", "compiled"):
        yield row(FITTED, name, marks=SLOW if name == "compiled" else ())
    for case in MODELS:
        ways = [way for way in PROJECTS[case.kind].ways if (way, case.cell) != ("padded", "lstm")]
        yield row(small(case), *ways, f"{OURS}-reference", double=True)
    yield row(small(FORECAST), "loop", f"{OURS}-reference", double=True)
    update = replace(BY_NAME["cleanrl-ppo lstm 128,8,128"], T=3, B=4, H=5)
    yield row(update, "loop", f"{OURS}-reference", double=True)


def entered(name: str, problem: Problem) -> Contestant | str:
    """A contestant in this process, unless its threads outlive it."""
    measure = problem.case.measure
    if name == "jax" and find_spec("jax") is not None:
        return enter(name, problem)
    assert measure.enter is not None
    return measure.enter(name, problem)


def present(name: str, problem: Problem, enter: Any = enter) -> Contestant:
    """A contestant that can run, where it is to run."""
    contestant = enter(name, problem)
    assert isinstance(contestant, Contestant)
    return contestant


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # dynamo's
@pytest.mark.parametrize("case, names, double", [*pairs()])
def test_all_agree(case, names, double):
    """Output, last states and every gradient of the baseline in float64, by one table of
    tolerances, in a second run too; who is absent is not installed."""
    want = present(case.baseline, draw_problem(case).double()).results()
    gradients = sum(name.startswith("gradient") for name in want)
    kind = getattr(case, "kind", "")
    assert (gradients > 0) == (case.measure.backward and kind != "acting")
    assert gradients >= 4 or case not in map(small, MODELS)
    assert all(value.abs().max() > 0 for value in want.values())
    for name in names:
        problem = draw_problem(case).double() if double else draw_problem(case)
        with using(engine="reference"):
            contestant = entered(name, problem)
            if isinstance(contestant, str):
                assert "not installed" in contestant
                continue
            for _ in range(2):
                got = contestant.results()
                assert got.keys() == want.keys()
                for result, value in want.items():
                    assert_close(got[result], value, msg=f"{name}: {result}")
            contestant.close()


def test_a_cell_that_begins_at_no_zeros():
    """Its loop begins there too, and has the module's gradients: none of what it begins at."""
    problem = draw_problem(replace(SMALL, cell="izhikevich", baseline="loop")).double()
    want = present("loop", problem).results()
    with using(engine="reference"):
        got = present(OURS, problem).results()
    assert got.keys() == want.keys()
    assert want["gradient of W_l0"].abs().max() > 0
    for name, value in want.items():
        assert_close(got[name], value, msg=name)


def test_engines_of_a_suite_are_asked_for_by_name():
    """Each runs on the engine of its name, and they agree."""
    names = ("elman-c", "elman-deer", "elman-scan-backward")
    case = replace(SMALL, cell="paragru", contestants=names, baseline="elman-deer")
    row = measure_steps(case, LEAST)
    for name in row["seconds"]:
        (layer,) = row["facts"][name].values()
        assert {record["engine"] for record in layer.values()} == {name.removeprefix("elman-")}


@pytest.mark.parametrize("measure", [TRAIN, FORWARD], ids=lambda way: way.name)
@pytest.mark.parametrize("cell", BUILT_IN)
@pytest.mark.parametrize("name", ["jax", "onnxruntime"])
def test_peer_is_the_cell(name, cell, measure):
    """A peer that is installed computes what torch does; one that is not, or cannot, says so."""
    case = replace(SMALL, cell=cell, measure=measure, contestants=(name,))
    problem = draw_problem(case)
    peer = entered(name, problem)
    if isinstance(peer, str):
        assert "not installed" in peer or (name, measure) == ("onnxruntime", TRAIN)
        return
    torchs, results = present("torch", problem).results(), peer.results()
    assert results.keys() == torchs.keys()
    for result, value in results.items():
        assert_close(value, torchs[result], msg=result)
    assert peer.facts()["version"]
    peer.close()


def test_a_process_of_its_own():
    """There a contestant is timed over as many calls as are asked for; its results come back."""
    problem = draw_problem(FITTED)
    near, far = present("numpy", problem, entered), present("numpy", problem)
    assert far.sample is not None
    assert far.sample(3) > 0.0
    results = far.results()
    for key, value in near.results().items():
        assert_close(results[key], value)
    assert (far.wants, far.facts()) == (near.wants, near.facts())
    far.close()


def test_same_numbers_for_all():
    """Problems are drawn from the seed, apart from the global generator; gains are tamed."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    item, two = draw_problem(SMALL), draw_problem(SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(item.x, two.x)
    assert item.weights.keys() == two.weights.keys()
    assert all(torch.equal(item.weights[name], two.weights[name]) for name in item.weights)

    gains = draw_problem(replace(SMALL, cell="lstm_layernorm")).weights
    assert gains["gx_l0"].unique().tolist() == [0.5]


def test_work_is_counted():
    """Products alone: 2·G·H·(I+H)·T·B forward, three times that in training, but for x where its
    gradient is not wanted."""
    forward = replace(SMALL, measure=FORWARD, I=3)
    assert draw_problem(forward).flop == 2 * 3 * 8 * (3 + 8) * 5 * 2
    assert draw_problem(replace(SMALL, I=3)).flop == 3 * draw_problem(forward).flop
    assert draw_problem(FITTED).flop == 2 * 8 * 19 * 19 * 6 * 5
    assert draw_problem(RESIDENT).flop == 2 * 3 * 2 * 9 * (4 + 9)
    assert draw_problem(PRODUCT).flop == 2 * 3 * 5 * 7


@pytest.mark.parametrize("kind", ["another result", "a gradient less"])
def test_wrong_contestant_is_not_timed(monkeypatch, kind):
    """One whose results differ, or lack a gradient, stops the case before anything is timed."""

    def results(right):
        values = right.results()
        if kind == "another result":
            return {k: v * 1.01 for k, v in values.items()}
        return {k: v for k, v in values.items() if k != "gradient of x"}

    def wrong(problem):
        right = present("torch", problem)
        return Contestant(right.run, lambda: results(right), right.wants, right.facts)

    monkeypatch.setitem(contestants.CONTESTANTS, "elman", wrong)
    monkeypatch.setattr(training, "time_side_by_side", lambda *_: pytest.fail("timed"))
    texts = r"small: elman disagrees with torch: .* is off by|do not both have gradient of x"
    with pytest.raises(VerifyError, match=texts):
        measure_steps(replace(SMALL, contestants=("torch", "elman")), LEAST)


def test_absent_contestant_has_its_reason():
    """Who cannot run a case is absent with a reason, and the others are timed."""
    result = measure_steps(replace(SMALL, contestants=("torch", "tuned-loop")), LEAST)
    assert result["absent"] == {"tuned-loop": "no loop is written for gru"}
    assert result["seconds"].keys() == {"torch"}

    with pytest.raises(EngineError, match=r"torch\.nn has no mgu"):
        measure_steps(replace(SMALL, cell="mgu"), LEAST)


def test_combinations_are_all_there():
    """Of suite cmu each set of switches once; the one with all is engine c, with none serial."""
    switches, out = set(SWITCHES), {name: set(left) for name, left in COMBINATIONS.items()}
    assert len({frozenset(left) for left in out.values()}) == 2 ** len(SWITCHES)
    assert all(
        switches - left == {*name.split("+")} & switches for name, left in out.items() if left
    )
    assert (out["serial"], out["elman-c"]) == (switches, set())


def test_a_wrong_variant_is_found(monkeypatch):
    """A variant of suite svail that computes something else is found."""
    case = replace(BY_NAME[case_name(PLACES[0])], T=3, B=2, H=9, contestants=(CHOSEN, MOVED))
    engine_c = CONTESTANTS["elman-c"]
    monkeypatch.setitem(CONTESTANTS, "elman-save", lambda p: engine_c(replace(p, x=p.x + 0.1)))
    with pytest.raises(VerifyError, match="elman-save disagrees with elman-c"):
        measure_variants(case, LEAST)


def test_weights_come_from_other_memory_each_step(monkeypatch):
    """So many copies, one after another, that all of them are as large as was asked for."""
    need_engine("c")
    problem = draw_problem(RESIDENT)
    size = problem.weights["weight_hh_l0"].numel() * 4
    monkeypatch.setattr(weight_residency, "COLD_BYTES", 5 * size - 1)
    read: list[int] = []
    plain = torch.addmm

    def noted(row, h, weight):
        read.append(weight.data_ptr())
        return plain(row, h, weight)

    monkeypatch.setattr(weight_residency.torch, "addmm", noted)
    layer = weight_residency.stepped(problem, cold=True)
    for _ in range(5):
        layer(problem.x)
    assert len({*read}) == 5
    assert read[:5] * 3 == read
    weight_residency.stepped(problem)(problem.x)
    assert {*read[15:]} == {problem.weights["weight_hh_l0"].data_ptr()}


def test_speeds_of_layouts_are_told():
    """Of 2 B I H operations, beside rows."""
    row = measure_products(PRODUCT, LEAST)
    assert row["told"].startswith("GFLOP/s: rows ")
    assert row["ratio"].keys() == {"columns", "elman-c"}


def test_a_step_of_a_model_updates_it(monkeypatch):
    """What is timed is the whole step of a word model; what is compared is before it."""
    monkeypatch.setattr(language, "WORDS", dict.fromkeys(language.WORDS, 11))
    monkeypatch.setattr(language, "_RATE", 1.0)
    contestant = present("torch", draw_problem(MODEL))
    first = contestant.results()
    assert {"gradient of embedding.weight", "gradient of readout.linear.bias"} < first.keys()
    contestant.run()
    assert contestant.results()["loss"] < first["loss"]


def test_spikes_are_compared_where_nothing_is_rounded():
    """Over the first steps, whose number the case names; some neurons fire."""
    case = next(case for case in MODELS if case.kind == "snntorch")
    assert 0 < case.judged < case.T
    result = measure_steps(replace(case, T=12, B=3, H=9, I=5), LEAST)
    assert result["compared"] == case.judged
    spikes = present("loop", draw_problem(replace(case, T=case.judged, B=32))).results()["output"]
    assert 0.01 < float(spikes.mean()) < 0.99
    assert set(spikes.unique().tolist()) == {0.0, 1.0}
