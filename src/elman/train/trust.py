"""Whose code a run folder may have run.

A run folder is data, and may be anybody's; but its configuration can name a Python file with the
formula of its cell. That file is run where the call names it or trusts the run, or where the run is
known: this user began it on this machine with that file. Of such runs the user's cache has a
record, under the hash of the files that a run writes once, when it begins. So a folder may be
renamed, moved and copied; one whose configuration was changed, or whose cell's file has changed
since, is not known.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from elman import cells
from elman.errors import InputError, RunError, diagnostic, spelled
from elman.files import read_file, write_atomically
from elman.folders import cache_folder, private_folder
from elman.train.config import Config
from elman.train.folder import RunFolder

BEGUN = ("config.json", "facts.json", "model.json")  # written once, when a run begins
INNER = ("checkpoints", "tensorboard")  # folders of a run that a process writes into
_MOST = 1 << 20  # (bytes) of a record
Configured = TypeVar("Configured", bound=Config)


def note_run(folder: RunFolder, config: Config) -> None:
    """Keep a record of a run that begins here, if its cell is in a file; nothing where the cache
    takes none."""
    if ":" not in config.cell:
        return
    try:
        path = _record(folder)
        if private_folder(path.parent):
            content = {"cell": config.cell, "sha256": _hash(_file(config.cell))}
            write_atomically(path, json.dumps(content).encode(), durable=True)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return


def permit_cell(
    folder: RunFolder, config: Configured, cell: str | None = None, trust: bool = False
) -> Configured:
    """The configuration of a run, with a cell whose file may be run.

    Args:
        cell: file.py:cell, as the call names it.
        trust: whether the call trusts the run.

    Raises:
        RunError: the cell is in a file of which nobody here has said that it may be run.
        InputError: the call names a cell, and that of the run is in no file.
    """
    if ":" not in config.cell and config.cell not in {one.name for one in cells.ALL}:
        details = [("path", str(folder.path)), ("found", f"config.json: cell: {config.cell!r}")]
        raise RunError(diagnostic("the run is damaged", details))
    if cell is not None:
        if ":" not in config.cell:
            details = [("cell", config.cell), ("path", str(folder.path))]
            text = "the cell of the run is in no file"
            raise InputError(diagnostic(text, details, spelled("leave cell out", "no --cell")))
        if ":" not in cell:
            text = f"cell names no file: {cell!r}"
            raise InputError(diagnostic(text, [], spelled('cell="mine.py:mine"', "mine.py:mine")))
        return replace(config, cell=cell)
    if ":" in config.cell and not trust and (why := _unknown(folder, config.cell)):
        details = [("path", str(folder.path)), ("cell", config.cell), ("found", why)]
        name = config.cell.rpartition(":")[2]
        hint = spelled(
            f'cell="FILE.py:{name}", or trust=True if the file may run',
            f"--cell FILE.py:{name}, or --trust if the file may run",
        )
        text = "the cell of the run is in a file, which is not run unasked"
        raise RunError(diagnostic(text, details, hint))
    return config


def check_inner(folder: RunFolder, trust: bool = False) -> None:
    """Refuse to write where links of a run folder lead.

    Raises:
        RunError: there are some, and the call does not trust the run.
    """
    for name in () if trust else INNER:
        inner = folder.path / name
        if inner.is_symlink():
            details = [("path", str(inner)), ("found", f"a link to {inner.readlink()}")]
            hint = spelled("trust=True if it may write there", "--trust if it may write there")
            raise RunError(diagnostic("a folder of the run is elsewhere", details, hint))


def _unknown(folder: RunFolder, cell: str) -> str:
    """Why a run is not known to be this user's, with the cell's file as it is; empty if it is."""
    try:
        path = _record(folder)
        if not private_folder(path.parent):
            return "records of runs lie where others can write"
        content = json.loads(read_file(path, _MOST))
        known, hash_then = content["cell"], content["sha256"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return "no record that the run was begun here"
    try:
        hash_now = _hash(_file(cell))
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    if (known, hash_then) != (cell, hash_now):
        return "the file has changed since the run began"
    return ""


def _record(folder: RunFolder) -> Path:
    """Where the record of a run is, if there is one."""
    hashes = [_hash(folder.path / name) for name in BEGUN]
    return cache_folder() / "runs" / f"{hashlib.sha256(' '.join(hashes).encode()).hexdigest()}.json"


def _hash(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def _file(cell: str) -> Path:
    return Path(cell.rpartition(":")[0]).expanduser()
