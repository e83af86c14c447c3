"""Bringing a promotion onto a service, once."""

from dataclasses import replace

from observer_core.errors import InputError, ObserverError
from observer_core.home import Home
from observer_pipeline.registry import Promotion, Registry, Rollout, now
from observer_pipeline.resources.services import ServiceRefused, ServiceResource


def find_promotion(registry: Registry, promotion_id: str) -> Promotion:
    """The record of a promotion.

    Raises:
        InputError: the log has no such promotion.
    """
    found = [p for p in registry.promotions() if p.promotion_id == promotion_id]
    if not found:
        raise InputError(
            f"the promotion log has no promotion '{promotion_id}'; the sensor rollout_champion takes it from there"
        )
    return found[0]


def roll_out(registry: Registry, services: ServiceResource, url: str, promotion: Promotion, home: Home) -> Rollout:
    """Push the promoted run onto a service, see that it serves it, and enter the outcome into the log.

    When the service refuses the run (its golden traces score differently there, say), it has kept its old model; the
    alias then returns to the version before, unless a newer promotion moved it already. A service that does not answer
    proves nothing against the model, so the alias stays. Nothing is tried a second time by itself.

    Returns:
        The outcome, `accepted` or `failed`, with what the service said.
    """

    def record(outcome: str, message: str) -> Rollout:
        rollout = Rollout(url, promotion.promotion_id, promotion.version, outcome, message, now())  # pyright: ignore[reportArgumentType]
        registry.record_rollout(rollout)
        return rollout

    try:
        run = registry.fetch(promotion.version, home)
        services.push(url, run, version=promotion.version, reason=promotion.reason)
        serving = services.version(url)
        if serving != promotion.version:
            raise ServiceRefused(
                f"the service at {url} serves version {serving} after the switch to {promotion.version}"
            )
    except ServiceRefused as error:
        return_alias(registry, promotion, f"the service at {url} refused version {promotion.version}")
        return record("failed", str(error))
    except ObserverError as error:
        return record("failed", str(error))
    return record("accepted", f"serves version {promotion.version}")


def return_alias(registry: Registry, promotion: Promotion, why: str) -> None:
    """Make the version before `promotion` champion again, if `promotion` is still in force and was itself no return."""
    current = registry.current()
    if (
        current is not None
        and current.promotion_id == promotion.promotion_id
        and promotion.previous_version is not None
        and promotion.by != "failed_rollout"
    ):
        registry.promote(promotion.previous_version, reason=why, by="failed_rollout")


def noticed_rollbacks(registry: Registry, services: ServiceResource) -> list[Rollout]:
    """Find services that left the promotion in force after taking it, mark them, and return the alias.

    Returns:
        The rollouts that were marked `rolled_back`.
    """
    promotion = registry.current()
    if promotion is None:
        return []
    marked = []
    for rollout in registry.rollouts():
        if rollout.promotion_id != promotion.promotion_id or rollout.outcome != "accepted":
            continue
        try:
            said = services.model(rollout.service)
        except ObserverError:
            continue  # a service that does not answer says nothing about the model
        previous = said["previous"] or {}
        if said["model_version"] != promotion.version and previous.get("version") == promotion.version:
            serving = said["model_version"]
            why = f"the service at {rollout.service} went back from version {promotion.version} to {serving}"
            back = replace(rollout, outcome="rolled_back", message=why, at=now())
            registry.record_rollout(back)
            return_alias(registry, promotion, why)
            marked.append(back)
    return marked
