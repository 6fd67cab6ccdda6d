"""The command line of a hunt over seeds, and what all of its processes have in common."""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Callable

import torch


def run_seeds(
    doc: str | None, noun: str, campaign: Callable[..., int], each: str = "", **numbers: int
) -> int:
    """Run a campaign over the seeds that the command line names; 1 if anything failed.

    Args:
        doc: of the script.
        noun: what a seed draws.
        campaign: seeds and the numbers, by name -> how many failures there are.
        each: which of the numbers says how many things a seed draws; 1 if empty.
        numbers: further options of the command line, and their default values.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n\n")[0])
    parser.add_argument("--seeds", default="0:50", help="first:last, the last one not included")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = vars(parser.parse_args())
    first, last = (int(text) for text in options.pop("seeds").split(":"))
    os.environ["ELMAN_POISON"] = "1"
    os.environ.setdefault("ELMAN_CFLAGS", "-O0")
    os.environ.setdefault("ELMAN_CACHE_SIZE", "100 MiB")
    torch.set_num_threads(1)  # children are forked
    warnings.filterwarnings("ignore", ".*but no result depends on")  # chance has no purpose
    with tempfile.TemporaryDirectory(prefix="elman-seeds-") as folder:
        os.environ.setdefault("ELMAN_CACHE", folder)
        failed = campaign(range(first, last), **options)
    count = (last - first) * options.get(each, 1)
    print(f"done: {count} {noun} of seeds {first}:{last}, {failed} failed")
    return bool(failed)
