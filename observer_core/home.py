"""Where Observer keeps its state: one folder, `OBSERVER_HOME` (default `./.observer`)."""

import os
from dataclasses import dataclass
from pathlib import Path

from observer_core.errors import InputError


@dataclass(frozen=True, slots=True)
class Home:
    """The state folder and the rooms in it; nothing is created before it is needed."""

    root: Path

    @classmethod
    def from_env(cls) -> "Home":
        """The folder named by `OBSERVER_HOME`, else `.observer` in the working directory."""
        return cls(Path(os.environ.get("OBSERVER_HOME") or ".observer").expanduser().resolve())

    @property
    def dagster(self) -> Path:
        return self.root / "dagster"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def phoenix(self) -> Path:
        return self.root / "phoenix"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def serving(self) -> Path:
        return self.root / "serving"

    def ensure(self, folder: Path) -> Path:
        """Create `folder` and prove that it can be written.

        Raises:
            InputError: the folder cannot be created or written; names it and the mend.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot create {folder}: {error.strerror}; set OBSERVER_HOME to a folder you may write"
            ) from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"cannot write to {folder}; set OBSERVER_HOME to a folder you may write")
        return folder
