"""Queries that every page takes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from oaken_jobs.requests import Request


class Said(Request):
    """What was done before this page came: the name of a notice."""

    said: Annotated[str, Field(max_length=20)] | None = None
