"""What the served model is called."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from observer_core.rundir import MANIFEST, RunDirectory

DEFAULT_ALIAS = "jev-latest"
"""What clients ask for when nobody told them a name."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The names of one model. `concrete` is in every response; `names`, which it is among, are what may be asked for.

    `release_date` is `YYYY-MM-DD`.
    """

    concrete: str
    names: tuple[str, ...]
    description: str
    release_date: str

    @classmethod
    def of(cls, run: RunDirectory) -> "ModelCard":
        """`<model>@<version of the run>`; also `<model>`, `<family>-latest` and `jev-latest` ask for it."""
        manifest = run.manifest
        made = datetime.fromtimestamp((run.path / MANIFEST).stat().st_mtime, UTC).isoformat()
        concrete = f"{manifest.model}@{run.version}"
        base = f" on {manifest.base}" if manifest.base else ""
        return cls(
            concrete=concrete,
            names=tuple(dict.fromkeys((concrete, manifest.model, f"{manifest.family}-latest", DEFAULT_ALIAS))),
            description=f"{manifest.family} decision model{base}, served by Observer as {concrete}",
            release_date=(manifest.created_at or made)[:10],
        )

    def to_json(self) -> dict[str, Any]:
        """The body of `GET /v1/models`."""
        return {
            "models": [
                {"name": name, "description": self.description, "release_date": self.release_date}
                for name in self.names
            ]
        }
