"""Opens an exported graph with ONNX Runtime; imports nothing of torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from observer_core.errors import InputError, one_line

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def open_session(file: Path, *, without: Sequence[str] = ()) -> "InferenceSession":
    """A session on the CPU. `without` are names of ONNX Runtime's graph optimisations to leave out.

    Raises:
        InputError: the file is missing or is no usable graph.
    """
    import onnxruntime as ort

    if not file.is_file():
        raise InputError(f"{file} is missing; copy the run again or train anew")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # Spinning threads would take the cores from the rest of the service between two rows.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without)
        )
    except Exception as error:  # the library's exceptions share no base class but Exception
        raise InputError(f"{file} is not a usable ONNX graph ({one_line(error)}); copy the run again") from error
