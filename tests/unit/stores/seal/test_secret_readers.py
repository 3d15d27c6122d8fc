"""Environment, files and Vault as places of secrets: what is there, what is not, and what cannot be told."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from skillyard.config.secrets import SecretSettings, VaultReaderSettings
from skillyard.domain.errors import InvalidInput, StoreFault
from skillyard.domain.secret import Delivery
from skillyard.ports.secrets import SecretReader
from skillyard.stores.seal.readers import EnvironmentSecrets, FileSecrets, Narrowed
from skillyard.stores.seal.vault import VaultSecrets
from skillyard.wiring import make_secret_readers
from tests.unit.stores.seal.vault_server import FakeVault, Version, of, reply, speaking

pytestmark = pytest.mark.anyio

TOKEN = "hvs.CAESIJ-a-token-that-must-not-be-told"


async def value(reader: SecretReader, name: str = "A", project: str = "crm", skill: str = "sales.leads") -> str | None:
    found = await reader.find(name, project, skill)
    return None if found is None else found.value


async def fault(asked: Awaitable[Any], said: str) -> str:
    with pytest.raises(StoreFault) as caught:
        await asked
    message = f"{caught.value!r} {caught.value.data}"
    assert said in message
    assert TOKEN not in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "no traceback leads to what was said"
    return message


async def test_variables_of_the_server() -> None:
    reader = EnvironmentSecrets("SKILLYARD_SECRET_", {"SKILLYARD_SECRET_A": "one", "SKILLYARD_SECRET_B": "", "A": "no"})
    assert [await value(reader, name) for name in "ABC"] == ["one", None, None]
    found = await reader.find("A", "p", "s")
    assert found is not None
    assert (found.version, found.delivery) == ("environment", Delivery.ENV)
    assert "one" not in repr(found)


async def test_files_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "A").write_text("one\n")
    (tmp_path / "B").write_text("two\nlines\r\n")
    (tmp_path / "BIG").write_text("x" * 65_536 + "\n")
    reader = FileSecrets(tmp_path)
    assert [await value(reader, name) for name in ("A", "B", "C")] == ["one", "two\nlines", None]
    assert await value(reader, "BIG") == "x" * 65_536
    (tmp_path / "A").write_text("later")
    assert await value(reader) == "later"


async def test_files_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    (tmp_path / "..2026_03_22").mkdir()
    (tmp_path / "..2026_03_22" / "A").write_text("one")
    (tmp_path / "..data").symlink_to("..2026_03_22")
    (tmp_path / "A").symlink_to("..data/A")
    mount = tmp_path / "mount"
    mount.symlink_to(".")
    assert await value(FileSecrets(tmp_path)) == "one"
    assert await value(FileSecrets(mount)) == "one"


async def test_files_that_lead_astray(tmp_path: Path) -> None:
    place = tmp_path / "secrets"
    place.mkdir()
    (tmp_path / "outside").write_text("outside")
    (tmp_path / "secrets-beside").mkdir()
    (tmp_path / "secrets-beside" / "A").write_text("outside")
    (place / "OUT").symlink_to("../outside")
    (place / "BESIDE").symlink_to("../secrets-beside/A")
    (place / "ROOT").symlink_to("/etc/passwd")
    (place / "NULL").symlink_to("/dev/zero")
    (place / "LOOP").symlink_to("LOOP")
    (place / "DIRECTORY").mkdir()
    os.mkfifo(place / "PIPE")
    (place / "BIG").write_text("x" * 65_539)
    (place / "BYTES").write_bytes(b"\xff\xfe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "SOCKET"))
    reader = FileSecrets(place)
    whys = {"OUT": "leads out", "BESIDE": "leads out", "ROOT": "leads out", "BIG": "larger", "BYTES": "UTF-8"}
    whys |= dict.fromkeys(("NULL", "DIRECTORY", "PIPE", "SOCKET"), "not a regular file") | {"LOOP": "cannot be read"}
    for name, why in whys.items():
        await fault(asyncio.wait_for(reader.find(name, "p", "s"), 10), why)
    listener.close()


async def test_a_directory_that_is_not_mounted_is_a_fault(tmp_path: Path) -> None:
    await fault(FileSecrets(tmp_path / "none").find("A", "p", "s"), "there is no directory")


async def test_a_reader_is_kept_to_projects_and_skills() -> None:
    reader = EnvironmentSecrets("", {"A": "one"})
    narrow = Narrowed(reader, ("crm", "hr"), ("sales.*", "tools"))
    assert await value(narrow, "A", "crm", "sales.leads") == await value(narrow, "A", "hr", "tools") == "one"
    for project, skill in (("other", "sales.leads"), ("crm", "sales"), ("crm", "tools.x")):
        assert await value(narrow, "A", project, skill) is None


async def test_what_cannot_be_a_variable_is_a_fault() -> None:
    reader = Narrowed(EnvironmentSecrets("X_", {"X_A": "a\0b", "X_B": "x" * 65_537, "X_PATH": "/"}))
    for name in "AB":
        message = await fault(reader.find(name, "p", "s"), "cannot be a secret")
        assert "a\0b" not in message
    with pytest.raises(InvalidInput):
        await reader.find("../A", "p", "s")


async def test_the_operator_says_how_what_readers_have_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLYARD_SECRET_A", "one")
    monkeypatch.setenv("SKILLYARD_SECRET_B", "two")
    delivery = {"A": {"delivery": "gate", "hosts": ["api.x.com"]}}
    settings = SecretSettings.model_validate({"readers": ["environment"], "deliveries": delivery})
    [reader] = make_secret_readers(settings)
    found = [await reader.find(name, "p", "s") for name in "AB"]
    seen = [(secret.value, secret.delivery, secret.hosts) for secret in found if secret]
    assert seen == [("one", Delivery.GATE, ("api.x.com",)), ("two", Delivery.ENV, ())]


@asynccontextmanager
async def reading(address: str, monotonic: Callable[[], float] = time.monotonic, **place: Any) -> AsyncIterator[Any]:
    environ = {"VAULT_TOKEN": TOKEN, "OTHER": TOKEN + "2"}
    reader = VaultSecrets(VaultReaderSettings(address=address, **place), environ=environ, monotonic=monotonic)
    try:
        yield reader
    finally:
        await reader.close()


def filled() -> FakeVault:
    vault = FakeVault(tokens={TOKEN: ["*"]})
    vault.put("secret/skillyard/crm/A", value="one")
    vault.put("secret/skillyard/crm/A", value="two", other="x")
    vault.put("old/skillyard/crm/A", value="first")
    return vault


async def test_both_versions_of_the_engine() -> None:
    with speaking(of(vault := filled())) as address:
        async with reading(address) as reader:
            found = await reader.find("A", "crm", "sales.leads")
            assert (found.value, found.version) == ("two", "vault:2")
            assert await value(reader, "B") is None
            assert await value(reader, "A", "default") is None
        async with reading(address + "/", mount="old", kv=1) as reader:
            found = await reader.find("A", "crm", "sales.leads")
            assert (found.value, found.version) == ("first", "vault")
            assert await value(reader, "B") is None
    assert vault.asked[0] == "secret/data/skillyard/crm/A"
    assert vault.asked[-2] == "old/skillyard/crm/A"


async def test_deleted_and_destroyed_versions_are_not_there() -> None:
    vault = filled()
    vault.secrets["secret/skillyard/crm/A"].append(Version({"value": "x"}, deletion_time="2026-03-22T02:36:43Z"))
    with speaking(of(vault)) as address:
        async with reading(address) as reader:
            assert await value(reader) is None
            vault.secrets["secret/skillyard/crm/A"][-1] = Version(None, destroyed=True)
            assert await value(reader) is None


async def test_paths_and_fields_are_templates() -> None:
    vault = FakeVault(tokens={TOKEN: ["*"]}, mounts={"team": 2})
    vault.put("team/crm/sales.leads", A="one", B="two")
    with speaking(of(vault)) as address:
        async with reading(address, mount="team", path="{project}/{skill}", field="{name}") as reader:
            assert [await value(reader, name) for name in "ABC"] == ["one", "two", None]
            assert vault.asked == ["team/data/crm/sales.leads"], "one answer for all of its fields"
            await fault(reader.find("A", "crm", ".."), "gives no path")


@pytest.mark.parametrize(
    "place",
    [
        *({"path": text} for text in ("", "/a", "a/", "{other}", "{name!r}", "{name:>9}", "{", "a\nb", "{name.x}")),
        *({"mount": text} for text in ("", "..", "a/../b")),
        {"field": "{"},
        *({"address": text} for text in ("", "vault:8200", "http://vault:8200", "ftp://127.0.0.1", "https://u:p@x")),
        *({"address": text} for text in ("https://x/path", "https://x?a=b", "http://127.0.0.1.example.org")),
    ],
)
def test_settings_that_cannot_be(place: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"secrets\.vault\."):
        VaultSecrets(VaultReaderSettings(**{"address": "https://127.0.0.1:8200", **place}))  # type: ignore[arg-type]


async def test_an_answer_is_good_for_a_while() -> None:
    now = [100.0]
    with speaking(of(vault := filled())) as address:
        async with reading(address, lambda: now[0], cache_s=30) as reader:
            assert await value(reader) == "two"
            vault.put("secret/skillyard/crm/A", value="three")
            vault.sealed = True
            now[0] += 29
            assert await value(reader) == "two"
            now[0] += 2
            await fault(reader.find("A", "crm", "s"), "is sealed")
            vault.sealed = False
            assert await value(reader) == "three"
            assert await value(reader, "B") is None
            vault.put("secret/skillyard/crm/B", value="new")
            assert await value(reader, "B") == "new", "that it is missing is not kept"
        async with reading(address, lambda: now[0], cache_s=0) as reader:
            asked = len(vault.asked)
            for _ in range(3):
                await value(reader)
            assert len(vault.asked) == asked + 3


async def test_who_asks_at_once_is_answered_once() -> None:
    vault = filled()
    vault.delay_s = 0.3
    with speaking(of(vault)) as address:
        async with reading(address) as reader:
            tasks = [asyncio.create_task(value(reader)) for _ in range(20)]
            await asyncio.sleep(0.05)
            tasks[0].cancel()
            assert await asyncio.gather(*tasks[1:]) == ["two"] * 19
    assert len(vault.asked) == 1


async def test_tokens_come_from_a_file_or_a_variable(tmp_path: Path) -> None:
    vault = filled()
    vault.tokens = {TOKEN + "2": ["*"]}
    file = tmp_path / "token"
    with speaking(of(vault)) as address:
        async with reading(address, token_env="OTHER") as reader:
            assert await value(reader) == "two"
        async with reading(address, token_env="NONE") as reader:
            await fault(reader.find("A", "crm", "s"), "variable NONE holds no token")
        async with reading(address, token_file=file, cache_s=0) as reader:
            await fault(reader.find("A", "crm", "s"), "holds no token")
            file.write_text(TOKEN + "\n")
            await fault(reader.find("A", "crm", "s"), "refuses the token")
            file.write_text(TOKEN + "2\n")
            assert await value(reader) == "two", "who renews it writes the file"
            for text in ("a b", "a\r\nX-Other: y", "\x7f", "x" * 9000):
                file.write_text(text)
                await fault(reader.find("A", "crm", "s"), str(file))


async def test_a_namespace() -> None:
    vault = filled()
    vault.namespace = "team/a"
    with speaking(of(vault)) as address:
        async with reading(address, namespace="team/a") as reader:
            assert await value(reader) == "two"
        async with reading(address) as reader:
            await fault(reader.find("A", "crm", "s"), "refuses the token")


async def test_what_is_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = filled()
    with speaking(of(vault)) as address:
        vault.tokens = {TOKEN: ["secret/data/skillyard/hr/*"]}
        async with reading(address) as reader:
            message = await fault(reader.find("A", "crm", "s"), "its policy lacks 'read'")
            assert f"{address} (secret/skillyard/crm/A)" in message
        vault.tokens = {TOKEN: ["*"]}
        async with reading(address, mount="none") as reader:
            await fault(reader.find("A", "crm", "s"), "knows no such mount")
        async with reading(address, kv=1) as reader:
            await fault(reader.find("A", "crm", "s"), "of the other KV version")
        vault.put("secret/skillyard/crm/N", value=5)
        vault.put("secret/skillyard/crm/M", value=["x"])
        async with reading(address) as reader:
            for name in "NM":
                await fault(reader.find(name, "crm", "s"), "is not text")
        vault.sealed = True
        async with reading(address) as reader:
            await fault(reader.find("A", "crm", "s"), "is sealed or in maintenance")
    async with reading(address) as reader:
        await fault(reader.find("A", "crm", "s"), "cannot be reached: Connection refused")


SECRETS = b'{"data": {"data": {"value": "v"}, "metadata": {"version": 1}}}'
ODD_BODIES = (
    *(b"", b"null", b"[]", b"{}", b'"x"', b"{", b"\xff", b"<html>", b"[" * 100_000, b'{"data": 1}', b'{"data": {}}'),
    *(b'{"data": {"data": 5, "metadata": {"version": 1}}}', b'{"data": {"data": {}, "metadata": 5}}'),
    *(
        b'{"data": {"data": {}, "metadata": {"version": "1"}}}',
        b'{"data": {"data": {}, "metadata": {"version": true}}}',
    ),
    SECRETS + b" " * (3 << 20),
)


async def test_a_hostile_server_gets_nothing_but_refusals() -> None:
    told = "told-by-the-server"
    answers: list[Callable[[BaseHTTPRequestHandler], object]] = [
        *(lambda r, body=body: reply(r, 200, body) for body in ODD_BODIES),
        lambda r: reply(r, 404, b"not json"),
        *(
            lambda r, s=s: reply(r, s, b'{"errors": ["' + told.encode() + b'"]}')
            for s in (400, 401, 404, 412, 418, 429, 472, 473, 500, 502, 503)
        ),
        *(lambda r, s=s: reply(r, s, SECRETS, Location="http://127.0.0.1:1/") for s in (301, 302, 307, 308)),
        lambda r: reply(r, 204, b""),
        lambda r: r.wfile.write(b"HTTP/1.1 200 " + told.encode() * 10_000 + b"\r\n\r\n"),
        lambda r: r.wfile.write(told.encode()),
        lambda r: r.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + SECRETS),
        lambda r: r.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"),
        lambda r: reply(r, 200, SECRETS, Content_Encoding="gzip"),
    ]
    for number, answer in enumerate(answers):

        def handle(request: BaseHTTPRequestHandler, answer: Any = answer) -> None:
            request.close_connection = True
            answer(request)

        with speaking(handle) as address:
            async with reading(address) as reader:
                if number == len(answers) - 1:  # the encoding was not asked for: the bytes are what they are
                    assert await value(reader) == "v"
                    continue
                message = await fault(asyncio.wait_for(reader.find("A", "crm", "s"), 10), "Vault at")
                assert told not in message


async def test_a_slow_server_is_not_waited_for() -> None:
    """It goes on until the reader has given up."""
    given_up = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(3000):
            if given_up.wait(0.02):
                break
            request.wfile.write(b" ")

    def silent(_: BaseHTTPRequestHandler) -> None:
        given_up.wait(60)

    for handle in (drip, silent):
        given_up.clear()
        with speaking(handle) as address:
            async with reading(address, timeout_s=0.3) as reader:
                async with asyncio.timeout(30):
                    await fault(reader.find("A", "crm", "s"), "gave no answer within 0.3 s")
                given_up.set()


async def test_certificates_are_checked(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with speaking(of(filled()), tls) as address:
        async with reading(address) as reader:
            await fault(reader.find("A", "crm", "s"), "its certificate is not trusted")
        async with reading(address, ca_file=certificate) as reader:
            assert await value(reader) == "two"
        async with reading(address.replace("127.0.0.1", "localhost"), ca_file=certificate) as reader:
            await fault(reader.find("A", "crm", "s"), "its certificate is not trusted")
        async with reading(address, ca_file=tmp_path / "none") as reader:
            await fault(reader.find("A", "crm", "s"), "ca_file")


def _certificate(directory: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself."""
    import datetime
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "vault")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    places = directory / "certificate.pem", directory / "key.pem"
    places[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    places[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return places
