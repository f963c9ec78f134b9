"""Where a server listens, and by TLS."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from oaken_app.process import Process
from oaken_jobs.config import ServerSettings, load
from oaken_jobs.errors import ConfigError
from oaken_swarm.exposure import exposure, tls
from oaken_swarm.server import MAX_HEAD_BYTES

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate by openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem` and `key.pem` for localhost, `both.pem`, and `locked.pem`, a key with a password."""
    folder = tmp_path_factory.mktemp("certificate")
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    more = "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(f"{new} {more}".split(), cwd=folder, check=True, capture_output=True)
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    lock = "openssl ec -in key.pem -aes128 -passout pass:x -out locked.pem"
    subprocess.run(lock.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1"])
def test_loopback_needs_nothing_and_means_nothing(host: str) -> None:
    assert exposure(ServerSettings(host=host)) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "oaken.lan", "localhost.evil.example"])
def test_any_other_host_needs_tls_or_a_proxy_and_the_refusal_names_both(host: str) -> None:
    with pytest.raises(ConfigError, match="in the clear") as refused:
        exposure(ServerSettings(host=host))
    assert "tls_cert" in refused.value.message
    assert "behind_proxy = true" in refused.value.message
    for way in ({"behind_proxy": True}, {"tls_cert": "c.pem"}):
        assert f"listening on {host}" in str(exposure(ServerSettings(host=host, **way)))


def process_for(folder: Path, **server: Any) -> Process:
    return Process(load(folder, environ={}, server={"port": 0, **server}), runner=False)


def test_a_process_that_would_listen_everywhere_in_the_clear_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        process_for(tmp_path, host="0.0.0.0")


async def test_listening_everywhere_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = process_for(tmp_path, host="0.0.0.0", behind_proxy=True)
    await process.start()
    await process.stop()
    assert [r.levelno for r in caplog.records if "every address of this machine" in r.getMessage()] == [logging.WARNING]


@needs_openssl
@pytest.mark.parametrize("files", [{"tls_cert": "cert.pem", "tls_key": "key.pem"}, {"tls_cert": "both.pem"}])
async def test_a_server_with_a_certificate_speaks_tls_alone(
    tmp_path: Path, certificate: Path, files: dict[str, str]
) -> None:
    named = {key: str(certificate / name) for key, name in files.items()}
    process = process_for(tmp_path, host="localhost", **named)
    await process.start()
    assert process.address is not None
    assert process.address.startswith("https://localhost:")
    context = ssl.create_default_context(cafile=certificate / "cert.pem")
    async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
        answer = await http.get(f"{process.address}/readyz", headers={"Origin": process.address})
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        with pytest.raises(httpx2.TransportError):
            await http.get(process.address.replace("https", "http") + "/readyz")
    await process.stop()


@needs_openssl
async def test_a_head_that_is_too_large_is_refused_by_tls_too(tmp_path: Path, certificate: Path) -> None:
    process = process_for(tmp_path, host="localhost", tls_cert=str(certificate / "both.pem"))
    await process.start()
    context = ssl.create_default_context(cafile=certificate / "cert.pem")
    port = int(str(process.address).rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (2 * MAX_HEAD_BYTES))
    assert b"head_too_large" in await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await process.stop()


@needs_openssl
@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"tls_cert": "no.pem"}, "No such file"),
        ({"tls_cert": "cert.pem"}, "cannot be used"),
        ({"tls_cert": "cert.pem", "tls_key": "locked.pem"}, "without a password"),
        ({"tls_cert": "key.pem", "tls_key": "cert.pem"}, "cannot be used"),
        ({"tls_key": "key.pem"}, "Name the certificate, too"),
    ],
)
def test_files_that_cannot_be_used_are_named_before_anything_starts(
    certificate: Path, files: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        tls(ServerSettings(**files), certificate)
    assert "PRIVATE" not in refused.value.message
