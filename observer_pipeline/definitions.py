"""Everything Dagster loads: `dagster dev` and `dagster definitions validate` find it through workspace.yaml."""

import dagster as dg

from observer_pipeline import assets, checks
from observer_pipeline.jobs import build_jobs
from observer_pipeline.resources.build import build_resources
from observer_pipeline.resources.settings import Settings
from observer_pipeline.schedules import nightly_schedule
from observer_pipeline.sensors import failure_alert, ingest_spool, new_annotations, reward_alerts, rollout_champion


def build_definitions(settings: Settings) -> dg.Definitions:
    """Assets, checks, jobs, the schedule and the sensors, with resources set up from `settings`.

    Steps run in the run's own process: as processes of their own they would cost 7 to 8 s each, and most are short.
    """
    return dg.Definitions(
        assets=dg.load_assets_from_package_module(assets),
        asset_checks=dg.load_asset_checks_from_package_module(checks),
        jobs=build_jobs(settings),
        schedules=[nightly_schedule(settings)],
        sensors=[
            new_annotations,
            ingest_spool,
            rollout_champion,
            reward_alerts(settings.alert_webhook),
            failure_alert(settings.home.root / "logs" / "alerts.jsonl", settings.alert_webhook),
        ],
        resources=build_resources(settings),
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions, set up from the environment when Dagster loads them."""
    return build_definitions(Settings.from_env())
