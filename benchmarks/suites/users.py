"""Suite ``users``: models that published projects run a step at a time, and the same on elman."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import OURS, Case, Suite
from benchmarks.claims import Claim, Rows, Verdict
from benchmarks.table import share_of_peak
from benchmarks.users.ppo import EPOCHS, FEATURES, MINIBATCHES
from benchmarks.users.spikes import EXACT

LOOP, PADDED = "loop", "padded"
UPDATE, RECURRENT = "cleanrl-ppo lstm 128,8,128", "cleanrl lstm 128,2,128"
TORCHRL, EPISODES = "torchrl gru 128,256,512", "torchrl-padded gru 128,64,512"


@dataclass(frozen=True)
class Aim:
    """What is asked of a case, and what its project's users say.

    Attributes:
        ratio: how many times as fast as the project's loop at least.
        says: what loops, in words.
        there: a number of the project's own threads, with its place.
    """

    case: Case
    ratio: float
    says: str
    there: str = ""


def _aim(name: str, kind: str, ratio: float, says: str, there: str = "", **more: Any) -> Aim:
    """The aim of a case whose name ends with T,B,H and has the cell before it."""
    cell, shape = name.split()[1:]
    T, B, H = map(int, shape.split(","))
    fields = {"measure": "users", "contestants": (LOOP, OURS, f"{OURS}-c"), **more}
    case = Case(name, cell=cell, T=T, B=B, H=H, baseline=LOOP, ratio=ratio, kind=kind, **fields)
    return Aim(case, ratio, says, there)


AIMS = (
    _aim(
        UPDATE,
        "cleanrl",
        3,
        "a whole update of recurrent PPO at its Atari settings",
        "issue 276: very slow",
        measure="update",
        contestants=(LOOP, OURS),
    ),
    _aim(
        RECURRENT,
        "resets",
        10,
        "its LSTM over a minibatch: 2 environments, states masked",
        I=FEATURES,
        quick=True,
    ),
    _aim(
        "sb3 lstm 128,8,256",
        "resets",
        5,
        "stable-baselines3-contrib: a layer with resets",
        "pull request 118: 5-9x, open since 2022",
        I=64,
        contestants=(LOOP, "split", OURS, f"{OURS}-c"),
    ),
    _aim(
        TORCHRL,
        "resets",
        5,
        "TorchRL's benchmark of resets, step by step",
        I=32,
        contestants=(LOOP, OURS),
    ),
    _aim(
        "speechbrain ligru 500,16,512",
        "speechbrain",
        6,
        "a LiGRU layer, its loop scripted",
        "issue 793: 25 times slower than GRU",
    ),
    _aim(
        "ncps cfc 200,32,64",
        "ncps",
        20,
        "CfC with a backbone of 128 units",
        "issue 29: slows training by 120x",
        quick=True,
    ),
    _aim(
        "snntorch leaky 100,128,1000",
        "snntorch",
        5,
        "two layers of leaky neurons",
        I=784,
        judged=EXACT,
    ),
    _aim(
        "snntorch rleaky 100,128,1000",
        "snntorch",
        5,
        "the first one recurrent",
        I=784,
        judged=EXACT,
    ),
    _aim(
        "neuralhydrology ealstm 365,256,256",
        "neuralhydrology",
        2,
        "EA-LSTM, a year of days",
        "its documents: significantly slower",
        I=5,
    ),
    _aim(
        "dreamer gru 64,16,512",
        "dreamer",
        5,
        "dreamerv3-torch's layer-norm GRU with resets",
        "issue 20: 12 frames/s, JAX 34",
    ),
    _aim("haste lstm 100,32,256", "haste", 3, "layer-norm LSTM with zoneout, without a GPU"),
)


def _at_peak(rows: Rows, case: str) -> str:
    """Speed of the products, and how much faster than the loop they alone would be at peak."""
    row = rows[case]
    reached = share_of_peak(row)
    if reached is None:
        return "products with spikes are sums of few rows: they are not counted"
    gflops, share = reached
    if share is None:
        return "the peak was not measured"
    most = rows.seconds(case, LOOP) / (share * rows.seconds(case, OURS))
    return (
        f"products at {gflops:.0f} GFLOP/s, {share:.0%} of peak; at peak, with nothing else to do, "
        f"{most:.1f}x"
    )


def _whole(rows: Rows, case: str) -> str:
    """What of an update is recurrent, and what is left without it."""
    every = EPOCHS * MINIBATCHES
    loop, ours = (rows.seconds(case, who) for who in (LOOP, OURS))
    of_loop, of_ours = (every * rows.seconds(RECURRENT, who) for who in (LOOP, OURS))
    return (
        f"the LSTM takes {of_loop / loop:.0%} of it in a loop, {of_ours / ours:.0%} on elman; the "
        f"rest is convolutions: with a layer that takes no time {loop / (ours - of_ours):.1f}x"
    )


def _judge(
    case: str, ratio: float, facts: Callable[[Rows, str], str], other: str = LOOP
) -> Callable[[Rows], Verdict]:
    def judge(rows: Rows) -> Verdict:
        figure = rows.faster(case, OURS, other)
        return Verdict(figure >= ratio, f"{figure:.1f}x", facts=facts(rows, case))

    return judge


def _claim(aim: Aim) -> Claim:
    name = aim.case.name
    judge = _judge(name, aim.ratio, _whole if name == UPDATE else _at_peak)
    says = f"{aim.says}: at least {aim.ratio:g}x"
    return Claim(name.split()[0], says, aim.there, judge)


def _episodes(rows: Rows, case: str) -> str:
    ours, theirs = (rows.seconds(case, who) for who in (OURS, PADDED))
    return f"{theirs:.2g} s and {ours:.2g} s; an episode of few steps is padded to the longest"


USERS = Suite(
    "users",
    "How fast are the models of projects that run a step at a time?",
    (
        Case("peak", "peak", quick=True),
        *(aim.case for aim in AIMS),
        Case(
            EPISODES,
            *("users", "gru", 128, 64, 512, 32),  # at 256 samples its padding takes minutes
            contestants=(LOOP, PADDED, OURS),
            baseline=LOOP,
            kind="resets",
        ),
    ),
    seconds=4.0,
    source="Loops as the projects write them; what is asked of elman beside them, forward and "
    "backward on two cores",
    claims=(
        *map(_claim, AIMS),
        Claim(
            "torchrl",
            "64 samples of it beside its padded path: at least 2x",
            "",
            _judge(EPISODES, 2, _episodes, PADDED),
        ),
    ),
    rounds=3,
)
