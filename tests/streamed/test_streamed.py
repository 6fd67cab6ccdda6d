"""Whole models as one step: beside the model on whole sequences, in torch and as C."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import nn
from torch.nn import functional

import elman
from elman.errors import InputError
from elman.export import to_c
from elman.streamed.model import StreamedStep
from exported_c import CC, library
from random_models import Channels, Outputs, random_model

needs_cc = pytest.mark.skipif(CC is None, reason="there is no C compiler")


class Of(nn.Module):
    """A model whose forward is a function of it."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def stepped(step, inputs):
    """What a step makes of a sequence: the result of each step."""
    carry, results = step.first(len(inputs[0])), []
    for rows in step.cut(inputs):
        carry, y = step(carry, rows[0] if len(rows) == 1 else rows)
        results.append(y)
    return results


def of_steps(results, step):
    """The results [B, T, ..] of a model of steps; those that come before the first are left out."""
    rows = [y.unsqueeze(1) for y in results] if results[0].dim() == 2 else results
    return torch.cat(rows, 1)[:, step.late :]


def tcn(self, x):
    x = x.transpose(1, 2)
    for conv in (self.a, self.b):
        x = x + functional.relu(conv(functional.pad(x, (2 * conv.dilation[0], 0))))
    return self.head(x.transpose(1, 2))


def chomped(self, x):
    y = functional.relu(self.norm(self.a(x.transpose(1, 2))[:, :, :-2])).transpose(1, 2)
    return self.head(self.rnn(y)[0])


def ahead(self, x):
    y = functional.gelu(self.b(functional.relu(self.a(x.transpose(1, 2))))).transpose(1, 2) + x
    return self.head(self.rnn(y)[0])


def pools(self, x):
    y = functional.avg_pool1d(functional.max_pool1d(self.a(x), 2), 3, 1).transpose(1, 2)
    return self.rnn(y)[0]


MODELS = {
    "tcn": (
        Of(tcn, a=nn.Conv1d(6, 6, 3), b=nn.Conv1d(6, 6, 3, dilation=2), head=nn.Linear(6, 3)),
        (6,),
    ),
    "chomped": (
        Of(
            chomped,
            a=nn.Conv1d(5, 8, 3, padding=2),
            norm=nn.BatchNorm1d(8),
            rnn=nn.GRU(8, 7, num_layers=2, batch_first=True),
            head=nn.Linear(7, 4),
        ),
        (5,),
    ),
    "ahead": (
        Of(
            ahead,
            a=nn.Conv1d(6, 8, 3, padding=1),
            b=nn.Conv1d(8, 6, 5, padding="same"),
            rnn=nn.LSTM(6, 7, batch_first=True),
            head=nn.Linear(7, 2),
        ),
        (6,),
    ),
    "learned": (
        Outputs(elman.GRU(6, 7, batch_first=True, learn_initial=True)),
        (6,),
    ),
    "strided": (
        nn.Sequential(
            Channels(nn.Conv1d(5, 8, 5, stride=2), 3),
            Channels(nn.Conv1d(8, 8, 3, stride=3, groups=2), 0),
            Outputs(nn.LSTM(8, 7, proj_size=3, batch_first=True)),
        ),
        (5,),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of torch's own
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_the_whole_sequence(name):
    """Each output is the model's, the first ones left out where it looks ahead."""
    torch.manual_seed(0)
    model, sizes = MODELS[name]
    for path, parameter in model.named_parameters():
        if "initial" in path:
            nn.init.normal_(parameter)
    x = torch.randn(2, 24, *sizes)
    step = StreamedStep(model.eval(), (x,))
    got = of_steps(stepped(step, (x,)), step)
    torch.testing.assert_close(got, model(x)[:, : got.shape[1]], rtol=1e-4, atol=1e-5)
    assert got.shape[1] == 24 // step.rows - step.late


def test_a_pool_needs_rows():
    """The stride of a pool makes a step of two rows."""
    model = Of(pools, a=nn.Conv1d(4, 8, 3), rnn=nn.RNN(8, 7, batch_first=True)).eval()
    x = torch.randn(2, 4, 24)
    step = StreamedStep(model, (x,))
    assert (step.rows, step.late) == (2, 3)
    got = of_steps(stepped(step, (x,)), step)
    torch.testing.assert_close(got, model(x)[:, : got.shape[1]], rtol=1e-4, atol=1e-5)


def test_running_results_are_those_of_the_steps_so_far():
    """A mean over steps, the last states and another input; steps come first."""

    def forward(self, x, z):
        out, (h, c) = self.rnn(torch.cat([x, z], -1))
        return self.head(out.mean(0)), h[-1], c[0].sum(-1), out.amax(0)

    model = Of(forward, rnn=nn.LSTM(5, 7, num_layers=2), head=nn.Linear(7, 2)).eval()
    inputs = torch.randn(12, 3, 2), torch.randn(12, 3, 3)
    step = StreamedStep(model, inputs)
    carry = step.first(3)
    for t, rows in enumerate(step.cut(inputs)):
        carry, results = step(carry, rows)
        for got, want in zip(results, model(*(x[: t + 1] for x in inputs)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def recurrent(x=6):
    return nn.GRU(x, 7, batch_first=True)


REFUSED = {
    "rnn (GRU), recurrent is bidirectional": (
        Of(lambda s, x: s.rnn(x)[0], rnn=nn.GRU(6, 7, bidirectional=True)),
        "the whole sequence",
    ),
    "matmul in forward computes something else": (
        Of(lambda s, x: s.rnn(torch.softmax(x @ x.mT, -1) @ x)[0], rnn=recurrent()),
        "step by step",
    ),
    "head (Linear), linear does not run step by step": (
        Of(lambda s, x: s.head(s.rnn(x)[0].flatten(1)), rnn=recurrent(), head=nn.Linear(168, 2)),
        "",
    ),
    "select in forward": (
        Of(lambda s, x: s.rnn(x)[0][:, 3], rnn=recurrent()),
        "the last one alone",
    ),
    "slice in forward": (
        Of(lambda s, x: s.rnn(x)[0][:, :5], rnn=recurrent()),
        "a fixed length",
    ),
    "select in forward computes something else": (  # the last results of zeros behind the sequence
        Of(
            lambda s, x: s.a(s.rnn(x)[0].mT)[:, :, -1],
            rnn=recurrent(),
            a=nn.Conv1d(7, 2, 3, padding=1),
        ),
        "behind the sequence",
    ),
    "a (Conv1d), conv1d is padded more": (
        Of(lambda s, x: s.a(s.rnn(x)[0].mT), rnn=recurrent(), a=nn.Conv1d(7, 2, 1, padding=1)),
        "dilation",
    ),
    "neither a recurrent layer nor a Conv1d": (nn.Linear(6, 7), ""),
    "cannot trace": (Of(lambda s, x: s.rnn(x)[0] if x.sum() > 0 else x, rnn=recurrent()), ""),
    "begins with a state that depends": (
        Of(lambda s, x: s.rnn(x, s.a(x.mean(1))[None])[0], rnn=recurrent(), a=nn.Linear(6, 7)),
        "",
    ),
}  # fmt: skip


X = torch.randn(1, 24, 6)
WRONG = {  # what came out otherwise, and was not seen
    "samples": (Of(lambda s, x: s.rnn(x * x.shape[0])[0], rnn=recurrent()), X, "mixes samples"),
    "mean of samples": (
        Of(lambda s, x: s.rnn(x - x.mean(0, keepdim=True))[0], rnn=recurrent()),
        X,
        "mixes samples",
    ),
    "branch on samples": (
        Of(lambda s, x: s.rnn(x if x.shape[0] > 1 else 2 * x)[0], rnn=recurrent()),
        X,
        "for one sample",
    ),
    "branch on steps": (
        Of(lambda s, x: s.rnn(x if x.shape[1] <= 100 else x.flip(1))[0], rnn=recurrent()),
        X,
        "other numbers of steps",
    ),
    "flip of what is rare": (
        Of(lambda s, x: s.rnn(torch.relu(x - 8).flip(1) + x)[0], rnn=recurrent()),
        X,
        "flip in forward runs over steps",
    ),
    "cat": (
        Of(lambda s, x: s.rnn(torch.cat([x[:, :1], x], 1))[0], rnn=recurrent()),
        X,
        "a fixed length",
    ),
    "padded result": (
        Of(lambda s, x: functional.pad(s.rnn(x)[0], (0, 0, 2, 0)), rnn=recurrent()),
        X,
        "padded in time",
    ),
    "results that are the same": (
        Of(lambda s, x: (lambda out: (out, out[:, -1]))(s.rnn(x)[0]), rnn=recurrent()),
        X,
        "two results",
    ),
    "half of the steps": (
        Of(lambda s, x: s.rnn(x)[0][:, : x.shape[1] // 2], rnn=recurrent()),
        X,
        "slice in forward computes something else",
    ),
    "no state": (nn.Conv1d(6, 4, 4, stride=4), X.mT.contiguous(), "keeps nothing"),
    "old weight norm": (None, X.mT.contiguous(), "cannot be copied"),
}


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`")
@pytest.mark.parametrize("name", WRONG)
def test_what_would_be_wrong_is_refused(name, tmp_path):
    """Found by a hunt for models whose C was wrong in silence."""
    model, x, text = WRONG[name]
    if model is None:
        model = torch.nn.utils.weight_norm(nn.Conv1d(6, 4, 3))
        model(x)
    with pytest.raises(InputError, match=text):
        to_c(model.eval(), tmp_path, example=x)


RIGHT = {
    "zeros": Of(lambda s, x: s.rnn(x, torch.zeros(1, x.size(0), 7))[0], rnn=recurrent()),
    "booleans": Of(lambda s, x: s.rnn(x * (x > 0))[0], rnn=recurrent()),
    "long kernel": Of(lambda s, x: s.a(x.mT).mean(2), a=nn.Conv1d(6, 4, 20)),
    "casts": Of(lambda s, x: s.rnn((3 * x).double().cumsum(-1).float())[0], rnn=recurrent()),
    "infinite mask": Of(
        lambda s, x: s.rnn(x)[0].masked_fill(torch.arange(7) > 4, -torch.inf).softmax(-1),
        rnn=recurrent(),
    ),
    "largest and where": Of(lambda s, x: s.rnn(x)[0].max(1)[0], rnn=recurrent()),
    "largest of each step": Of(lambda s, x: s.rnn(x)[0].max(2)[0], rnn=recurrent()),
    "axes": Of(lambda s, x: s.rnn(x.unflatten(2, (3, 2)).flatten(2))[0], rnn=recurrent()),
    "weight norm": nn.Sequential(
        Channels(torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 6, 3)), 2),
        Outputs(recurrent()),
    ),
    "torch's own layer": recurrent(),
    "half": Of(lambda s, x: s.rnn(x)[0], rnn=recurrent()).half(),
}


@needs_cc
@pytest.mark.parametrize("name", RIGHT)
def test_models_that_were_refused_or_crashed(name, tmp_path):
    """C and the model agree over a longer sequence than the example."""
    model = RIGHT[name].eval()
    x = torch.randn(1, 60, 6, dtype=next(model.parameters()).dtype)
    y, made = by_c(model, x, tmp_path, example=x[:, :30])
    want = model.float()(x.float())
    want = want[0] if isinstance(want, tuple) else want
    got = y if want.shape[1] == x.shape[1] else y[-1]
    torch.testing.assert_close(got, want[0].reshape(got.shape), rtol=1e-3, atol=2e-5)
    assert (made.rows, made.late) == (1, 0)


@needs_cc
def test_rows_of_inputs_with_more_axes(tmp_path):
    """They lie one behind another in one input."""
    model = Of(lambda s, x: s.a(x.flatten(2).mT).mT, a=nn.Conv1d(12, 3, 3, stride=2)).eval()
    x = torch.randn(1, 24, 4, 3)
    y, made = by_c(model, x, tmp_path)
    assert (made.inputs, made.rows, made.late) == ({"x0": 24}, 2, 1)
    torch.testing.assert_close(y[1:], model(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", REFUSED)
def test_what_does_not_run_step_by_step_is_named(text):
    """The module and the operation are in the error."""
    model, more = REFUSED[text]
    with pytest.raises(InputError) as caught:
        StreamedStep(model.eval(), (torch.randn(2, 24, 6),))
    assert text in str(caught.value)
    assert more in str(caught.value)


def by_c(model, x, folder, name="model", flags="-O0", example=None):
    """What the exported C makes of an input [1, T, F]: the y of each call; and what was written."""
    made = to_c(model, folder, name, example=x if example is None else example)
    own = library(folder, name, 0, flags)
    state = torch.zeros(getattr(own, f"{name}_bytes")(), dtype=torch.uint8)
    at = ctypes.c_void_p(state.data_ptr())
    getattr(own, f"{name}_init")(at)
    y = torch.zeros(x.shape[1] // made.rows, made.output)
    for t, row in enumerate(y):
        rows = x[0, t * made.rows : (t + 1) * made.rows].contiguous().float()
        getattr(own, f"{name}_step")(
            at, ctypes.c_void_p(rows.data_ptr()), ctypes.c_void_p(row.data_ptr())
        )
    return y, made


@needs_cc
@pytest.mark.parametrize("seed", range(6))
def test_random_models_as_c(seed, tmp_path):
    """C and the model agree."""
    check_random_model(seed, tmp_path)


@needs_cc
@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 200, 10))
def test_more_random_models_as_c(first, tmp_path):
    """C and the model agree, under the sanitizers."""
    for seed in range(first, first + 10):
        check_random_model(seed, tmp_path / str(seed))


def check_random_model(seed, folder):
    model, x, end = random_model(seed)
    y, made = by_c(model, x, folder)
    want = model(x)[0]
    if end == "steps":
        got = y[made.late :]
        want = want[: len(got)]
    else:
        got, want = y[-1], want
    torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-5)


@needs_cc
def test_numbers_of_words(tmp_path):
    """An embedding takes its index as a float."""
    words = Of(lambda s, x: s.rnn(s.table(x))[0], table=nn.Embedding(11, 6), rnn=recurrent()).eval()
    x = torch.randint(11, (1, 20))
    made = to_c(words, tmp_path, example=x)
    own = library(tmp_path, "model", 0, "-O0")
    state = torch.zeros(own.model_bytes(), dtype=torch.uint8)
    at = ctypes.c_void_p(state.data_ptr())
    own.model_init(at)
    y = torch.zeros(20, made.output)
    for word, row in zip(x[0].float(), y, strict=True):
        own.model_step(at, ctypes.c_void_p(word.data_ptr()), ctypes.c_void_p(row.data_ptr()))
    torch.testing.assert_close(y, words(x)[0], rtol=1e-4, atol=1e-5)


def test_errors_of_to_c(tmp_path):
    """What is missing is said."""
    model = nn.Sequential(Outputs(recurrent()))
    with pytest.raises(InputError, match="needs an input of Sequential"):
        to_c(model, tmp_path)
    with pytest.raises(InputError, match="takes a module, not int"):
        to_c(3, tmp_path, example=torch.randn(1, 5, 6))
    with pytest.raises(InputError, match="no axes of samples and steps"):
        to_c(model, tmp_path, example=torch.randn(5))
