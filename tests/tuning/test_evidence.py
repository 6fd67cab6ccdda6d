"""What samples make of a choice: the forecast until they say otherwise, and how sure it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elman.tuning.contest import Evidence, _is_clear

ORDER = ["c:units", "c:batch", "aten"]


def evidence(*processes: dict[str, list[tuple[float, float]]]) -> Evidence:
    """Samples of each process, by the last part of a label."""
    found = Evidence()
    for samples in processes:
        found.tries += 1
        for who in ORDER:
            for seconds, waited in samples.get(who.rpartition(":")[2], ()):
                found.add(who, seconds, waited)
    return found


QUIET, LOADED = 0.0, 0.5
FASTER = {"units": [(1.0, QUIET)] * 3, "batch": [(1.1, QUIET)] * 3, "aten": [(0.9, QUIET)] * 3}
SLOW = {"units": [(2.0, QUIET)] * 9, "batch": [(2.1, QUIET)] * 9, "aten": [(1.5, QUIET)] * 9}
CASES = {  # -> (the choice, whether it is sure)
    "nothing is known": ({}, "c:units", False),
    "the forecast is right": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(1.2, QUIET)] * 3, "aten": [(2.0, QUIET)]},
        "c:units",
        True,
    ),
    "a tie stays with the forecast": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(0.98, QUIET)] * 3, "aten": [(2.0, QUIET)]},
        "c:units",
        True,
    ),
    "quiet samples say otherwise": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(0.9, QUIET)] * 3, "aten": [(2.0, QUIET)]},
        "c:batch",
        True,
    ),
    "one quiet sample of a small difference": (
        {"units": [(1.0, QUIET)], "batch": [(0.95, QUIET)], "aten": [(2.0, QUIET)]},
        "c:units",
        False,
    ),
    "one quiet sample of a large one": (
        {"units": [(1.0, QUIET)], "batch": [(0.8, QUIET)], "aten": [(2.0, QUIET)]},
        "c:batch",
        False,
    ),
    "load: torch's own seemed faster in one round": (
        {"units": [(0.62, LOADED)], "batch": [(0.9, LOADED)], "aten": [(0.2, LOADED)]},
        "c:units",
        False,
    ),
    "load inflates, quiet samples count": (
        {
            "units": [(2.0, LOADED)] * 9 + [(1.0, QUIET)] * 3,
            "batch": [(1.1, QUIET)] * 3,
            "aten": [(1.4, QUIET)] * 3,
        },
        "c:units",
        True,
    ),
    "a rival that is far off, under load": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(1.2, QUIET)] * 3, "aten": [(9.0, LOADED)]},
        "c:units",
        True,
    ),
    "a rival that is somewhat off, under load": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(1.2, QUIET)] * 3, "aten": [(3.0, LOADED)]},
        "c:units",
        False,
    ),
    "torch's own is faster in one process": (FASTER, "aten", False),
    "torch's own is faster in two quiet samples": (
        {"units": [(1.0, QUIET)] * 3, "batch": [(1.1, QUIET)] * 3, "aten": [(0.5, QUIET)] * 2},
        "c:units",
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_choices(name):
    samples, choice, sure = CASES[name]
    found = evidence(samples)
    best = found.best(ORDER, cautious=("aten",))
    assert (best, found.sure(ORDER, best, ("aten",))) == (choice, sure)


@pytest.mark.parametrize(
    "processes, choice, sure",
    [
        ([FASTER, FASTER], "aten", True),
        ([SLOW], "aten", False),
        ([SLOW, {"units": [(1.0, QUIET)] * 3, "aten": [(1.4, QUIET)] * 3}], "c:units", True),
        ([SLOW, {"aten": [(1.4, QUIET)] * 3}], "aten", False),
    ],
)
def test_several_processes(processes, choice, sure):
    """Torch's own is sure once it is faster in two; a process that was slow in part is outvoted."""
    found = evidence(*processes)
    best = found.best(ORDER, cautious=("aten",))
    assert (best, found.sure(ORDER, best, ("aten",))) == (choice, sure)


def test_a_clear_winner_ends_a_contest():
    """By the quiet samples of this process; ties, few samples and those under load do not."""
    clear = {"units": [(1.0, QUIET)] * 4, "batch": [(1.2, QUIET)] * 4}
    assert _is_clear(evidence(clear), ORDER[:2])
    assert not _is_clear(evidence(clear, {}), ORDER[:2]), "benchmarked by another process"
    assert not _is_clear(evidence({**clear, "batch": [(1.01, QUIET)] * 4}), ORDER[:2])
    assert not _is_clear(evidence({**clear, "batch": [(1.2, QUIET)] * 2}), ORDER[:2])
    assert not _is_clear(evidence({**clear, "batch": [(1.2, LOADED)] * 4}), ORDER[:2])


def test_the_quietest_samples_are_kept():
    found = Evidence()
    for number in range(100):
        found.add("c", 1.0 + number, 0.01 * number)
    assert len(found.samples["c"]) < 20
    assert found.time("c") < 5.0


def test_it_ends():
    """After so many processes more of them will not know better."""
    found = evidence({"units": [(1.0, LOADED)], "batch": [(1.0, LOADED)], "aten": [(1.0, LOADED)]})
    found.tries = 10
    assert found.sure(ORDER, found.best(ORDER))


SAMPLES = st.lists(
    st.tuples(st.floats(1e-9, 100.0), st.floats(0.0, 2.0), st.integers(1, 5)), max_size=5
)


@given(st.dictionaries(st.sampled_from(ORDER), SAMPLES), st.integers(0, 20))
def test_it_comes_back_from_disk(samples, tries):
    found = Evidence(samples, tries)
    text = json.dumps(found.to_json())
    assert Evidence.from_json(json.loads(text), ORDER) == found
    if any(samples.values()):
        used = [who for who in ORDER if samples.get(who)]
        others = [who for who in ORDER if who not in used[:1]]
        assert Evidence.from_json(json.loads(text), others) == Evidence(), "of other candidates"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.one_of(st.none(), st.fixed_dictionaries({"samples": JSON, "tries": JSON}), JSON))
def test_nothing_that_is_stored_can_hurt(value):
    found = Evidence.from_json(value, ORDER)
    assert found.best(ORDER) in ORDER
