"""Secrets are in no log, no answer, no error and no command's output, whatever goes wrong with them."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme

from onyxq import Client
from onyxq.access.certificates import Certificates
from onyxq.access.grants import digest_of
from onyxq.errors import OnyxqError

TOKEN, SECRET, WRONG = "the-token-of-this-test", "the secret of these peers", "a-wrong-token-of-this-test"
AUTH = "digest:onyxq:the password of ZooKeeper"
PATIENCE_S = 60.0


@pytest.mark.long
def test_no_secret_is_told(tmp_path: Path) -> None:
    """A node that logs everything shows none, nor do its answers and the commands."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    pair = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    pair.write_to_path(str(tmp_path / "peer.pem"))
    access = tmp_path / "access.toml"
    digest = digest_of(TOKEN).hex()
    access.write_text(f'peer_secret = "{SECRET}"\n[[tokens]]\nname = "mine"\nsha256 = "{digest}"\nroles = ["admin"]\n')
    access.chmod(0o600)
    certificates = {f"ONYXQ_TLS_{name}": str(tmp_path / "peer.pem") for name in ("CERT", "KEY")}
    environment = os.environ | certificates
    environment |= {
        "ONYXQ_TLS_CA": str(tmp_path / "ca.pem"),
        "ONYXQ_ACCESS": str(access),
        "ONYXQ_ZOOKEEPER_AUTH": AUTH,
    }
    # The log lines of all modules.
    program = "import logging; logging.basicConfig(level=1); from onyxq.interfaces.cli.main import main; main()"
    command = [sys.executable, "-c", program]
    start = ["dev", "--json", "--peers", "2", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    said = tmp_path / "said"
    with open(said, "wb") as stderr:
        with subprocess.Popen([*command, *start], stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
            try:
                assert process.stdout is not None
                told = process.stdout.readline().decode()
                peer = json.loads(told)["peers"][0]
                told += asked(peer["listen"], peer["http"], tmp_path)
                more = {"ONYXQ_TOKEN": TOKEN, "ONYXQ_CONNECT": peer["listen"]}
                for words in (["config", "show", "--json"], ["cluster", "show"], ["log", "tail", "--limit", "50"]):
                    run = subprocess.run(
                        [*command, *words],
                        check=False,
                        capture_output=True,
                        text=True,
                        env=environment | more,
                        timeout=PATIENCE_S,
                    )
                    assert run.returncode == 0, run.stderr
                    told += run.stdout + run.stderr
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()
    logged = said.read_text()
    assert "INFO" in logged and "TLS" in logged
    key = (tmp_path / "peer.pem").read_text().splitlines()[1]
    for secret in (TOKEN, WRONG, SECRET, digest, AUTH, AUTH.rpartition(":")[2], key):
        assert secret not in logged and secret not in told


def asked(listen: str, http: str, home: Path) -> str:
    """Return all answers of a node about itself to the right token and to wrong ones."""
    told = ""
    host, port = listen.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain:
        plain.sendall(f"{TOKEN} {SECRET}".encode())  # no TLS: what is logged of it must not repeat it
        assert plain.recv(100)[:1] in (b"", b"\x15")  # closed, or TLS's word for it
    tls = Certificates(ca=str(home / "ca.pem"))
    with Client(listen, token=TOKEN, tls=tls) as client:
        client.enqueue_many("mail", [b"x"])
        told += "".join(str(client.call(method, {})) for method in ("cluster", "peers", "replica", "routes", "metrics"))
    for wrong in (WRONG, SECRET):
        with pytest.raises(OnyxqError) as raised, Client(listen, token=wrong, tls=tls, timeout_ms=1_000) as client:
            client.queues()
        told += repr(raised.value) + str(raised.value.to_map())
    context = ssl.create_default_context(cafile=str(home / "ca.pem"))
    with httpx.Client(verify=context, timeout=PATIENCE_S, trust_env=False, base_url=f"https://{http}") as web:
        for token in (TOKEN, WRONG, SECRET):
            for path in ("/", "/v1/cluster", "/v1/log", "/v1/replica", "/openapi.json", "/docs", "/readyz", "/metrics"):
                told += web.get(path, headers={"authorization": f"Bearer {token}"}).text
    return told
