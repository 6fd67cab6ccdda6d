"""The scripts that compare whole models: a tiny one stands in for those of transformers."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from benchmarks import studied
from benchmarks.rows import read_rows
from benchmarks.scripts import small_models, transformers_runtimes, transformers_uses
from benchmarks.scripts import transformers_models as script
from benchmarks.scripts.llama import as_published


class Output(dict):
    """What a model returns: by name, and as attributes."""

    __getattr__ = dict.__getitem__


class Config(SimpleNamespace):
    """A configuration, without other names for what it has."""

    attribute_map: ClassVar[dict[str, str]] = {}


class Tiny(nn.Module):
    """A model whose logits are changed by what is installed."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, 8), nn.Linear(8, 500)

    def forward(self, input_ids, labels=None, **options):
        logits = self.head(self.table(input_ids)) * self.factor
        return Output(logits=logits, loss=logits.square().mean(), past_key_values=1)

    def generate(self, tokens, **options):
        return tokens

    def gradient_checkpointing_enable(self) -> None:
        raise ValueError("it has none")


@pytest.fixture
def tiny(monkeypatch):
    """One model type, of a package that is not there."""
    package = ModuleType("transformers")
    package.CONFIG_MAPPING = {"tiny": Config}
    package.AutoModelForCausalLM = SimpleNamespace(from_config=lambda config, **_: Tiny())
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "fla", None)
    for module in (script, transformers_uses):
        monkeypatch.setattr(module.metadata, "version", lambda name: "0")
        monkeypatch.setattr(module, "TYPES", {"tiny": {}})
    monkeypatch.setitem(small_models.TYPES, "tiny", {})


def test_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """A line, a row with times, and the tables of the pages."""
    out, precision = tmp_path / "rows.jsonl", torch.backends.mkldnn.matmul.fp32_precision
    script.main(["--out", str(out), "--steps", "5", "--seconds", "0.001"])
    assert '"tiny"' in capsys.readouterr().out
    rows = read_rows(out)
    assert (rows["tiny"]["logits"], rows["tiny"]["same text"]) == (0.0, True)
    seconds = rows["tiny"]["seconds"]
    assert {*seconds} == {"training", "prompt", "token"}
    bf16 = {"torch bf16", "elman bf16"}
    assert {*seconds["prompt"]} == {*seconds["training"]} == {"torch", "elman", "products", *bf16}
    assert all(0 < of["products"] < of["torch"] for of in seconds.values())
    assert torch.backends.mkldnn.matmul.fp32_precision == precision
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    table = studied.transformers_models()
    line, middle = table.splitlines()[2:]
    assert line.startswith("| `tiny` | 0.0e+00 | 0.0e+00 | the same | ")
    assert line.removeprefix("| `tiny` | 0.0e+00 | 0.0e+00 | the same |") in middle
    assert (line.count("x ("), line.count("x |")) == (5, 1)


def test_rows_by_size(tiny, tmp_path, monkeypatch):
    """One model at several sizes, and phases that were not timed."""
    out = tmp_path / "rows.jsonl"
    words = ["--by-size", "--steps", "5", "--seconds", "0.001", "--out", str(out)]
    for batch, phases in (("1", "prompt"), ("2", "prompt,token")):
        script.main([*words, "--batch", batch, "--phases", phases])
    rows = read_rows(out)
    assert [*rows] == ["tiny 1,5", "tiny 2,5"]
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    first, second = studied.sizes_of_models().splitlines()[2:]
    assert first.startswith("| tiny | 1 | 5 | – | – | ")
    assert (first.count("–"), second.count("–")) == (4, 2)


def test_published_models_with_adapters(tiny, tmp_path, monkeypatch):
    """A model of given sizes, and a training step of its adapters."""
    peft = ModuleType("peft")
    peft.LoraConfig = SimpleNamespace
    peft.get_peft_model = lambda model, config: model
    monkeypatch.setitem(sys.modules, "peft", peft)
    for module in (script, small_models):
        monkeypatch.setattr(module, "PUBLISHED", {"Tiny-1B": ("tiny", {"hidden_size": 3})})
    out = tmp_path / "rows.jsonl"
    phases = ["training", "adapters", "prompt", "token"]
    words = ["--published", "--phases", ",".join(phases), "--steps", "5", "--seconds", "0.001"]
    script.main(["--out", str(out), *words])
    rows = read_rows(out)
    row = rows["Tiny-1B"]
    assert (row["steps"], [*row["seconds"]], row["torch"]["logits"]) == (5, phases, row["logits"])
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    (line,) = [line for line in studied.published_models().splitlines() if "Tiny" in line]
    assert line.count("x |") == 5


def test_what_differs_is_named(tiny, monkeypatch):
    """With a status that is no success."""

    def install(model):
        model.factor = 1.1
        return {}

    monkeypatch.setattr(script, "install", install)
    with pytest.raises(SystemExit, match="different: tiny"):
        script.main(["--steps", "5"])


def test_uses_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """Each use has a number, or says what is refused."""
    out = tmp_path / "rows.jsonl"
    names = ["training", "checkpointing", "float64", "text", "beams", "packed"]
    transformers_uses.main(["--out", str(out), "--uses", ",".join(names)])
    uses = read_rows(out)["tiny"]["uses"]
    assert [*uses] == names
    assert uses["checkpointing"] == "ValueError: it has none"
    assert all(uses[name] == 0.0 for name in names if name != "checkpointing")
    assert '"tiny"' in capsys.readouterr().out

    def install(model):
        model.factor = 1.1

    monkeypatch.setattr(transformers_uses, "install", install)
    with pytest.raises(SystemExit, match="different: tiny: training"):
        transformers_uses.main(["--uses", "training,text"])


def test_runtimes_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """A package that runs what it is given stands in for OpenVINO."""

    class Core:
        def compile_model(self, graph, device, options):
            assert (device, options["INFERENCE_PRECISION_HINT"]) == ("CPU", "f32")
            return lambda given: [graph.module()(*map(torch.from_numpy, given)).detach().numpy()]

    package = ModuleType("openvino")
    package.convert_model, package.Core = lambda graph: graph, Core
    monkeypatch.setitem(sys.modules, "openvino", package)
    for name in ("openvino", "transformers"):
        monkeypatch.setattr(sys.modules[name], "__version__", "0", raising=False)
    monkeypatch.setattr(transformers_runtimes, "TYPES", ("tiny",))
    out = tmp_path / "rows.jsonl"
    transformers_runtimes.main(["--out", str(out), "--steps", "5", "--seconds", "0.001"])
    rows = read_rows(out)
    assert {*rows["tiny"]["seconds"]} == {"torch", "elman", "openvino"}
    assert rows["tiny"]["errors"]["openvino"] < 1e-6
    assert '"tiny"' in capsys.readouterr().out
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    assert studied.runtimes_of_models().splitlines()[2].startswith("| `tiny` | ")
    monkeypatch.setitem(sys.modules, "openvino", None)
    transformers_runtimes.main([])
    assert "openvino is not installed: pip install" in capsys.readouterr().out


def test_a_runtime_that_reads_files(tiny, tmp_path, monkeypatch):
    """A converter and a package whose logits are those of the model stand in for llama.cpp's."""
    model, names = Tiny(), dict[str, str]()

    class Converter:
        model_arch = "tiny"

        def __init__(self, folder, weights, file, hparams):
            self.file, self.gguf_writer = file, SimpleNamespace()
            for key in ("tokenizer_model", "vocab_size"):
                setattr(self.gguf_writer, f"add_{key}", partial(names.__setitem__, key))

        def write(self):
            self.set_vocab()
            self.file.write_text("a model")

    def decode(context, batch):
        tokens = torch.tensor(batch.token[: batch.n_tokens], dtype=torch.long)
        context.logits = model(input_ids=tokens)["logits"].detach().numpy()
        return 0

    monkeypatch.setattr(Tiny, "save_pretrained", lambda self, folder: None, raising=False)
    monkeypatch.setattr(small_models, "_model", lambda config: model)
    monkeypatch.setattr(transformers_runtimes, "install", lambda model, weights=None: None)
    conversion = ModuleType("conversion")
    config = {"model_type": "tiny", "vocab_size": 500}
    conversion.ModelBase = SimpleNamespace(load_hparams=lambda folder, mistral: config)
    conversion.ModelType = SimpleNamespace(TEXT=1)
    conversion.get_model_architecture = lambda config, kind: "Tiny"
    conversion.get_model_class = lambda kind: Converter
    package = MagicMock(__version__="0")
    package.llama_model_load_from_file = lambda file, options: Path(file.decode()).read_text()
    package.llama_init_from_model = lambda model, options: SimpleNamespace()
    package.llama_vocab_n_tokens.return_value = 500
    package.llama_batch_init = lambda tokens, *_: SimpleNamespace(
        n_seq_id=[0] * tokens, seq_id=[[0] for _ in range(tokens)],
        **{key: [0] * tokens for key in ("token", "pos", "logits")},
    )  # fmt: skip
    package.llama_decode = decode
    package.llama_get_logits = lambda context: context.logits
    for name, module in {
        "conversion": conversion,
        "gguf": MagicMock(),
        "llama_cpp": package,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "0", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(transformers_runtimes, "TYPES", ("tiny",))
    out = tmp_path / "rows.jsonl"
    words = ["--llama", str(tmp_path), "--steps", "70", "--seconds", "0.001"]
    transformers_runtimes.main(["--out", str(out), *words])
    row = read_rows(out)["tiny"]
    assert names == {"tokenizer_model": "none", "vocab_size": 500}
    assert ({*row["seconds"]}, row["errors"]["llama"]) == ({"torch", "elman", "llama"}, 0.0)
    files = {"float32", "int8", "llama float32", "llama q8_0"}
    assert {*row["token"]["seconds"]} == files | {"torch", "elman"}
    assert {*row["token"]["errors"]} == files
    assert {*row["before"]} == {"gguf", "load"}


def test_configurations_as_published():
    """Words of files that transformers writes otherwise."""
    layers = ["linear_attention", "full_attention"]
    config = {"model_type": "granitemoehybrid", "layer_types": layers, "num_local_experts": 0}
    got = as_published(config | {"shared_intermediate_size": 3})
    assert (got["layer_types"], got["num_experts_per_tok"]) == (["mamba", "attention"], 0)
    assert got["intermediate_size"] == 3
    config = {"model_type": "falcon_h1", "hidden_size": 128, "num_attention_heads": 2}
    assert as_published(config)["head_dim"] == 64


@pytest.mark.parametrize("module", [script, transformers_uses])
def test_without_the_package(module, monkeypatch, capsys):
    """What to install is said."""

    def absent(name):
        raise module.metadata.PackageNotFoundError

    monkeypatch.setattr(module.metadata, "version", absent)
    module.main([])
    assert "pip install transformers" in capsys.readouterr().out
