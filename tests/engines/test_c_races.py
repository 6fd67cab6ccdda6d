"""Workers under ThreadSanitizer: whether what one reads is ordered behind what another has written.

It follows the orders that the text asks for, not those that this machine keeps: x86 keeps the order
of stores without being asked, ARM does not. Workers are threads of a pool of its own, which
it sees being made and joined; torch's OpenMP it does not see.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elman.engines.c.compilation.isa import SCALAR
from elman.engines.c.text.units import runtime

GCC = shutil.which("gcc")
POOL = """
#include <pthread.h>
typedef struct { void (*run)(void *); void *data; int number, count; } Member;
static __thread Member *own;
static void *entered(void *p) { own = p; own->run(own->data); return 0; }
int omp_get_thread_num(void) { return own->number; }
int omp_get_num_threads(void) { return own->count; }
void GOMP_parallel(void (*run)(void *), void *data, unsigned count, unsigned flags) {
    pthread_t threads[16];
    Member members[16];
    for (unsigned k = 0; k < count; k++) members[k] = (Member){run, data, k, count};
    for (unsigned k = 1; k < count; k++) pthread_create(threads + k, 0, entered, members + k);
    entered(members);
    for (unsigned k = 1; k < count; k++) pthread_join(threads[k], 0);
}
"""
# Two calls, the second a step behind the first: in each step workers write a part of a row, wait
# for each other and add up the whole row; the second adds what the first has found.
CALLS = """
#include <stdio.h>
enum { STEPS = 200, TEAM = 2 };
typedef struct { Head head; long row[STEPS][TEAM], sums[STEPS][TEAM]; } Sums;
static Flag flags[2][TEAM];
static Sums calls[2];
static void prepare(void *p) { ((Sums *)p)->head.done = 0; }
static void run(void *p, Worker *w) {
    Sums *c = p;
    for (long t = 0; t < STEPS; t++) {
        if (c->head.awaits) wait_for(c->head.awaits, t + 1);
        long given = c->head.awaits ? calls[0].sums[t][w->id] : t;
        w->flags[w->id].infinite |= t == STEPS;
        c->row[t][w->id] = given + w->id;
        barrier(w);
        long sum = all_finite(c->head.flags, TEAM) ? 0 : -1;
        for (int k = 0; k < TEAM; k++) sum += c->row[t][k];
        c->sums[t][w->id] = sum;
        barrier(w);
        tell(&c->head, w, t + 1);
    }
}
int main(void) {
    elman_threads(GOMP_parallel, omp_get_thread_num, omp_get_num_threads);
    Task tasks[2];
    for (int k = 0; k < 2; k++) {
        const long *awaits = k ? &calls[0].head.done : 0;
        calls[k].head = (Head){.workers = TEAM, .flags = flags[k], .awaits = awaits};
        tasks[k] = (Task){prepare, run, &calls[k].head};
    }
    elman_launch_tasks(tasks, 2, 2 * TEAM);
    for (long t = 0; t < STEPS; t++)
        if (calls[1].sums[t][0] != TEAM * (TEAM * t + 1) + 1) return 1;
    puts("as they should be");
}
"""
# modules of the library with three workers, however few cores there are
KERNELS = """
import ctypes, sys, torch
import elman
from elman import cells
from elman.engines.c.run import kernel
from elman.engines.c.process import threads
library = ctypes.CDLL(sys.argv[1])
names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in names]
threads.pool = lambda: threads.Pool(sys.argv[1], *found)
torch.set_num_threads(3)

def learn(module, x):
    y, _ = module(x)
    y.square().sum().backward()

with threads.oversubscription.ignored():
    for name in sys.argv[2:]:
        for layers, batch in ((1, 2), (1, 6), (1, 40), (3, 6)):
            learn(elman.Recurrent(getattr(cells, name), 8, 40, num_layers=layers, engine="c"),
                  torch.randn(23, batch, 8))
    spikes = (torch.rand(30, 40, 260) < 0.1).float()
    learn(elman.Recurrent(cells.rlif, 260, 260, num_layers=2, engine="c"), spikes)
    decoder = elman.LinearCrossEntropyLoss(40, 700, bias=True)
    decoder(torch.randn(150, 40), torch.randint(700, (150,))).backward()
print("as they should be")
"""


def sanitized(folder: Path, name: str, text: str, *flags: str) -> Path:
    """A program or library that tells of races; a test is skipped where none can run."""
    if GCC is None:
        pytest.skip("gcc is not installed")
    source, made = folder / f"{name}.c", folder / name
    source.write_text(text)
    command = [GCC, "-O1", "-w", "-fsanitize=thread", *flags, str(source), "-o", str(made)]
    done = subprocess.run([*command, "-lpthread", "-lm"], capture_output=True, text=True)
    if done.returncode and "tsan" in done.stderr:
        pytest.skip("gcc has no ThreadSanitizer here")
    assert done.returncode == 0, done.stderr
    return made


def ran(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program at addresses as ThreadSanitizer wants them."""
    setarch = shutil.which("setarch")
    if setarch is None:
        pytest.skip("setarch is not installed")
    options = {"TSAN_OPTIONS": "halt_on_error=1", **environment}
    done = subprocess.run(
        [setarch, "-R", *command], env={**os.environ, **options}, capture_output=True, text=True
    )
    if "unexpected memory mapping" in done.stderr or "set personality" in done.stderr:
        pytest.skip("ThreadSanitizer does not run here")
    return done


@pytest.mark.slow
@pytest.mark.parametrize("weak", [None, 0, 1, 2])
def test_calls_side_by_side_are_ordered(weak, tmp_path):
    """Barriers of a team, and a call that follows another; not so with any one order left out."""
    text = runtime(SCALAR, "float32")
    orders = [found.span() for found in re.finditer("__ATOMIC_(RELEASE|ACQUIRE)", text)]
    assert len(orders) == 3
    if weak is not None:
        begin, end = orders[weak]
        text = f"{text[:begin]}__ATOMIC_RELAXED{text[end:]}"
    done = ran([str(sanitized(tmp_path, "calls", text + POOL + CALLS))])
    assert ("data race" in done.stderr) == (weak is not None), done.stderr
    assert ("as they should be" in done.stdout) == (weak is None)


@pytest.mark.long
def test_kernels_are_ordered(tmp_path):
    """Splits by samples and units, layers side by side, lists of spikes, a decoder's loss."""
    library = sanitized(tmp_path, "pool.so", POOL, "-shared", "-fPIC")
    asked = subprocess.run(
        [str(GCC), "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    )
    done = ran(
        [sys.executable, "-c", KERNELS, str(library), "gru", "lstm_layernorm", "slstm"],
        LD_PRELOAD=asked.stdout.strip(),
        TSAN_OPTIONS="exitcode=0",
        ELMAN_CC=f"{GCC} -fsanitize=thread",
        ELMAN_CFLAGS="-O1",
        ELMAN_CACHE=str(tmp_path / "cache"),
    )
    assert "as they should be" in done.stdout, done.stderr
    reports = done.stderr.split("=" * 18)  # others are of torch's own threads, which are OpenMP's
    assert not [report for report in reports if str(tmp_path / "cache") in report]
