"""Models of transformers by llama.cpp: its file of one, and its logits of tokens.

The package is llama-cpp-python; the converter is that of llama.cpp's sources, which no package has.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from numpy.ctypeslib import as_array
from torch import Tensor

TYPES = {"float32": "ALL_F32", "q8_0": "MOSTLY_Q8_0"}  # of weights: the converter's names
ERROR = 4  # level of what is printed


def as_published(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration in the words of published files, which transformers no longer writes."""
    kind, more = config["model_type"], dict[str, Any]()
    if kind == "granitemoehybrid":
        layers = ["mamba" if "linear" in name else "attention" for name in config["layer_types"]]
        more["layer_types"] = layers
        if not config["num_local_experts"]:
            more["num_experts_per_tok"] = 0
            more["intermediate_size"] = config["shared_intermediate_size"]
    if kind == "falcon_h1":
        more = {"head_dim": config["hidden_size"] // config["num_attention_heads"]}
    return config | more


def write(model: Any, weights: str, sources: Path, folder: Path) -> Path:
    """The file of a model, without a vocabulary."""
    if str(sources) not in sys.path:
        sys.path.append(str(sources))
    converters: Any = import_module("conversion")
    types = import_module("gguf").LlamaFileType
    file = folder / f"{weights}.gguf"
    with redirect_stderr(io.StringIO()), torch.inference_mode():
        model.save_pretrained(folder)
        config = as_published(converters.ModelBase.load_hparams(folder, False))
        kind = converters.get_model_architecture(config, converters.ModelType.TEXT)
        converter = converters.get_model_class(kind)

        def set_vocab(self: Any) -> None:
            self.gguf_writer.add_tokenizer_model("none")
            self.gguf_writer.add_vocab_size(config["vocab_size"])

        more = {"model_arch": converter.model_arch, "set_vocab": set_vocab, "no_mtp": True}
        wordless = type(converter.__name__, (converter,), more)
        wordless(folder, types[TYPES[weights]], file, hparams=config).write()
    return file


class Llama:
    """A model that llama.cpp has loaded, with the cache of one sequence in float32."""

    def __init__(self, file: Path, tokens: int, threads: int) -> None:
        self.library = library = import_module("llama_cpp")
        self.show = library.llama_log_callback(
            lambda level, text, _: print(text.decode(), end="") if level == ERROR else None
        )
        library.llama_log_set(self.show, None)
        options = library.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = tokens
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = library.GGML_TYPE_F32
        given = library.llama_model_default_params()
        self.batch = library.llama_batch_init(tokens, 0, 1)
        self.model = library.llama_model_load_from_file(str(file).encode(), given)
        self.context = self.model and library.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp does not load {file}")
        self.units = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))

    def run(self, tokens: Sequence[int], begin: int = 0) -> Tensor:
        """Logits of tokens from a position on [1, T, vocabulary]; from 0 on, a new sequence."""
        batch, count = self.batch, len(tokens)
        if not begin:
            self.library.llama_memory_clear(self.library.llama_get_memory(self.context), False)
        batch.n_tokens = count
        for n, token in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.logits[n] = token, begin + n, 1
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, 0
        if status := self.library.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode: {status}")
        logits = self.library.llama_get_logits(self.context)
        return torch.from_numpy(as_array(logits, (1, count, self.units)).copy())

    def decode(self, tokens: Sequence[int], count: int) -> float:
        """Seconds of a token behind a prompt of 32."""
        self.run(tokens[:32])
        start = 0.0
        for n in range(count + 1):
            self.run(tokens[n : n + 1], 32 + n)
            start = start or time.perf_counter()
        return (time.perf_counter() - start) / count

    def __del__(self) -> None:
        self.library.llama_batch_free(self.batch)
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)
