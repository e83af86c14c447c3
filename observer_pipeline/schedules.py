"""The nightly schedule."""

import dagster as dg

from observer_pipeline.resources.settings import Settings
from observer_pipeline.resources.warehouse import Warehouse


def nightly_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """`nightly_retraining` at the hour the settings name; it skips while there is nothing to learn from."""

    @dg.schedule(
        name="nightly_retraining",
        job_name="nightly_retraining",
        cron_schedule=settings.nightly_cron,
        execution_timezone=settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def nightly(warehouse: Warehouse) -> dg.RunRequest | dg.SkipReason:
        """Retrain every night."""
        if not (warehouse.parts("gold_labels") or warehouse.parts("phoenix_annotations")):
            return dg.SkipReason("no labels yet: materialize first_model, or annotate kept traces in Phoenix")
        return dg.RunRequest()

    return nightly
