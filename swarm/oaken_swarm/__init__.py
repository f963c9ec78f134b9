"""Oaken over HTTP: the service, and what talks to it. `Client` and `SyncClient` make calls, `Worker` does jobs."""

from oaken_jobs.errors import (
    BadJson,
    ConfigError,
    Conflict,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    LeaseLost,
    MethodNotAllowed,
    Misdirected,
    NotFound,
    OakenError,
    PayloadInvalid,
    RateLimited,
    ResultInvalid,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnsupportedMediaType,
)
from oaken_jobs.handlers import AfterChildren, Ask, Deferred, JobContext, PermanentJobError
from oaken_jobs.transport import Done
from oaken_swarm.client import Client
from oaken_swarm.following import Event, Resync
from oaken_swarm.sync import SyncClient
from oaken_swarm.worker import Worker

__all__ = [
    "AfterChildren",
    "Ask",
    "BadJson",
    "Client",
    "ConfigError",
    "Conflict",
    "Deferred",
    "Done",
    "Event",
    "Forbidden",
    "IdempotencyConflict",
    "InvalidRequest",
    "JobContext",
    "LeaseLost",
    "MethodNotAllowed",
    "Misdirected",
    "NotFound",
    "OakenError",
    "PayloadInvalid",
    "PermanentJobError",
    "RateLimited",
    "ResultInvalid",
    "Resync",
    "SyncClient",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedMediaType",
    "Worker",
]
