"""Claims of a source beside rows: what holds, what does not, what was not measured."""

from __future__ import annotations

from elman.bench.claims import Claim, Rows, Verdict, judged

ROWS = Rows(
    [
        {"case": "a", "seconds": {"elman": {"median": 1.0}, "torch": {"median": 3.0}}},
        {"case": "b", "failed": "no memory"},
    ]
)


def ratio(case: str, other: str = "torch") -> Claim:
    def judge(rows: Rows) -> Verdict:
        found = rows.faster(case, "elman", other)
        return Verdict(found >= 2, f"{found:.1f}x", "because")

    return Claim("4.1", f"{case} is twice as fast", "2x on 61 cores", judge)


def test_claims_are_judged_from_rows():
    lines = judged([ratio("a"), ratio("b"), ratio("c"), ratio("a", "jax")], ROWS)
    assert lines[0][2:] == ("2x on 61 cores", "3.0x", "holds", "because")
    assert [line[4] for line in lines[1:]] == ["not measured"] * 3
    assert [line[5] for line in lines[1:]] == [
        "b was not measured",
        "c was not measured",
        "jax was not measured in a",
    ]
