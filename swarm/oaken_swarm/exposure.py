"""Who can reach a server, and whether what they say travels in the clear."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from oaken_jobs.config import ServerSettings
from oaken_jobs.errors import ConfigError


class Tls(NamedTuple):
    """The files of a certificate; the key may be in the same one."""

    cert: Path
    key: Path | None


def exposure(server: ServerSettings) -> str | None:
    """What it means to listen on the host of these settings, for people; None for loopback. Raises `ConfigError` for another host where
    tokens would travel in the clear."""
    host = server.host
    if _loopback(host):
        return None
    where = f"{host}, which is every address of this machine" if host in ("0.0.0.0", "::") else host
    if server.tls_cert is None and not server.behind_proxy:
        raise ConfigError(
            f"Listening on {where}: tokens would travel in the clear. Either name a certificate ([server] tls_cert and tls_key), or put a "
            "proxy that speaks TLS before it and say so ([server] behind_proxy = true).",
            setting="[server] host",
        )
    by = (
        "by TLS" if server.tls_cert is not None else "through the proxy, or past it where nothing else keeps them away,"
    )
    return (
        f"listening on {where}: whoever can reach it {by} may try tokens; with one that is good they may do what it may"
    )


def tls(server: ServerSettings, folder: Path) -> Tls | None:
    """The certificate that these settings name, relative to `folder`. Raises `ConfigError` for files that cannot be used."""
    if server.tls_cert is None:
        if server.tls_key is not None:
            raise ConfigError(
                "[server] tls_key is set and tls_cert is not. Name the certificate, too.", setting="[server] tls_cert"
            )
        return None
    cert = folder / Path(server.tls_cert).expanduser()
    key = None if server.tls_key is None else folder / Path(server.tls_key).expanduser()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # what is wrong with the files is an OSError, too
        files = f"{cert} with the key {key}" if key is not None else str(cert)
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(
            f"[server] tls_cert, tls_key: {files} cannot be used ({why}). They must be PEM files of one certificate and its key, "
            "without a password.",
            setting="[server] tls_cert",
        ) from None
    return Tls(cert, key)


def _no_password() -> bytes:
    return b""  # without this, OpenSSL would ask for one on the terminal


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
