"""Calls about pipelines: their graphs, with the numbers of items on each edge."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Response

from mongoq.web.models import PipelineDocument, PipelineList
from mongoq.web.pipelines import read_drawing
from mongoq.web.services import Services
from mongoq.web.values import respond


def make_router(services: Services) -> APIRouter:
    """Return the calls about pipelines."""
    router = APIRouter(prefix="/api", tags=["pipelines"])

    @router.get("/pipelines", response_model=PipelineList)
    async def list_pipelines() -> Response:
        """Return the names of the pipelines that the app was made with."""
        return respond({"pipelines": list(services.pipelines)})

    @router.get("/pipeline", response_model=PipelineDocument)
    async def show_pipeline(name: str) -> Response:
        """Return sources, queues and stages of a pipeline, and the numbers of items on each edge."""
        if name not in services.pipelines:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no pipeline {name!r:.120}")
        return respond((await read_drawing(services.client, services.pipelines[name])).to_document())

    return router
