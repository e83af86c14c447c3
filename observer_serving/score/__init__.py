"""From a complete trace to its score: which model, in batches, within a deadline."""

from observer_serving.score.lane import Scored, Stage
from observer_serving.score.models import LoadedModel, ModelChoice, load_model, patience
from observer_serving.score.scoring import Route, Scoring
from observer_serving.score.shadow import ShadowScore

__all__ = [
    "LoadedModel",
    "ModelChoice",
    "Route",
    "Scored",
    "Scoring",
    "ShadowScore",
    "Stage",
    "load_model",
    "patience",
]
