"""What can be wrong with a model's server."""

from observer_core.errors import ObserverError


class ModelError(ObserverError):
    """The model's server cannot be used; says why and the mend."""
