"""An Ollama server: where it is, what it has, and what its client's errors mean. Needs no ADK."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import ollama
from pydantic import ValidationError

from observer_pipeline.agent.models.errors import ModelError

DEFAULT_HOST = "http://127.0.0.1:11434"


def ollama_host() -> str:
    """The server's address: `OLLAMA_HOST`, as Ollama's own programs read it, else loopback."""
    host = os.environ.get("OLLAMA_HOST") or DEFAULT_HOST
    return host if "://" in host else f"http://{host}"


def installed_models(host: str, *, timeout_s: float = 2.0) -> list[str]:
    """Names of the models that the server has, sorted.

    Raises:
        ModelError: nobody answers, or not as Ollama does.
    """
    with explained("", host, timeout_s):
        return sorted(str(model.model) for model in ollama.Client(host=host, timeout=timeout_s).list().models)


@contextmanager
def explained(model: str, host: str, timeout_s: float) -> Iterator[None]:
    """Turn what the client raises into one line with the mend."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ModelError(
            f"{model or 'Ollama'} at {host} did not answer within {timeout_s:g} s; try a smaller model or more time"
        ) from error
    except (ConnectionError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(f"no answer from Ollama at {host}; start it ('ollama serve') or set OLLAMA_HOST") from error
    except ollama.ResponseError as error:
        said = " ".join(str(error.error).split())
        if error.status_code == 404 and "not found" in said:
            raise ModelError(f"Ollama has no model {model}; run 'ollama pull {model}'") from error
        if "does not support tools" in said:
            raise ModelError(f"{model} cannot call tools; choose a model that can, such as qwen2.5:7b") from error
        raise ModelError(f"Ollama at {host} refused the request: {said[:300]}; see its log") from error
    except (ValidationError, json.JSONDecodeError, RecursionError) as error:
        raise ModelError(f"what answers at {host} does not speak as Ollama does; mend OLLAMA_HOST") from error
