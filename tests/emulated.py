"""C functions on a processor that this machine is not, emulated: called with numbers and arrays."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np

from elman.engines.c.build import FLAGS

COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
MISSING = "" if COMPILER and EMULATOR else "no cross compiler and emulator of 64-bit ARM"
LIBRARY = ("-shared", "-fPIC", "-fvisibility=hidden")  # flags that a program does not take
# what comes in: which function, how many arguments; of each whether it is an array, and the number
# or the array's bytes; then the arrays, which go back when the function has returned
SERVER = """
#include <stdio.h>
#include <stdlib.h>
typedef void Function(long, long, long, long, long, long, long, long);
int main(void) {
    static Function *const functions[] = {FUNCTIONS};
    long head[2], given[8][2];
    while (fread(head, sizeof head, 1, stdin)) {
        long a[8] = {0};
        if (!fread(given, 16, head[1], stdin)) return 1;
        for (long k = 0; k < head[1]; k++) {
            a[k] = given[k][1];
            if (!given[k][0]) continue;
            a[k] = (long)malloc(given[k][1] + 1);
            fread((void *)a[k], 1, given[k][1], stdin);
        }
        functions[head[0]](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
        for (long k = 0; k < head[1]; k++) {
            if (!given[k][0]) continue;
            fwrite((void *)a[k], 1, given[k][1], stdout);
            free((void *)a[k]);
        }
        fflush(stdout);
    }
    return 0;
}
"""


class Emulated:
    """A program that calls functions of a text as it is told, until nobody holds it.

    Args:
        text: C, with its parts behind it.
        names: the functions; they return nothing.
    """

    def __init__(self, text: str, names: list[str]) -> None:
        self.names = names
        folder = tempfile.TemporaryDirectory()
        source, program = (Path(folder.name, name) for name in ("served.c", "served"))
        functions = ", ".join(f"(Function *){name}" for name in names)
        source.write_text(text + SERVER.replace("FUNCTIONS", functions))
        flags = [flag for flag in FLAGS if flag not in LIBRARY]
        command = [str(COMPILER), *flags, "-static", str(source), "-o", str(program), "-lm"]
        subprocess.run(command, check=True, capture_output=True)
        process = subprocess.Popen(
            [str(EMULATOR), str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.into, self.out = process.stdin, process.stdout
        weakref.finalize(self, _ended, process, folder)

    def call(self, name: str, *args: int | np.ndarray) -> None:
        """Call a function; arrays, which are contiguous, are written to as it does."""
        into, out = self.into, self.out
        assert into is not None
        assert out is not None
        arrays = [arg for arg in args if isinstance(arg, np.ndarray)]
        told = [(1, a.nbytes) if isinstance(a, np.ndarray) else (0, a) for a in args]
        into.write(struct.pack("<2q", self.names.index(name), len(args)))
        into.write(struct.pack(f"<{2 * len(told)}q", *(number for pair in told for number in pair)))
        for array in arrays:
            into.write(array.tobytes())
        into.flush()
        for array in arrays:
            data = out.read(array.nbytes)
            assert len(data) == array.nbytes, "the emulated program has ended"
            array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)


def _ended(process: subprocess.Popen[bytes], folder: tempfile.TemporaryDirectory[str]) -> None:
    process.communicate()
    folder.cleanup()
