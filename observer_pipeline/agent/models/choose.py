"""Which model runs the agent, by name."""

import os
import re
from typing import TYPE_CHECKING

from observer_core.errors import InputError

if TYPE_CHECKING:
    from google.adk.models import BaseLlm

MODELS = "offline, offline-weak, ollama:MODEL or openai:MODEL@URL"
API_KEY_VARIABLE = "OBSERVER_AGENT_API_KEY"


_SPEC = re.compile(r"offline|offline-weak|ollama:.+|openai:.+@https?://.+")


def check_model(spec: str) -> None:
    """Refuse a name that `build_model` would not know, without importing anything for it.

    Raises:
        InputError: no such model.
    """
    if not _SPEC.fullmatch(spec):
        raise InputError(f"unknown model {spec!r}; give {MODELS}")


def build_model(spec: str, *, seed: int = 0, errs: bool = True) -> "BaseLlm":
    """The model of this name.

    Args:
        spec: `offline`; `offline-weak`; `ollama:qwen2.5:7b` (the server of `OLLAMA_HOST`); or
            `openai:MODEL@http://host:port/v1`, any server that speaks OpenAI's chat completions, with the key in
            `OBSERVER_AGENT_API_KEY` if it wants one.
        seed: of the offline model's manners, and of the sampling of the others.
        errs: whether the offline model makes mistakes of its own; the others do as they do.

    Raises:
        InputError: no such model.
    """
    check_model(spec)
    family, _, name = spec.partition(":")
    if spec in ("offline", "offline-weak"):
        from observer_pipeline.agent.models.offline import OfflineLlm

        return OfflineLlm(skill="weak" if spec == "offline-weak" else "strong", seed=seed, errs=errs)
    if family == "ollama":
        from observer_pipeline.agent.models.ollama_chat import OllamaLlm

        return OllamaLlm(model=name, seed=seed)
    from observer_pipeline.agent.models.openai_chat import OpenAiChatLlm

    model, _, url = name.rpartition("@")
    return OpenAiChatLlm(model=model, base_url=url, api_key=os.environ.get(API_KEY_VARIABLE), seed=seed)
