"""A recorded call as a Python function without a decision: operations, launches, results."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (Triton's compiled kernels and torch's operations have no types)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.triton.recording import Launch, Operation, Place, Recorder, place_of
from elman.ir.graph import by_bits
from elman.torch_internals import compiled_kernel_classes

_EMPTY = ("aten.new_empty.default", "aten.empty_like.default")
_ZEROS = ("aten.new_zeros.default", "aten.zeros_like.default")


class StraightLine:
    """A recorded call as a function of other tensors.

    Args:
        notes: of the call.
        found: what it returned: tensors in nested tuples, NamedTuples too.
        there: which arguments are tensors; None takes the place of the others.

    Attributes:
        text: the function.

    Raises:
        UnrecordableError: something of it cannot be written down.
    """

    def __init__(self, notes: Recorder, result: Any, present: Sequence[bool]) -> None:
        if notes.refused is not None:
            raise notes.refused
        self._notes = notes
        self._names = {
            "empty": torch.empty_strided,
            "zeros": torch.zeros,
        }
        self._constants: dict[Any, str] = {}
        self._bodies: list[list[str]] = []
        self._used: dict[str, int] = {}  # by variable: the last line that reads it
        self._views: dict[Place, str] = {}
        for line in notes.lines:
            self._body: list[str] = []
            self._line(line)
            self._bodies.append(self._body)
        self._body = []
        text = self._result(result, {})
        tensors = iter(range(notes.count))
        names = [f"a{next(tensors)}" if here else f"_{k}" for k, here in enumerate(present)]
        lines = [*self._freed(), *self._body, f"return {text}"]
        self.text = "\n    ".join([f"def replay({', '.join(names)}):", *lines]) + "\n"
        exec(compile(self.text, "<elman replay>", "exec"), self._names)
        self.function = self._names["replay"]
        del self._notes, self._views  # which keep the tensors of the recorded call

    def __call__(self, *arguments: Tensor | None) -> Any:
        """What the call returns for such tensors."""
        return self.function(*arguments)

    def _freed(self) -> list[str]:
        """All lines, with ``del`` after the last use of a tensor."""
        last: dict[int, list[str]] = {}
        for name, line in self._used.items():
            if not name.startswith("a"):  # the caller has the arguments
                last.setdefault(line, []).append(name)
        lines: list[str] = []
        for number, (line, body) in enumerate(zip(self._notes.lines, self._bodies, strict=True)):
            freed = last.get(number, [])
            if _allocates(line) and body[-1].partition(" ")[0] in freed:
                continue  # nothing reads it
            lines += body
            if freed:
                lines.append(f"del {', '.join(freed)}")
        return lines

    def _line(self, line: Operation | Launch) -> None:
        if isinstance(line, Launch):
            self._launch(line)
            return
        text = self._operation(line)
        if line.result is not None:
            text = f"{self._root(line.result)} = {text}"
        self._body.append(text)

    def _operation(self, line: Operation) -> str:
        """Text of an operation."""
        name = str(line.op)
        if line.result is not None and _allocates(line):
            tensor = self._notes.roots[line.result]
            like = f"dtype={self._constant(tensor.dtype)}, device={self._constant(tensor.device)}"
            if name in _EMPTY:
                return f"empty({tuple(tensor.shape)}, {tensor.stride()}, {like})"
            if tensor.is_contiguous():
                return f"zeros({tuple(tensor.shape)}, {like})"
        args = [self._value(arg) for arg in line.args]
        if name == "aten.copy_.default":
            return f"{args[0]}.copy_({', '.join(args[1:])})"
        options = [f"{key}={self._value(value)}" for key, value in line.options.items()]
        return f"{self._constant(line.op)}({', '.join([*args, *options])})"

    def _launch(self, line: Launch) -> None:
        """Text of a launch: of views in the interpreter, else of addresses."""
        if not isinstance(line.compiled, compiled_kernel_classes()):
            args = [self._value(arg) for arg in line.args]
            options = self._constant(line.options)
            run = self._constant(line.kernel[line.grid])
            self._body.append(f"{run}({', '.join(args)}, **{options})")
            return
        names = line.kernel.arg_names[len(line.args) :]
        args = [self._address(arg) if isinstance(arg, Place) else repr(arg) for arg in line.args]
        args += [self._constant(line.options[name]) for name in names]
        grid = (*line.grid, 1, 1)[:3]
        self._body.append(f"{self._constant(line.compiled[grid])}({', '.join(args)})")

    def _address(self, place: Place) -> str:
        """Text of where a place begins in memory."""
        offset = place.offset * self._notes.roots[place.root].element_size()
        return f"{self._root(place.root)}.data_ptr()" + (f" + {offset}" if offset else "")

    def _root(self, number: int) -> str:
        """The name of a tensor with memory of its own."""
        name = self._name(number)
        self._used[name] = len(self._bodies)
        return name

    def _name(self, number: int) -> str:
        index = number - self._notes.count
        return f"t{index}" if index >= 0 else f"a{number}"

    def _value(self, value: Any) -> str:
        """Text of an argument."""
        if isinstance(value, Place):
            return self._view(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self._value, value))}]"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        return self._constant(value)

    def _view(self, place: Place) -> str:
        """The name of a view, made on first use."""
        if place == place_of(place.root, self._notes.roots[place.root]):
            return self._root(place.root)
        name = self._views.get(place)
        if name is None:
            name = self._views[place] = f"v{len(self._views)}"
            self._body.append(f"{name} = {self._strided(place)}")
        self._used[name] = len(self._bodies)
        return name

    def _strided(self, place: Place) -> str:
        """Text of a new view."""
        root = self._root(place.root)
        first = f"{root}.storage_offset() + " if place.root < self._notes.count else ""
        start = 0 if first else self._notes.roots[place.root].storage_offset()
        return f"{root}.as_strided({place.size}, {place.stride}, {first}{start + place.offset})"

    def _constant(self, value: Any) -> str:
        """The name of what is the same in every call."""
        key = id(value) if value.__hash__ is None else (type(value), by_bits(value))
        if key not in self._constants:
            name = self._constants[key] = f"c{len(self._constants)}"
            self._names[name] = value
        return self._constants[key]

    def _result(self, value: Any, names: dict[int, str]) -> str:
        """Text of what is returned: each tensor of it another one, if it was."""
        if value is None:
            return "None"
        if isinstance(value, Tensor):
            if id(value) not in names:
                names[id(value)] = self._returned(value, names)
            return names[id(value)]
        items = "".join(self._result(item, names) + ", " for item in value)
        return (
            f"{self._constant(type(value))}({items})" if hasattr(value, "_fields") else f"({items})"
        )

    def _returned(self, value: Tensor, names: dict[int, str]) -> str:
        place: Place = self._notes.placed(value)
        root = self._root(place.root)
        if (
            place == place_of(place.root, self._notes.roots[place.root])
            and root not in names.values()
        ):
            return root
        self._body.append(f"r{len(names)} = {self._strided(place)}")
        return f"r{len(names)}"


def _allocates(line: Operation | Launch) -> bool:
    """Whether it does nothing but make a tensor of known numbers, or of none."""
    return isinstance(line, Operation) and str(line.op) in (*_EMPTY, *_ZEROS)
