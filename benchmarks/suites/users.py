"""Suite ``users``: models that published projects run a step at a time, and the same on elman."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import OURS, KindCase, Suite, sized
from benchmarks.claims import Claim, Rows, Verdict
from benchmarks.table import share_of_peak
from benchmarks.users import FORECAST, USER
from benchmarks.users.ppo import EPOCHS, FEATURES, MINIBATCHES
from benchmarks.users.ppo import UPDATE as WHOLE
from benchmarks.users.spikes import EXACT
from benchmarks.worker import PEAK
from benchmarks.workloads.language import BYTES

LOOP, PADDED = "loop", "padded"
UPDATE, RECURRENT = "cleanrl-ppo lstm 128,8,128", "cleanrl lstm 128,2,128"
BYTE_MODEL = "rltools gru 64,32,64"
TORCHRL, EPISODES = "torchrl gru 128,256,512", "torchrl-padded gru 128,64,512"
_ENGINES = (OURS, f"{OURS}-c")


@dataclass(frozen=True)
class Aim:
    """A case with its target, and what its project's users report.

    Attributes:
        ratio: how many times as fast as the project's loop at least.
        says: what loops, in words.
        figure: a number of the project's own threads, with its place.
    """

    case: KindCase
    ratio: float
    says: str
    figure: str = ""


def _case(name: str, kind: str, *names: str, measure: Any = USER, **options: Any) -> KindCase:
    """A case whose name has the cell and T,B,H at its end."""
    cell = name.split()[1]
    return sized(name, measure, LOOP, *names, cell=cell, of=KindCase, kind=kind, **options)


def _aim(
    name: str, kind: str, ratio: float, says: str, figure: str = "", *names: str, **options: Any
) -> Aim:
    case = _case(name, kind, *(names or _ENGINES), ratio=ratio, **options)
    return Aim(case, ratio, says, figure)


_PPO = "a whole update of recurrent PPO at its Atari settings"
_MASKED = "its LSTM over a minibatch: 2 environments, states masked"
_SB3 = "stable-baselines3-contrib: a layer with resets"
_TORCHRL = "TorchRL's benchmark of resets, step by step"
_DAYS, _DREAMER = "EA-LSTM, a year of days", "dreamerv3-torch's layer-norm GRU with resets"
_SPIKES: dict[str, Any] = {"I": 784, "judged": EXACT}
AIMS = (
    _aim(UPDATE, "cleanrl", 3, _PPO, "issue 276: very slow", OURS, measure=WHOLE),
    _aim(RECURRENT, "resets", 10, _MASKED, I=FEATURES, quick=True),
    _aim(
        *("sb3 lstm 128,8,256", "resets", 5, _SB3, "pull request 118: 5-9x, open since 2022"),
        *("split", *_ENGINES),
        I=64,
    ),
    _aim(TORCHRL, "resets", 5, _TORCHRL, "", OURS, I=32),
    _aim(
        *("speechbrain ligru 500,16,512", "speechbrain", 6, "a LiGRU layer, its loop scripted"),
        "issue 793: 25 times slower than GRU",
    ),
    _aim(
        *("ncps cfc 200,32,64", "ncps", 20, "CfC with a backbone of 128 units"),
        "issue 29: slows training by 120x",
        quick=True,
    ),
    _aim("snntorch leaky 100,128,1000", "snntorch", 5, "two layers of leaky neurons", **_SPIKES),
    _aim("snntorch rleaky 100,128,1000", "snntorch", 5, "the first one recurrent", **_SPIKES),
    _aim(
        *("neuralhydrology ealstm 365,256,256", "neuralhydrology", 2, _DAYS),
        "its documents: significantly slower",
        I=5,
    ),
    _aim("dreamer gru 64,16,512", "dreamer", 5, _DREAMER, "issue 20: 12 frames/s, JAX 34"),
    _aim("haste lstm 100,32,256", "haste", 3, "layer-norm LSTM with zoneout, without a GPU"),
)


def _at_peak(rows: Rows, case: str) -> str:
    """Speed of the products, and how much faster than the loop they alone would be at peak."""
    reached = share_of_peak(rows[case])
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


def _update(rows: Rows, case: str) -> str:
    """The LSTM's share of an update, and the speed-up if it took no time."""
    updates = EPOCHS * MINIBATCHES
    loop, elman = (rows.seconds(case, contestant) for contestant in (LOOP, OURS))
    of_loop, of_ours = (
        updates * rows.seconds(RECURRENT, contestant) for contestant in (LOOP, OURS)
    )
    return (
        f"the LSTM takes {of_loop / loop:.0%} of it in a loop, {of_ours / elman:.0%} on elman; the "
        f"rest is convolutions: with a layer that takes no time {loop / (elman - of_ours):.1f}x"
    )


def _episodes(rows: Rows, case: str) -> str:
    elman, padded = (rows.seconds(case, contestant) for contestant in (OURS, PADDED))
    return f"{padded:.2g} s and {elman:.2g} s; an episode of few steps is padded to the longest"


def _batches(rows: Rows, case: str) -> str:
    """Training steps per second; the published figures are of other processors."""
    torch, elman = (1 / rows.seconds(case, contestant) for contestant in ("torch", OURS))
    speeds = f"{elman:.0f} batches/s, {torch:.0f} with torch.nn"
    return f"{speeds}; embedding, read-out and Adam are included, Lightning's trainer is not"


def _judge(
    case: str, ratio: float, facts: Callable[[Rows, str], str], reference: str = LOOP
) -> Callable[[Rows], Verdict]:
    def judge(rows: Rows) -> Verdict:
        gain = rows.ratio(case, OURS, reference)
        return Verdict(gain.reaches(ratio), f"{gain.median:.1f}x", facts=facts(rows, case))

    return judge


def _claim(aim: Aim) -> Claim:
    name = aim.case.name
    judge = _judge(name, aim.ratio, _update if name == UPDATE else _at_peak)
    return Claim(name.split()[0], f"{aim.says}: at least {aim.ratio:g}x", aim.figure, judge)


_SAME_LATENTS = 8  # steps in which no rounding draws another latent
_BYTES = "a byte model's training step beside the same on torch.nn: at least 2x"
_PUBLISHED = "RLtools 205 batches/s, torch 36 (i9); 360 and 50 (M3)"
_BESIDE_PADDED = "64 samples of it beside its padded path: at least 2x"
USERS = Suite(
    "users",
    "How fast are the models of projects that run a step at a time?",
    (
        PEAK,
        *(aim.case for aim in AIMS),
        _case(EPISODES, "resets", PADDED, OURS, I=32),  # of 256 samples, padding takes minutes
        _case("dreamer-rssm rssm 64,16,512", "dreamer rssm", *_ENGINES, judged=_SAME_LATENTS),
        *(
            _case(f"tirex slstm 20,{B},512", "tirex", *_ENGINES, measure=FORECAST, quick=B == 1)
            for B in (1, 64)
        ),
        sized(BYTE_MODEL, BYTES, "torch", OURS, cell="gru", I=32),
    ),
    seconds=4.0,
    source="Loops as the projects write them; what is asked of elman beside them, forward and "
    "backward on two cores",
    claims=(
        *map(_claim, AIMS),
        Claim("rltools", _BYTES, _PUBLISHED, _judge(BYTE_MODEL, 2, _batches, "torch")),
        Claim("torchrl", _BESIDE_PADDED, "", _judge(EPISODES, 2, _episodes, PADDED)),
    ),
    rounds=3,
)
