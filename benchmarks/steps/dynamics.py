"""Steps of dynamical systems: differential equations, filters, state spaces, world models."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.steps.case import Case, Sizes, stream, zeros

Pair = tuple[Tensor, Tensor]


class RungeKutta(nn.Module):
    """One step of Runge-Kutta 4 of dh/dt = f(h, x): (h [B, H], x [B, I]) -> (h, h)."""

    def __init__(self, I: int, H: int, dt: float = 0.1) -> None:
        super().__init__()
        self.dt = dt
        self.f = nn.Sequential(nn.Linear(H + I, 2 * H), nn.Tanh(), nn.Linear(2 * H, H))

    def forward(self, h: Tensor, x: Tensor) -> Pair:
        def f(h: Tensor) -> Tensor:
            return self.f(torch.cat([h, x], -1))

        k1 = f(h)
        k2 = f(h + 0.5 * self.dt * k1)
        k3 = f(h + 0.5 * self.dt * k2)
        k4 = f(h + self.dt * k3)
        h = h + self.dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return h, h


class ODERNN(nn.Module):
    """ODE-RNN: Euler steps over the time between observations, then a GRU.

    ((x [B, I], elapsed [B, 1]), h [B, H]) -> h.
    """

    def __init__(self, I: int, H: int, units: int = 100, parts: int = 4) -> None:
        super().__init__()
        self.parts = parts
        self.gradient = nn.Sequential(nn.Linear(H, units), nn.Tanh(), nn.Linear(units, H))
        self.update = nn.GRUCell(I, H)

    def forward(self, inputs: Pair, h: Tensor) -> Tensor:
        x, elapsed = inputs
        for _ in range(self.parts):
            h = h + self.gradient(h) * (elapsed / self.parts)
        return self.update(x, h)


def elapsing(T: int, B: int, sizes: Sizes) -> Pair:
    """Inputs [T, B, I] and elapsed times [T, B, 1]."""
    return stream(T, B, sizes), torch.rand(T, B, 1)


class RSSM(nn.Module):
    """PlaNet's transition model: prior and posterior with reparameterised noise.

    (belief [B, H], stochastic state [B, S]), (action [B, 4], nonterminal [B, 1],
    observation [B, I], two noises [B, S]) -> the same states, and all moments.
    """

    S = 30

    def __init__(self, I: int, H: int, least: float = 0.1) -> None:
        super().__init__()
        self.least = least
        self.fc_embed_state_action = nn.Linear(self.S + 4, H)
        self.rnn = nn.GRUCell(H, H)
        self.fc_embed_belief_prior = nn.Linear(H, H)
        self.fc_state_prior = nn.Linear(H, 2 * self.S)
        self.fc_embed_belief_posterior = nn.Linear(H + I, H)
        self.fc_state_posterior = nn.Linear(H, 2 * self.S)

    def moments(self, layer: nn.Module, hidden: Tensor) -> Pair:
        mean, raw = torch.chunk(layer(hidden), 2, dim=1)
        return mean, functional.softplus(raw) + self.least

    def forward(self, state: Pair, inputs: tuple[Tensor, ...]) -> tuple[Pair, tuple[Tensor, ...]]:
        belief, stochastic = state
        action, nonterminal, observation, noise, noise_post = inputs
        stochastic = stochastic * nonterminal
        embedded = self.fc_embed_state_action(torch.cat([stochastic, action], dim=1))
        belief = self.rnn(functional.relu(embedded), belief)
        hidden = functional.relu(self.fc_embed_belief_prior(belief))
        prior_mean, prior_std = self.moments(self.fc_state_prior, hidden)
        prior = prior_mean + prior_std * noise
        both = torch.cat([belief, observation], dim=1)
        hidden = functional.relu(self.fc_embed_belief_posterior(both))
        mean, std = self.moments(self.fc_state_posterior, hidden)
        posterior = mean + std * noise_post
        y = belief, prior, prior_mean, prior_std, posterior, mean, std
        return (belief, posterior), y


def episodes(T: int, B: int, sizes: Sizes) -> tuple[Tensor, ...]:
    """Actions, nonterminals, observations, two noises [T, B, ..]."""
    alive = (torch.rand(T, B, 1) < 0.95).float()
    noises = torch.randn(2, T, B, RSSM.S)
    return torch.randn(T, B, 4), alive, stream(T, B, sizes), noises[0], noises[1]


class LMU(nn.Module):
    """Legendre memory unit: (x [B, I], (h [B, H], m [B, M])) -> (h, m)."""

    def __init__(self, I: int, H: int, M: int, theta: float) -> None:
        super().__init__()
        A, B = legendre(M, theta)
        self.A, self.B = nn.Buffer(A), nn.Buffer(B)
        self.e_x = nn.Parameter(torch.randn(1, I) / math.sqrt(I))
        self.e_h = nn.Parameter(torch.randn(1, H) / math.sqrt(H))
        self.e_m = nn.Parameter(torch.randn(1, M) / M)
        self.W_x = nn.Parameter(torch.randn(H, I) / math.sqrt(I))
        self.W_h = nn.Parameter(torch.randn(H, H) / math.sqrt(H))
        self.W_m = nn.Parameter(torch.randn(H, M) / math.sqrt(M))

    def forward(self, x: Tensor, state: Pair) -> Pair:
        h, m = state
        u = (
            functional.linear(x, self.e_x)
            + functional.linear(h, self.e_h)
            + functional.linear(m, self.e_m)
        )
        m = functional.linear(m, self.A) + functional.linear(u, self.B)
        h = torch.tanh(
            functional.linear(x, self.W_x)
            + functional.linear(h, self.W_h)
            + functional.linear(m, self.W_m)
        )
        return h, m


def legendre(M: int, theta: float) -> Pair:
    """A [M, M] and B [M, 1] of a sliding window, discretised with a zero-order hold."""
    q = torch.arange(M, dtype=torch.float64)
    i, j = q[:, None], q[None]
    R = (2 * i + 1) / theta
    A = R * torch.where(i < j, -1.0, (-1.0) ** (i - j + 1))
    B = R * (-1.0) ** i
    both = torch.zeros(M + 1, M + 1, dtype=torch.float64)
    both[:M, :M], both[:M, M:] = A, B
    exponential = torch.linalg.matrix_exp(both)
    return exponential[:M, :M].float(), exponential[:M, M:].float()


class KalmanFilter(nn.Module):
    """A linear Kalman filter with learned matrices: (mean [B, H], P [B, H, H]), z [B, I]."""

    def __init__(self, I: int, H: int) -> None:
        super().__init__()
        self.F = nn.Parameter(0.9 * torch.eye(H) + 0.02 * torch.randn(H, H))
        self.H = nn.Parameter(torch.randn(I, H) / math.sqrt(H))
        self.Q, self.R = nn.Parameter(0.1 * torch.eye(H)), nn.Parameter(torch.eye(I))

    def forward(self, state: Pair, z: Tensor) -> tuple[Pair, Tensor]:
        mean, P = state
        mean = mean @ self.F.T
        P = self.F @ P @ self.F.T + self.Q
        S = self.H @ P @ self.H.T + self.R
        K = P @ self.H.T @ torch.linalg.inv(S)
        innovation = z - mean @ self.H.T
        mean = mean + (K @ innovation.unsqueeze(-1)).squeeze(-1)
        P = (torch.eye(P.shape[-1], dtype=P.dtype) - K @ self.H) @ P
        return (mean, P), mean


class EchoState(nn.Module):
    """Echo state network, untrained reservoir: (x, h) -> h."""

    def __init__(self, I: int, H: int, leak: float = 0.3, radius: float = 0.9) -> None:
        super().__init__()
        W = torch.randn(H, H) * (torch.rand(H, H) < 0.1)
        W = W * (radius / torch.linalg.eigvals(W).abs().max().clamp(min=1e-3))
        self.leak = leak
        self.W, self.W_in = nn.Buffer(W), nn.Buffer(2 * torch.rand(H, I) - 1)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        pre = functional.linear(x, self.W_in) + functional.linear(h, self.W)
        return (1 - self.leak) * h + self.leak * torch.tanh(pre)


class S4D(nn.Module):
    """S4D's recurrent step: (u [B, H], complex state [B, H, N]) -> (y [B, H], state)."""

    def __init__(self, H: int, N: int = 32) -> None:
        super().__init__()
        self.C = nn.Parameter(torch.view_as_real(torch.randn(H, N, dtype=torch.cfloat)))
        self.log_dt = nn.Parameter(math.log(0.001) + torch.rand(H) * math.log(100))
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(H, N)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(N).repeat(H, 1).float())
        self.D = nn.Parameter(torch.randn(H))

    def forward(self, u: Tensor, state: Tensor) -> Pair:
        dt = torch.exp(self.log_dt)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        C = torch.view_as_complex(self.C)
        dA = torch.exp(A * dt.unsqueeze(-1))
        dB = (dA - 1.0) / A
        state = dA * state + dB * u.unsqueeze(-1)
        y = 2 * torch.sum(C * state, -1).real + self.D * u
        return y, state


class Mamba(nn.Module):
    """Mamba's step: (x [B, I], conv [B, D, W], ssm [B, D, N]) -> (out [B, I], conv, ssm).

    The states are new tensors here: its authors copy into them, which cannot be trained.
    """

    def __init__(self, size: int, N: int = 16, W: int = 4, expand: int = 2) -> None:
        super().__init__()
        D, self.N, self.rank = expand * size, N, math.ceil(size / 16)
        self.in_proj = nn.Linear(size, 2 * D, bias=False)
        self.conv1d = nn.Conv1d(D, D, W, groups=D, padding=W - 1)
        self.x_proj = nn.Linear(D, self.rank + 2 * N, bias=False)
        self.dt_proj = nn.Linear(self.rank, D)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, N + 1)).repeat(D, 1))
        self.D = nn.Parameter(torch.ones(D))
        self.out_proj = nn.Linear(D, size, bias=False)

    def forward(self, hidden: Tensor, conv: Tensor, ssm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, z = self.in_proj(hidden).chunk(2, dim=-1)
        conv = torch.roll(conv, shifts=-1, dims=-1)
        conv[:, :, -1] = x
        x = torch.sum(conv * self.conv1d.weight.squeeze(1), dim=-1)
        if self.conv1d.bias is not None:
            x = x + self.conv1d.bias
        x = functional.silu(x)
        dt, B, C = torch.split(self.x_proj(x), [self.rank, self.N, self.N], dim=-1)
        dt = functional.softplus(functional.linear(dt, self.dt_proj.weight) + self.dt_proj.bias)
        A = -torch.exp(self.A_log)
        dA = torch.exp(torch.einsum("bd,dn->bdn", dt, A))
        dB = torch.einsum("bd,bn->bdn", dt, B)
        ssm = ssm * dA + x.unsqueeze(-1) * dB
        y = torch.einsum("bdn,bn->bd", ssm, C) + self.D * x
        return self.out_proj(y * functional.silu(z)), conv, ssm


def lmu(sizes: Sizes) -> nn.Module:
    """An LMU of memory H."""
    return LMU(sizes.I, sizes.H, sizes.H, 4.0 * sizes.H)


def beliefs(module: nn.Module, B: int, sizes: Sizes) -> Pair:
    """Initial states of RSSM."""
    return torch.zeros(B, sizes.H), torch.zeros(B, RSSM.S)


def shaped(*make: Callable[[Sizes], tuple[int, ...]], dtype: torch.dtype = torch.float32) -> ...:
    """Initial states of zeros [B, ..], of the shapes for sizes."""

    def state(module: nn.Module, B: int, sizes: Sizes) -> Tensor | tuple[Tensor, ...]:
        states = tuple(torch.zeros(B, *shape(sizes), dtype=dtype) for shape in make)
        return states[0] if len(states) == 1 else states

    return state


CELL, OUT, SCAN = "x,h->h", "x,s->out,s", "s,x->s,y"
CASES = [
    Case(
        "neural_ode_rk4",
        "a fixed-step neural ODE, arXiv 1806.07366",
        lambda s: RungeKutta(s.I, s.H),
        SCAN,
        zeros(),
        (100, 32, 4, 32),
        remark="a function defined within the step",
    ),
    Case(
        "ode_rnn",
        "https://github.com/YuliaRubanova/latent_ode, arXiv 1907.03907, with 4 Euler steps",
        lambda s: ODERNN(s.I, s.H),
        CELL,
        zeros(),
        (100, 50, 41, 20),
        inputs=elapsing,
        remark="theirs chooses the number of Euler steps from the times: values",
    ),
    Case(
        "rssm",
        "https://github.com/Kaixhin/PlaNet (models.py TransitionModel), arXiv 1811.04551",
        lambda s: RSSM(s.I, s.H),
        SCAN,
        beliefs,
        (50, 50, 1024, 200),
        inputs=episodes,
        remark="noise is an input; 7 outputs",
    ),
    Case(
        "lmu",
        "https://github.com/hrshtv/pytorch-lmu, arXiv 1911.09820 (Voelker et al. 2019)",
        lmu,
        "x,(h,c)->(h,c)",
        zeros(2),
        (784, 100, 1, 212),
    ),
    Case(
        "kalman",
        "a Kalman filter with learned matrices, as in arXiv 1605.07148",
        lambda s: KalmanFilter(s.I, s.H),
        SCAN,
        lambda m, B, s: (torch.zeros(B, s.H), torch.eye(s.H).repeat(B, 1, 1)),
        (100, 16, 2, 4),
        perturb=False,
        refused="inverse of a matrix",
        remark="torch.linalg.inv",
    ),
    Case(
        "echo_state",
        "https://github.com/stefanonardo/pytorch-esn, doi 10.1126/science.1091277",
        lambda s: EchoState(s.I, s.H),
        CELL,
        zeros(),
        (1000, 1, 1, 500),
        trained=False,
    ),
    Case(
        "s4d",
        "https://github.com/state-spaces/s4 (models/s4/s4d.py, as a step), arXiv 2206.11893",
        lambda s: S4D(s.H),
        OUT,
        shaped(lambda s: (s.H, 32), dtype=torch.cfloat),
        (256, 8, 128, 128),
        tied=True,
        refused="complex numbers",
        remark="complex state",
    ),
    Case(
        "mamba",
        "https://github.com/state-spaces/mamba (mamba_simple.py Mamba.step), arXiv 2312.00752",
        lambda s: Mamba(s.H),
        "x,*s->out,*s",
        shaped(lambda s: (2 * s.H, 4), lambda s: (2 * s.H, 16)),
        (64, 2, 16, 16),
        tied=True,
        remark="roll, then an assignment to a slice of the new state; einsum",
    ),
]
