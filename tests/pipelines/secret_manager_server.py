"""A server that speaks the protocol of Secret Manager, behind a proxy that fails."""

import datetime as dt
import ipaddress
import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

import grpc

from tests.clusters.tcp_proxy import TcpProxy

VERSION = "projects/a-project/secrets/noise/versions/3"
HOST = "127.0.0.1"
SERVICE = "google.cloud.secretmanager.v1.SecretManagerService"
# Runs the command in a new process whose client connects to the server in argument 1.
COMMAND = """
import functools, sys
from google.cloud import secretmanager
from streamveil.pipelines.main import main
real = secretmanager.SecretManagerServiceClient
led = functools.partial(real, client_options={"api_endpoint": sys.argv[1]})
secretmanager.SecretManagerServiceClient = led
sys.exit(main(sys.argv[2:]))
"""


class SecretManagerServer:
    """Gives one secret, or what else a test says."""

    def __init__(self, secret):
        self.content, self.asked = secret.encode(), []
        self.changed, self.raw, self.seconds = {}, None, 0.0
        self.wrong = iter(())
        self.port = 0
        self.start()
        self.proxy = TcpProxy(f"{HOST}:{self.port}")

    def start(self):
        from google.cloud import secretmanager

        self.types = secretmanager
        handler = grpc.unary_unary_rpc_method_handler(
            self.access, secretmanager.AccessSecretVersionRequest.deserialize, self.serialize
        )
        self.server = grpc.server(ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"AccessSecretVersion": handler})]
        )
        key, own = certificate()
        credentials = grpc.ssl_server_credentials([(key, own)])
        self.port = self.server.add_secure_port(f"{HOST}:{self.port}", credentials)
        self.server.start()

    def stop(self):
        self.server.stop(0).wait()

    def close(self):
        self.proxy.reset()  # which lets go what stalls
        self.proxy.stop()
        self.stop()

    def fail(self, code, text="it broke", times=None):
        """Answer with this status, `times` times, or for good when None."""
        wrong = (grpc.StatusCode[code], text)
        self.wrong = itertools.repeat(wrong) if times is None else itertools.repeat(wrong, times)

    def access(self, request, context):
        self.asked.append(request.name)
        time.sleep(self.seconds)
        if (wrong := next(self.wrong, None)) is not None:
            context.abort(*wrong)
        from google_crc32c import value as checksum_of

        answer = {"name": request.name, "data": self.content}
        answer |= {"data_crc32c": checksum_of(self.content), **self.changed}
        return self.types.AccessSecretVersionResponse(name=answer.pop("name"), payload=answer)

    def serialize(self, answer):
        if self.raw is not None:
            return self.raw
        return self.types.AccessSecretVersionResponse.serialize(answer)

    def lead(self, monkeypatch):
        """Lead Google's own client here, which trusts the certificate."""
        client = self.types.SecretManagerServiceClient
        where = {"api_endpoint": self.proxy.address}
        monkeypatch.setattr(
            self.types, "SecretManagerServiceClient", partial(client, client_options=where)
        )
        trusting = partial(
            grpc.composite_channel_credentials, grpc.ssl_channel_credentials(certificate()[1])
        )
        monkeypatch.setattr(grpc, "compute_engine_channel_credentials", trusting)

    def command(self, arguments, folder):
        """The command line of a process of its own that asks here, and what its environment has."""
        roots = folder / "roots.pem"
        roots.write_bytes(certificate()[1])
        given = [sys.executable, "-c", COMMAND, self.proxy.address, *arguments]
        return given, {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)}


@cache
def certificate():
    """A key and a certificate of this machine."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    now = dt.datetime.now(dt.timezone.utc)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - dt.timedelta(1)).not_valid_after(now + dt.timedelta(1))
    signed = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return text, signed.public_bytes(serialization.Encoding.PEM)
