"""A reply ends at its deadline and at 8 MB, whatever the server does; no redirect is followed."""

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from vlm_server import VLMServer, chat, send

from vlmrm_gym.rewards.endpoint.client import Client, ServerError
from vlmrm_gym.rewards.endpoint.settings import EndpointSettings

pytestmark = pytest.mark.usefixtures("api_key")

QUESTION = [{"role": "user", "content": "Is it?"}]
COMPLETION = json.dumps(chat("Yes")).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@contextlib.contextmanager
def raw_server(answer):
    """The address of a server that calls a function with each connection, and the number of them so far."""
    listening, connections = socket.create_server(("127.0.0.1", 0)), []

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=call, args=[connection], daemon=True).start()

    def call(connection):
        with contextlib.suppress(OSError), connection:
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    with listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", connections
        listening.shutdown(socket.SHUT_RDWR)


def receive(connection):
    """A whole request."""
    request = b""
    while not request.endswith(b"}"):
        request += connection.recv(65_536)
    return request


def never(failures):
    return False


def connect(address, timeout=5.0):
    return Client(EndpointSettings("m", address, timeout=timeout))


def create(address, timeout=5.0, retries=0):
    client = connect(address, timeout)
    try:
        return client.create(QUESTION, 0, lambda failures: failures <= retries)
    finally:
        client.close()


def drip(*parts, pause=0.05):
    """Sends the parts, and then the last of them for ever."""

    def answer(connection):
        receive(connection)
        for part in parts[:-1]:
            connection.sendall(part)
        while True:
            connection.sendall(parts[-1])
            time.sleep(pause)

    return answer


SLOW = {
    "a byte at a time": drip(HEAD % 10_000, b" "),
    "header lines": drip(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
    "early hints, fast": drip(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", pause=0),
    "chunks": drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "nothing": lambda connection: time.sleep(5),
}


def test_the_deadline_is_for_the_whole_reply():
    """What comes too late counts as no answer, and is asked for again."""

    def measure(name):
        begun = time.monotonic()
        with (
            raw_server(SLOW[name]) as (address, connections),
            pytest.raises(ConnectionError, match=r"after 1 s and 2 attempts: no whole reply within 0.6 s"),
        ):
            create(address, timeout=0.6, retries=1)
        return name, len(connections), 1.2 <= time.monotonic() - begun < 2.5

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(measure, SLOW)) == [(name, 2, True) for name in SLOW]


def test_a_server_that_does_not_read_is_left_at_the_deadline():
    def answer(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        while connection.recv(512):
            time.sleep(0.05)

    begun, client = time.monotonic(), None
    with raw_server(answer) as (address, _):
        client = connect(address, 0.6)
        with pytest.raises(ConnectionError, match=r"within 0\.6 s"):
            client.create([{"role": "user", "content": "x" * 8_000_000}], 0, never)
        client.close()
    assert time.monotonic() - begun < 2


def test_more_than_8_mb_are_not_read_and_not_asked_for_again():
    for head in (HEAD % 10**12, b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 500 Oh\r\n\r\n"):
        sent = []

        def answer(connection, head=head, sent=sent):
            receive(connection)
            connection.sendall(head)
            while True:
                sent.append(connection.send(b" " * 100_000))

        with raw_server(answer) as (address, connections), pytest.raises(ServerError, match="answered more than 8 MB"):
            create(address, timeout=20, retries=3)
        assert len(connections) == 1
        assert sum(sent) < 20_000_000  # buffers of the sockets included


def test_a_compressed_reply_is_refused_unread_and_is_not_asked_for():
    asked = []

    def answer(connection):
        asked.append(receive(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: GZIP\r\nContent-Length: 4\r\n\r\nnone")

    with raw_server(answer) as (address, connections), pytest.raises(ServerError, match="200, compressed as gzip"):
        create(address, retries=1)
    assert len(connections) == 1
    assert b"accept-encoding: identity" in asked[0].lower()
    assert b"\r\nuser-agent: vlmrm-gym\r\n" in asked[0].lower()  # some gateways refuse requests of nobody


def test_no_redirect_is_followed():
    """Neither to another host nor to another port of the same: pictures and prompt would go there."""
    with VLMServer() as other, VLMServer() as server:
        for number, code in enumerate((301, 302, 303, 307, 308), 1):
            server.answer = lambda handler, *_, code=code: send(handler, code, b"", {"Location": f"{other.url}/x"})
            with pytest.raises(ServerError, match=rf"answered {code}: a redirect to {other.url}/x, which is not foll"):
                create(server.url, retries=3)
            assert (server.requests, other.requests) == (number, 0)


def test_connections_are_kept_and_those_that_the_server_closed_are_made_again():
    """What comes before a reply is skipped."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"

    def answer(connection):
        for _ in range(2):
            receive(connection)
            connection.sendall(hints + HEAD % len(COMPLETION) + COMPLETION)

    with raw_server(answer) as (address, connections):
        client = connect(address)
        for expected in (1, 1, 2, 2):
            assert client.create(QUESTION, 0, never).text == "Yes"
            assert len(connections) == expected
            time.sleep(0.05)
        client.close()


def test_a_proxy_of_the_environment_is_used_with_its_password(monkeypatch):
    asked = []

    def answer(connection):
        asked.append(receive(connection))
        connection.sendall(HEAD % len(COMPLETION) + COMPLETION)

    with raw_server(answer) as (address, _):
        monkeypatch.setenv("http_proxy", address.replace("//", "//me:a%20b@").removesuffix("/v1"))
        monkeypatch.setenv("no_proxy", "other.example")
        assert create("http://models.example/v1").text == "Yes"
        assert asked[0].startswith(b"POST http://models.example/v1/chat/completions")
        assert b"Proxy-Authorization: Basic bWU6YSBi" in asked[0]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert create(address).text == "Yes"
        assert asked[1].startswith(b"POST /v1/chat/completions")


def test_a_certificate_that_nobody_knows_is_refused(tmp_path):
    """And one that `SSL_CERT_FILE` names is not."""
    run = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    run += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def answer(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            receive(secure)
            secure.sendall(HEAD % len(COMPLETION) + COMPLETION)

    with raw_server(answer) as (address, _):
        address = address.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            create(address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
            assert create(address).text == "Yes"
