"""What torch does not promise to keep: each name's value where it matters, and the way without."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap

import elman
from elman import torch_internals
from elman.errors import EngineError
from elman.extras import EXTRAS
from elman.nn.autograd import transforms
from helpers import assert_close, need_engine
from kinds import Dispatched, Functions

SRC = Path(elman.__path__[0])
X = torch.linspace(-1, 1, 6)
# of torch, about its own torch.jit, which forward-mode differentiation imports
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def lacking(*names: str) -> Any:
    """The package as it is where torch, and Triton, do not have some names."""

    def getattr_without(value: Any, name: str, *instead: Any) -> Any:
        if name in names and instead:
            return instead[0]
        return getattr(value, name, *instead)

    def hasattr_without(value: Any, name: str) -> bool:
        return name not in names and hasattr(value, name)

    package, files = torch_internals.__name__, Path(torch_internals.__file__).parent
    modules: dict[str, ModuleType] = {}

    def import_without(name: str, *how: Any) -> ModuleType:
        if not f"{name}.".startswith(f"{package}."):
            return __import__(name, *how)
        if name not in modules:
            module = modules[name] = ModuleType(name.replace(package, f"{package}_lacking"))
            module.__dict__["__builtins__"] = {**vars(builtins), **functions}
            file = name.removeprefix(package).removeprefix(".")
            for other in [] if file else files.glob("[!_]*.py"):
                setattr(module, other.stem, import_without(f"{package}.{other.stem}"))
            path = files / f"{file or '__init__'}.py"
            sys.modules[module.__name__] = module  # NamedTuple looks there
            try:
                exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
            finally:
                del sys.modules[module.__name__]
        return modules[name]

    functions = {
        "getattr": getattr_without,
        "hasattr": hasattr_without,
        "__import__": import_without,
    }
    return import_without(package)


def both(*names: str) -> Any:
    """A test's cases: the module as it is, and without some names."""
    cases = [pytest.param(lambda: torch_internals, id="with")]
    cases.append(pytest.param(lambda: lacking(*names), id=f"without {names[0]}"))
    return pytest.mark.parametrize("internals", cases)


def during(run: Callable[[Callable[[Tensor], Tensor]], Any], ask: Callable[[], Any]) -> Any:
    """What ``ask()`` says while a transform of a function runs."""
    said: list[Any] = []

    def function(x: Tensor) -> Tensor:
        said.append(ask())
        return x.sin().sum()

    run(function)
    return said[-1]


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda function: grad(function)(X),
    "vmap": lambda function: vmap(function)(X.reshape(2, 3)),
    "jvp": lambda function: jvp(function, (X,), (X,)),
}


def test_nowhere_else():
    """No other file of the package has a name of torch's or Triton's that is private."""
    private = re.compile(
        r"\btorch\._|\bfrom torch\.?[\w.]*\._|\bfrom torch import _|\b_C\b|\._cdata|forward_ad\._"
        r"|\._is_view|_get_default_store|_flat_weights|_triton_jit|_dynamo_marked|\._schema"
        r"|ctypes\.py_object|os\.environ\._"
    )
    files = [p for p in SRC.rglob("*.py") if p.parent.name != "torch_internals"]
    lines = [
        f"{path.relative_to(SRC)}:{number}: {line.strip()}"
        for path in files
        if path.relative_to(SRC).parts[0] != "bench"  # compares with what torch is trying out
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if private.search(line) and "torch.__" not in line
    ]
    assert not lines, "\n".join(lines)


def test_this_torch_has_all():
    """Of the torch that tests run with, no name is missing; a missing one is listed."""
    assert torch_internals.LACKING == []
    assert lacking("_is_view").LACKING == ["torch.Tensor._is_view"]
    everything = lacking("_C", "_current_level", "_cdata")
    assert "torch._C._functorch.peek_interpreter_stack" in everything.LACKING


def test_dispatch_modes():
    """Counted; without the name there is always one."""
    count = torch_internals.count_dispatch_modes
    assert count() == 0
    with Dispatched(), Dispatched():
        assert count() == 2
    assert lacking("_len_torch_dispatch_stack").count_dispatch_modes() == 1


def test_tracing_context():
    """Of this thread alone; without the name there is none."""
    assert torch_internals.tracing_context() is None
    with tracing(TracingContext(None)) as context:
        assert torch_internals.tracing_context() is context
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch_internals.tracing_context).result() is None
    assert lacking("try_get").tracing_context() is None


def test_scan():
    """A step over rows; without the name an error."""
    x, factor = torch.arange(6.0).reshape(3, 2), torch.full((2,), 0.5)

    def step(state, row, constant):
        return [constant * state + row, 2 * state]

    end, out = torch_internals.scan(step, [torch.ones(2)], [x], [factor])
    state, rows = torch.ones(2), []
    for row in x:
        rows.append(2 * state)
        state = factor * state + row
    assert_close(end, state)
    assert_close(out, torch.stack(rows))
    without = lacking("scan")
    with pytest.raises(EngineError, match=r"needs torch.ops.higher_order.scan"):
        without.scan(step, [], [], [])


@both("_len_torch_function_stack")
def test_function_modes(internals):
    """Counted, or whether there are any."""
    count = internals().count_function_modes
    assert not count()
    with Functions():
        assert count() == 1
    with torch.device("cpu"):  # which is such a mode
        assert count()
    assert not count()


@both("_is_mkldnn_bf16_supported")
def test_bfloat16_of_the_processor(internals):
    """As torch says; assumed without the name."""
    assert internals().cpu_has_bf16() or torch_internals.cpu_has_bf16() is False


@both("_get_tracing_state")
def test_tracing_state(internals):
    """None, but inside of torch.jit.trace."""
    state, said = internals().tracing_state, []

    def function(x: Tensor) -> Tensor:
        said.append(state() is None)
        return x + 1

    assert state() is None
    torch.jit.trace(function, (X,), check_trace=False)
    assert said == [False]


@both("_get_fp32_precision_getter")
def test_precision(internals):
    precision, switch = internals().fp32_precision, torch.backends.mkldnn.rnn
    before = switch.fp32_precision
    assert precision("mkldnn", "rnn") == before
    switch.fp32_precision = "bf16"
    try:
        assert precision("mkldnn", "rnn") == "bf16"
    finally:
        switch.fp32_precision = before


@both("_is_any_autocast_enabled")
def test_autocast(internals):
    """On any device."""
    enabled = internals().autocast_enabled
    assert not enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert enabled()
        with torch.autocast("cpu", enabled=False):
            assert not enabled()


@both("peek_interpreter_stack")
def test_innermost_transform(internals):
    """None outside of torch.func alone."""
    innermost = internals().innermost_transform
    assert innermost() is None
    for transform in TRANSFORMS.values():
        assert during(transform, innermost) is not None
    with forward_ad.dual_level():
        assert innermost() is None
    assert innermost() is None


@pytest.mark.parametrize(
    "name", ["is_gradtrackingtensor", "maybe_get_level", "retrieve_all_functorch_interpreters"]
)
def test_differentiated_in_vmap(name):
    """A gradient inside of a vmap, and not around it; without one of the names never."""
    said: dict[str, bool] = {}

    def ask(how: str, internals: Any) -> Callable[[Tensor], Tensor]:
        def function(w: Tensor) -> Tensor:
            said[how] = internals.differentiated_in_vmap([w])
            return w.sin().sum()

        return function

    assert not torch_internals.differentiated_in_vmap([X])
    vmap(grad(ask("inside", torch_internals)))(X.reshape(2, 3))
    grad(lambda w: vmap(ask("around", torch_internals))(w).sum())(X.reshape(2, 3))
    vmap(grad(ask("without", lacking(name))))(X.reshape(2, 3))
    assert said == {"inside": True, "around": False, "without": False}


def test_is_batched_cotangent():
    """Of ``is_grads_batched``; without the name always."""
    said: list[tuple[bool, bool]] = []
    without = lacking("is_legacy_batchedtensor").is_batched_cotangent

    class Asking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, d: Tensor) -> Tensor:  # type: ignore[override]
            said.append((torch_internals.is_batched_cotangent(d), without(d)))
            return d

    x = X.clone().requires_grad_()
    for batched in (False, True):
        d = torch.eye(6) if batched else X
        torch.autograd.grad(Asking.apply(x), x, d, is_grads_batched=batched)
    assert said == [(False, True), (True, True)]


@both("_current_level")
def test_forward_mode(internals):
    """Inside of a level, which asking does not end."""
    inside = internals().forward_mode
    assert not inside()
    with forward_ad.dual_level():
        assert inside()
        assert inside()
        dual = forward_ad.make_dual(X, X)
        assert forward_ad.unpack_dual(dual * 2).tangent is not None
    assert not inside()


def test_forward_gradients():
    """Tangents pass where they are turned off; without the switch an error."""
    off: Any = forward_ad
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, X)
        with off._set_fwd_grad_enabled(False):
            assert forward_ad.unpack_dual(dual * 2).tangent is None
            with torch_internals.forward_gradients():
                assert forward_ad.unpack_dual(dual * 2).tangent is not None
    with pytest.raises(EngineError, match="needs _set_fwd_grad_enabled, which torch"):
        lacking("_set_fwd_grad_enabled").forward_gradients()


def test_backward_keeps_graph():
    """As ``retain_graph`` says; without the name always."""
    said: list[tuple[bool, bool]] = []
    without = lacking("_get_current_graph_task_keep_graph").backward_keeps_graph
    for keep in (True, False):
        x = X.clone().requires_grad_()
        y = x * 2
        y.register_hook(lambda d: said.append((torch_internals.backward_keeps_graph(), without())))
        y.sum().backward(retain_graph=keep)
    assert said == [(True, True), (False, True)]


def test_saved_tensors_are_hooked():
    """Inside of the user's hooks; without the name always."""
    hooked = torch_internals.saved_tensors_are_hooked
    assert not hooked()
    with torch.autograd.graph.save_on_cpu():
        assert hooked()
    assert not hooked()
    assert lacking("_top_saved_tensors_default_hooks").saved_tensors_are_hooked()


@both("_engine_run_backward")
@pytest.mark.parametrize("create_graph", [False, True])
def test_differentiate(internals, create_graph):
    """As torch.autograd.grad, also of what does not depend; once more if it is asked for."""
    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()
    roots, ds = [x.sin(), (x * x).sum()], [X, torch.tensor(2.0)]
    got, none = internals().differentiate(roots, [x, other], ds, create_graph)
    assert none is None
    assert_close(got, x.cos() * X + 4 * x)
    assert got.requires_grad == create_graph
    if create_graph:
        assert_close(torch.autograd.grad(got.sum(), x)[0], 4 - x.sin() * X)


def test_is_view():
    """Of memory of another tensor; without the name always, and results are the same."""
    assert torch_internals.is_view(X[1:])
    assert not torch_internals.is_view(X)
    assert not torch_internals.is_view(X[1:].detach())
    assert lacking("_is_view").is_view(X)


@both("_foreach_copy_")
def test_copy_all(internals):
    """Tensors of any strides."""
    targets, values = [torch.zeros(2, 3), torch.zeros(4)], [torch.rand(3, 2).mT, torch.rand(4)]
    internals().copy_all(targets, values)
    for target, value in zip(targets, values, strict=True):
        assert torch.equal(target, value)


def test_count_users():
    """In C++: the storage's own object, and tensors; without either name nothing is counted."""
    assert torch_internals.COUNTS_USERS
    storage = torch.empty(3).untyped_storage()
    alone = torch_internals.count_users(storage)
    tensor = torch.empty(0).set_(storage)
    assert torch_internals.count_users(storage) > alone == 1
    del tensor
    assert torch_internals.count_users(storage) == alone
    for name in ("_storage_Use_Count", "_cdata"):
        assert not lacking(name).COUNTS_USERS


def test_default_store(tmp_path):
    """Of the process group; without the name an error."""
    dist = torch.distributed
    if not dist.is_available():
        pytest.skip("torch has no processes")
    file = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=file, rank=0, world_size=1)
    try:
        store = torch_internals.default_store()
        store.set("elman/a", "b")
        assert store.get("elman/a") == b"b"
        with pytest.raises(EngineError, match="needs _get_default_store, which torch"):
            lacking("_get_default_store").default_store()
    finally:
        dist.destroy_process_group()


def test_dispatch_keys():
    """Autograd's are off inside inference_mode, and on with the keys from outside; without the
    names an error."""
    usual = torch_internals.dispatch_keys()
    x = X.clone().requires_grad_()
    with torch.inference_mode():
        inside = torch_internals.dispatch_keys()
        with torch_internals.dispatching(usual):
            assert torch_internals.dispatch_keys().excluded == usual.excluded
    assert inside.excluded != usual.excluded
    with torch._C._AutoDispatchBelowAutograd():
        assert not (x * 2).requires_grad
        with torch_internals.dispatching(usual):
            assert (x * 2).requires_grad
    for name in ("_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set"):
        with pytest.raises(EngineError, match=r"torch\.compile or torch\.export needs"):
            lacking(name).dispatch_keys()
    with pytest.raises(EngineError, match="needs _ForceDispatchKeyGuard, which torch"):
        lacking("_ForceDispatchKeyGuard").dispatching(usual)


def test_constant():
    """What torch's own decorator marks a function with."""

    def function() -> int:
        return 1

    theirs: Any = torch.compiler.assume_constant_result(lambda: 1)
    assert vars(torch_internals.constant(function)) == vars(theirs)


def test_allow_compiling(monkeypatch):
    """A class of ours is looked into, others are not; a compiler of another form is left alone."""
    seen: list[bool] = []

    class Config:
        allow_rnn = False

        def patch(self, allow_rnn: bool) -> Any:
            monkeypatch.setattr(self, "allow_rnn", allow_rnn)
            return nullcontext()

    class VariableBuilder:
        def wrap_module(self, value: Any) -> str:
            seen.append(config.allow_rnn)
            return "wrapped"

    config, builder = Config(), ModuleType("builder")
    builder.VariableBuilder = VariableBuilder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._dynamo.config", config)
    monkeypatch.setitem(sys.modules, torch_internals.compiler._BUILDER, builder)
    without = lacking("wrap_module")
    without.allow_compiling(elman.GRU)
    assert without.LACKING == ["torch._dynamo.variables.builder.VariableBuilder.wrap_module"]
    fresh = lacking()
    fresh.allow_compiling(elman.GRU)
    fresh.allow_compiling(elman.GRU)  # once is enough
    assert VariableBuilder().wrap_module(torch.nn.GRU(3, 4)) == "wrapped"
    assert VariableBuilder().wrap_module(elman.GRU(3, 4)) == "wrapped"
    assert seen == [False, True]


def test_compile_within():
    """Without the list of what is looked into from elsewhere, nothing is skipped."""
    rules: Any = ModuleType("rules")
    rules.SKIP_DIRS, rules.add = [], lambda name: rules.SKIP_DIRS.append(f"/{name}/")
    without = lacking("BUILTIN_INLINE_WHEN_CALLED")
    without.LACKING.clear()
    without.compiler._compile_within(rules)
    assert without.LACKING == ["torch._dynamo.trace_rules.BUILTIN_INLINE_WHEN_CALLED"]
    assert not rules.SKIP_DIRS
    rules.BUILTIN_INLINE_WHEN_CALLED = set()
    torch_internals.compiler._compile_within(rules)
    assert rules.BUILTIN_INLINE_WHEN_CALLED == {*rules.SKIP_DIRS} == {"/elman/"}


@both("_allow_mutation_on_saved_tensors_enabled")
def test_saved_tensors_may_change(internals):
    """Inside of torch's context that allows it; without the name, with any hooks under a mode."""
    may_change = internals().saved_tensors_may_change
    graph = torch.autograd.graph
    assert not may_change()
    with graph.save_on_cpu():
        assert not may_change()
    with graph.allow_mutation_on_saved_tensors():
        assert may_change()
    assert not may_change()


COMPILER_COMES_LATER = f"""
import sys, torch, numpy
before = set(sys.modules)
import elman
assert not ({{"filelock", "platformdirs", *{[*EXTRAS]}}} & (set(sys.modules) - before))
net = elman.GRU(3, 5, engine="reference")
finders = len(sys.meta_path)
import torch._dynamo
from torch._dynamo import trace_rules
from torch._dynamo.variables import builder
assert len(sys.meta_path) == finders - 2, "they take themselves away"
for module in (builder, trace_rules):
    assert module.__spec__.loader.path == module.__file__, "the loader is as before"
code = elman.GRU.forward.__code__
assert trace_rules.check(code), "the compiler does not begin there"
assert not trace_rules.check(code, is_inlined_call=True), "it looks into it"
assert elman.torch_internals.LACKING == []
"""


@pytest.mark.slow
def test_a_compiler_that_is_imported_later():
    """`import elman` loads no package of an extra; the class is allowed when the compiler comes,
    and nothing waits for it any more."""
    from scripts import begin_anew, finished

    finished(begin_anew("-W", "ignore", "-c", COMPILER_COMES_LATER))


def test_triton():
    """A function that is forgotten; without the name nothing is."""
    jit = pytest.importorskip("triton.runtime.jit")
    functions: Any = jit._triton_jit_function_registry
    for internals, left in (
        (torch_internals, False),
        (lacking("_triton_jit_function_registry"), True),
    ):
        functions["elman_test:kernel"] = object()
        internals.forget_triton_function("elman_test:kernel")
        internals.forget_triton_function("elman_test:no such kernel")
        assert (functions.pop("elman_test:kernel", None) is not None) == left


@pytest.mark.parametrize(
    "name", ["_len_torch_dispatch_stack", "peek_interpreter_stack", "_is_view"]
)
def test_layers_without(name, monkeypatch):
    """Layers compute the same, and transforms go through, whatever torch tells less of."""
    need_engine("c")
    net, x = elman.GRU(3, 4, engine="c"), torch.randn(5, 2, 3, requires_grad=True)
    want = [net(x)[0], *torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()])]
    moved = jvp(lambda x: net(x)[0], (x.detach(),), (x.detach(),))[1]
    without = lacking(name)
    monkeypatch.setattr("elman.nn.autograd.function.is_view", without.is_view)
    for function in ("count_dispatch_modes", "innermost_transform"):
        monkeypatch.setattr(transforms, function, getattr(without, function))
    for _ in range(3):
        got = [net(x)[0], *torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()])]
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)
    assert_close(jvp(lambda x: net(x)[0], (x.detach(),), (x.detach(),))[1], moved)
