"""App: takes orders by HTTP. ``python -m examples.shop`` runs it."""

from __future__ import annotations

import logging
from typing import Any

from bson import ObjectId
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pymongo.errors import PyMongoError

import mongoq
from examples.shop.service import Service
from examples.shop.settings import Settings

__all__ = ["create_app"]

logger = logging.getLogger("shop")


class NewOrder(BaseModel):
    """Body of ``POST /orders``."""

    customer: str = Field(min_length=1, max_length=200)
    quantity: int = Field(ge=1, le=1000)
    id: str | None = Field(default=None, pattern="^[0-9a-f]{24}$", description="To send the same order again.")


class Order(BaseModel):
    """Order as the app shows it."""

    id: str
    state: str


def create_app(settings: Settings | None = None) -> FastAPI:
    """Return the app; its settings come from the environment by default."""
    service = Service(settings or Settings.from_environment())
    app = FastAPI(title="shop", lifespan=service.lifespan)
    app.state.service = service

    @app.post("/orders", status_code=201)
    async def place(order: NewOrder) -> Order:
        own = None if order.id is None else ObjectId(order.id)
        id = await service.shop.orders.place(order.customer, order.quantity, id=own)
        return Order(id=str(id), state="ordered")

    @app.get("/orders/{id}")
    async def find(id: str) -> Order:
        order = await service.shop.orders.find(ObjectId(id)) if ObjectId.is_valid(id) else None
        if order is None:
            raise HTTPException(404, "no such order")
        return Order(id=id, state=order["state"])

    @app.exception_handler(PyMongoError)
    @app.exception_handler(mongoq.MongoqError)
    async def refuse(request: Request, error: Exception) -> JSONResponse:
        # Its text is for the log of the driver: it may quote documents of customers.
        logger.error("%s %s failed: %s", request.method, request.url.path, type(error).__name__)
        return JSONResponse({"detail": "the database cannot be used just now"}, 503)

    _add_probes(app, service)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    """Add ``/healthz``, ``/readyz`` and ``/metrics``."""

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        return _to_response(service.check_life())

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        return _to_response(await service.check_readiness())

    app.mount("/metrics", service.serve_metrics)


def _to_response(health: mongoq.Health) -> JSONResponse:
    document: dict[str, Any] = health.to_document()
    return JSONResponse(document, 200 if health.healthy else 503)
