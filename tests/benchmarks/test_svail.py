"""Suite svail: variants are what the post's are, claims are judged on rows, models are trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from bench_rows import steady
from benchmarks.cases import Effort
from benchmarks.claims import Rows, judged
from benchmarks.contestants import CONTESTANTS
from benchmarks.studies import learning_studies
from benchmarks.studies.learning_studies import measure_characters
from benchmarks.suites.svail import (
    BARS,
    CHOSEN,
    PLACES,
    SVAIL,
    VARIANTS,
    case_name,
    measure_tapes,
    measure_variants,
)
from elman.errors import VerifyError

LEAST = Effort(1e-9, 1, 1)
BY_NAME = {case.name: case for case in SVAIL.cases}


def rows(seconds: Iterable[float]) -> list[dict]:
    """A row for every place, with these seconds of the variants."""
    timed = {name: steady(value) for name, value in zip(VARIANTS, seconds, strict=True)}
    best = timed[CHOSEN]["median"]
    ratio = {name: steady(best / one["median"]) for name, one in timed.items()}
    row = {"flop": 10**9, "seconds": timed, "ratio": ratio}
    return [{"case": case_name(place), **row} for place in PLACES]


LADDER = (1.0, 1.05, 1.3, 1.2, 1.3, 1.4)


def test_variants_agree(monkeypatch):
    """All variants of one formula compute the same; one that does not is found."""
    small = replace(BY_NAME[case_name(PLACES[0])], T=3, B=2, H=9)
    found = measure_variants(small, LEAST)
    assert not found["absent"]
    assert [*found["seconds"]] == [*VARIANTS]
    assert found["ratio"].keys() == {*VARIANTS} - {small.baseline}
    other = CONTESTANTS["elman-c"]
    monkeypatch.setitem(CONTESTANTS, "elman-save", lambda p: other(replace(p, x=p.x + 0.1)))
    with pytest.raises(VerifyError, match="elman-save disagrees with elman-c"):
        measure_variants(small, LEAST)


def test_claims_are_judged():
    """A ladder as the post's holds; one without any gain does not."""
    kept = {"case": "kept", "asked": {"H": 512}, **measure_tapes(BY_NAME["kept"], LEAST)}
    bits = {"gru_before": [2.0, 2.1], "gru": [2.02, 2.05]}
    study = {"case": "characters", "bits": bits}
    every = [*rows(LADDER), kept, study]
    verdicts = {line[1]: line for line in judged(SVAIL.claims, Rows(every))}
    assert {line[4] for line in verdicts.values()} <= {"holds", "does not hold"}
    held = {says for says, line in verdicts.items() if line[4] == "holds"}
    assert held >= {claim.says for claim in SVAIL.claims if "optimized at 64" not in claim.says}
    flat = [*rows([1.0] * 6), kept]
    flat.append({**study, "bits": {**bits, "gru": [3.0, 3.1]}})
    lost = [line for line in judged(SVAIL.claims, Rows(flat)) if line[4] == "does not hold"]
    assert len(lost) >= len(SVAIL.claims) - 2
    told = {line[4] for line in judged(SVAIL.claims, Rows([]))}
    assert told == {"not measured"}


def test_plots_have_both_machines():
    """The post's bars beside ours, and nothing where nothing was measured."""
    bars, rates = SVAIL.plots(Rows(rows(LADDER)))
    assert bars["lines"]["concatenate, here"] == [
        [H for H, _ in BARS],
        [pytest.approx(1.4 / 1.2)] * 5,
    ]
    assert rates["lines"].keys() == {"variant 1", "variant 4"}
    (bars,) = SVAIL.plots(Rows([]))
    assert all("TitanX" in name for name in bars["lines"])


@pytest.mark.slow
def test_characters(monkeypatch, tmp_path):
    """Both cells from every seed on equal steps; bits and curves of each."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k} of {k * k}\n" for k in range(4000)))
    monkeypatch.setattr(learning_studies, "STEPS", 10)
    monkeypatch.setattr(learning_studies, "_TOKENS", 4096)
    monkeypatch.setattr(learning_studies, "SEEDS", (0, 1))
    small = replace(BY_NAME["characters"], T=8, B=4, H=9)
    found = measure_characters(small, LEAST, data=str(text))
    assert {name: len(values) for name, values in found["bits"].items()} == {
        "gru_before": 2,
        "gru": 2,
    }
    (plot,) = found["plots"]
    assert len(plot["lines"]) == 4
    for places, values in plot["lines"].values():
        assert places[-1] == 10
        assert len(places) == len(values) > 1
