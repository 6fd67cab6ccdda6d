"""A whole update of CleanRL's recurrent PPO (``cleanrl/ppo_atari_lstm.py`` at commit 004f8a0).

Four passes over a rollout in minibatches of whole environments: convolutions on all frames, an LSTM
whose state begins anew with each episode, policy and value heads, the clipped losses, clipping and
Adam. The rollout is random: images, actions, and episodes that end; what it is makes no difference
to the time. ``Case.T`` and ``Case.B`` are steps and environments, ``Case.H`` units of the LSTM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions.categorical import Categorical

import elman.nn
from benchmarks.cases import Case, Way
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem, Results, draw, gradients
from benchmarks.users.project import ENGINES, on_engine
from benchmarks.users.resets import Fused, Stepwise, flags

EPOCHS, MINIBATCHES = 4, 4
ACTIONS, PIXELS, FEATURES = 4, 84, 512
RATE, EPSILON, NORM = 2.5e-4, 1e-5, 0.5
CLIP, ENTROPY, VALUE = 0.1, 0.01, 0.5


class Agent(nn.Module):
    """Convolutions, a recurrent layer, a policy and a value.

    Args:
        recurrent: of inputs [T, B, 512] and flags [T, B]: outputs [T, B, H] and the last state.
    """

    def __init__(self, recurrent: nn.Module, units: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(nn.Conv2d(1, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(64 * 7 * 7, FEATURES), nn.ReLU()),
        )
        self.recurrent = recurrent
        self.actor, self.critic = nn.Linear(units, ACTIONS), nn.Linear(units, 1)

    def forward(self, frames: Tensor, done: Tensor, state: Any) -> tuple[Categorical, Tensor]:
        """Policy and value of frames [T, B, 1, 84, 84] and flags [T, B]."""
        features = self.network(frames.flatten(0, 1) / 255.0).view(*done.shape, -1)
        hidden, _ = self.recurrent(features, done, state)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Rollout:
    """What was played, [T, B] each but for ``frames`` [T, B, 1, 84, 84] and states [1, B, H]."""

    frames: Tensor
    done: Tensor
    actions: Tensor
    chances: Tensor
    advantages: Tensor
    values: Tensor
    state: tuple[Tensor, Tensor]

    def minibatches(self) -> Iterator[Rollout]:
        """Whole environments, in a new order."""
        for chosen in torch.randperm(self.done.shape[1]).chunk(MINIBATCHES):
            yield self.of(chosen)

    def of(self, chosen: Tensor) -> Rollout:
        """Some environments."""
        steps = {k: v[:, chosen] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **steps, state=tuple(s[:, chosen] for s in self.state))


def loss_of(agent: Agent, played: Rollout) -> Tensor:
    """The clipped losses of policy and value, and the policy's entropy."""
    policy, value = agent(played.frames, played.done, played.state)
    ratio = (policy.log_prob(played.actions) - played.chances).exp()
    gain = (played.advantages - played.advantages.mean()) / (played.advantages.std() + 1e-8)
    policy_loss = torch.max(-gain * ratio, -gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    returns = played.advantages + played.values
    clipped = played.values + (value - played.values).clamp(-CLIP, CLIP)
    value_loss = 0.5 * torch.max((value - returns) ** 2, (clipped - returns) ** 2).mean()
    return policy_loss - ENTROPY * policy.entropy().mean() + VALUE * value_loss


def draw_update(case: Case, seed: int = 0) -> Problem:
    """Draw the agent's weights as torch does; of a rollout there are only advantages dy [T, B]."""
    agent = lambda: Agent(Stepwise(_layer(case)), case.H)  # noqa: E731
    weights, (advantages,) = draw(agent, case, seed, (case.T, case.B))
    return Problem(case, advantages, advantages, weights)


def _layer(case: Case) -> Case:
    return replace(case, I=FEATURES)


def _rollout(problem: Problem) -> Rollout:
    case, dtype = problem.case, problem.x.dtype
    source = torch.Generator().manual_seed(case.B)
    size = (case.T, case.B)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=source).to(dtype)

    (done,) = flags(case, source)
    return Rollout(
        (255 * uniform(*size, 1, PIXELS, PIXELS)).floor(),
        done.to(dtype),
        torch.randint(ACTIONS, size, generator=source),
        uniform(*size).log(),
        problem.dy,
        uniform(*size),
        (uniform(1, case.B, case.H), uniform(1, case.B, case.H)),
    )


def updated(name: str, problem: Problem) -> Contestant | str:
    """A contestant: the agent with torch's layer in a loop over steps, or with elman's layer."""
    case = problem.case
    if name not in ("loop", *ENGINES):
        return f"there is no agent {name!r}"
    layer = (
        on_engine(Fused(_layer(case)), ENGINES[name]) if name in ENGINES else Stepwise(_layer(case))
    )
    agent = Agent(layer, case.H)
    agent.to(problem.x.dtype).load_state_dict(dict(problem.weights))
    played = _rollout(problem)
    optimizer = torch.optim.Adam(agent.parameters(), RATE, eps=EPSILON)

    def run() -> None:
        for _ in range(EPOCHS):
            for part in played.minibatches():
                optimizer.zero_grad()
                loss_of(agent, part).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()

    def results() -> Results:
        part = played.of(torch.arange(case.B // MINIBATCHES))
        loss = loss_of(agent, part)
        grads = torch.autograd.grad(loss, [*agent.parameters()])
        return {"loss": loss.detach()} | gradients(dict(agent.named_parameters()), grads)

    facts = partial(elman.nn.choices, agent) if name in ENGINES else dict
    return Contestant(run, results, tuple(problem.weights), facts)


UPDATE = Way("update", measure_steps, draw_update, updated)
