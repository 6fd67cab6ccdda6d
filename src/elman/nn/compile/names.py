"""Constants of torch.compile: names of groups of layers, and facts about a module.

An operator takes tensors, numbers and texts, so it finds a group of layers by name.
"""

from __future__ import annotations

import itertools
import json
import weakref
from copy import copy

from elman.errors import EngineError
from elman.frontend.cell import find_cell, same_cell
from elman.nn.execute.group import Group
from elman.nn.execute.layer import Runner
from elman.nn.execute.stack import Stack
from elman.nn.layout.layout import StateForm
from elman.nn.options.outputs import OutputLayout, Outputs
from elman.plan.spec import PlanOptions
from elman.torch_internals import constant

_groups: weakref.WeakValueDictionary[str, Group] = weakref.WeakValueDictionary()
_rebuilt: dict[str, Group] = {}  # groups made from their names, which exported programs contain
_local = itertools.count(1)
_stacks: weakref.WeakValueDictionary[str, Stack] = weakref.WeakValueDictionary()
_keys = itertools.count(1)


def name_of(group: Group) -> str:
    """The name by which operators find a group, in other processes, too, unless its cell is
    local."""
    if group.name is None:
        cell = group.runners[0].cell
        facts = {
            "cell": [cell.function.__module__, cell.function.__qualname__, cell.heads],
            "formula": cell.fingerprint,
            "dims": [dict(runner.dims) for runner in group.runners],
            "options": group.runners[0].options.to_json(),
            "beside": group.directions,
        }
        if cell.changes:
            facts["changes"] = [change.data for change in cell.changes]
        if cell.options != cell.defaults or "<" in cell.function.__qualname__:
            facts["local"] = next(_local)
        group.name = json.dumps(facts, sort_keys=True)
    _groups[group.name] = group
    return group.name


def group_of(name: str) -> Group:
    """The group of a name: that of this process, else a new one made from the name.

    Raises:
        EngineError: the cell was local to another process.
        PickleError: there is no such cell, or it is another formula now.
    """
    group = _groups.get(name)
    if group is None:
        facts = json.loads(name)
        module, qualname, heads = facts["cell"]
        if "local" in facts:
            raise EngineError(f"cell {qualname} of {module} lived in another process, or has gone")
        named_cell = find_cell(module, qualname, {}, heads, facts.get("changes", ()))
        cell = same_cell(named_cell, facts.get("formula"))
        options = PlanOptions(**facts["options"])
        runners = [Runner(cell, dims, options) for dims in facts["dims"]]
        group = _rebuilt[name] = _groups[name] = Group(runners, facts["beside"])
    return group


def release() -> None:
    """Drop the groups made from their names; an exported program makes them again."""
    _rebuilt.clear()


def key_of(stack: Stack) -> str:
    """A new key of a stack in this process, while it lives: torch's compiler treats texts, but not
    stacks or modules, as constants with guards (torch 2.11)."""
    key = str(next(_keys))
    _stacks[key] = stack
    return key


@constant
def names_of(key: str, between: bool) -> list[tuple[str, int]]:
    """Names of a stack's groups that run one after another, and the size of each."""
    return [(name_of(group), count) for group, count in _stacks[key].groups_for(between)]


@constant
def facts_of(
    key: str, outputs: Outputs
) -> tuple[OutputLayout, StateForm, list[list[int]], list[list[str]]]:
    """Return output layout, form of states, inputs and draws of each layer of a stack, as copies,
    so that the compiler guards nothing."""
    stack = _stacks[key]
    layout, form = copy(stack.output_layout(outputs)), copy(stack.form)
    return layout, form, [*map(list, stack.takes)], [*map(list, stack.draws)]
