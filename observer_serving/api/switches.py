"""`/v1/model` and `/v1/policy`: what decides, read and switched while the service runs."""

import asyncio
import hashlib
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel

from observer_core.errors import InputError
from observer_core.validation import validated
from observer_serving.api.parts import Parts
from observer_serving.api.schemas import ModelBody, ModelSwitch, PolicyBody
from observer_serving.config import SERVICE
from observer_serving.score import ModelChoice

_SWITCH_BODIES = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": ModelSwitch.model_json_schema()},
            "application/x-tar": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


Project = Annotated[str, Query(description="A project with settings of its own; absent: the service")]


class Reason(BaseModel):
    """Why, for the log of switches."""

    reason: str | None = None


def router(parts: Parts) -> APIRouter:
    routes = APIRouter(tags=["model and policy"])
    board = parts.switchboard

    def model_body(project: str) -> ModelBody:
        active, loaded = board.active(project), parts.scoring.route(project).model
        return ModelBody(
            model=loaded.model,
            model_version=loaded.model_version,
            kind=loaded.choice.kind,
            run=loaded.choice.run,
            since=board.since[project],
            previous=active.previous.to_json() if active.previous else None,
        )

    @routes.get("/v1/model")
    def get_model(project: Project = SERVICE) -> ModelBody:
        """The model that serves."""
        return model_body(project)

    @routes.post("/v1/model", openapi_extra=_SWITCH_BODIES)
    async def switch_model(
        request: Request,
        sha256: Annotated[str | None, Query(description="Of the tar upload, 64 hex digits")] = None,
        version: Annotated[str | None, Query(description="Registry version, for a tar upload")] = None,
        reason: Annotated[str | None, Query(description="For the log of switches, for a tar upload")] = None,
        project: Project = SERVICE,
    ) -> ModelBody:
        """Serve another model: a run directory by path (JSON), or uploaded as a tar (with its `sha256`).

        File hashes and golden traces are checked first; on any difference the old model stays and this answers 400.
        """
        if request.headers.get("content-type", "").split(";")[0].strip().lower() == "application/json":
            asked = validated(ModelSwitch, await _json(request))
            if (asked.kind == "local") != (asked.run is not None):
                raise InputError("run: name a run directory, or set kind to builtin without a run")
            run = str(Path(asked.run).expanduser().resolve()) if asked.run else None
            choice, why = ModelChoice(asked.kind, run, asked.version), asked.reason
        else:
            if sha256 is None:
                raise InputError("sha256: give the upload's sha256 as a query parameter")
            choice, why = ModelChoice("local", str(await upload(request, sha256)), version), reason
        await asyncio.to_thread(board.switch, choice, reason=why, scope=project)
        return model_body(project)

    async def upload(request: Request, sha256: str) -> Path:
        archive = board.uploads.new_file()
        digest = hashlib.sha256()
        try:
            with archive.open("wb") as stream:
                async for chunk in request.stream():
                    digest.update(chunk)
                    await asyncio.to_thread(stream.write, chunk)
            if digest.hexdigest() != sha256.lower():
                raise InputError(f"the upload's sha256 is {digest.hexdigest()}, not {sha256}; send it again")
            return await asyncio.to_thread(board.uploads.unpack, archive, digest.hexdigest())
        finally:
            archive.unlink(missing_ok=True)

    @routes.post("/v1/model:rollback")
    def rollback_model(body: Annotated[Reason | None, Body()] = None, project: Project = SERVICE) -> ModelBody:
        """Serve the model before the present one again."""
        board.rollback(reason=body.reason if body else None, scope=project)
        return model_body(project)

    def policy_body(project: str) -> PolicyBody:
        policy = parts.decider.policy(project)
        return PolicyBody(
            policy_version=policy.version, threshold=parts.decider.threshold(project), policy=policy.to_json()
        )

    @routes.get("/v1/policy")
    def get_policy(project: Project = SERVICE) -> PolicyBody:
        """The policy in force."""
        return policy_body(project)

    @routes.put("/v1/policy")
    def put_policy(
        body: Annotated[dict[str, Any], Body(description="As under `policy:` in observer.yaml")],
        project: Project = SERVICE,
    ) -> PolicyBody:
        """Decide by another policy from the next trace on; the whole policy, absent keys take their defaults."""
        board.set_policy(body, scope=project)
        return policy_body(project)

    return routes


async def _json(request: Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}; send {{'run': path}}") from None
