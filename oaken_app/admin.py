"""The first token: whoever starts a server on a new data folder is its admin."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from oaken_app import vault
from oaken_jobs.auth import Tokens
from oaken_jobs.errors import Conflict
from oaken_jobs.model import SYSTEM

log = logging.getLogger("oaken.process")

NAME = "local-admin"


async def make_admin(tokens: Tokens, folder: Path) -> None:
    """Where there is no token at all, makes one for an admin, keeps it for whoever started this, and says where it is."""
    if await tokens.list():
        return
    try:
        _, token = await tokens.create(SYSTEM, NAME, ["admin"])
    except Conflict:
        return  # another server, which started at the same moment
    try:
        kept = await asyncio.to_thread(vault.of_folder(folder).keep, token)
    except OSError as error:
        log.error(
            "the admin token %s cannot be kept (%s); `oaken token rotate %s` prints a new one",
            NAME,
            error.strerror,
            NAME,
        )
        return
    if kept.why is None:
        log.info("made the admin token %s, which is in %s", NAME, kept.place)
    else:
        log.warning("made the admin token %s, which is in %s, for you alone to read: %s", NAME, kept.place, kept.why)
