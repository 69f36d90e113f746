"""Object stores of tests: an emulator each, behind a proxy that can fail."""

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

from tests.clusters.fault_proxy import FaultProxy
from tests.clusters.free_ports import free_ports

CAFES = {
    "domain": "cafe,park",
    "user_column": "user",
    "value_column": "place",
    "time_column": "time",
    "slot": "1d",
    "start": "2024-05-01",
    "end": "2024-05-06",
}
"""Options by which events of a few days are released."""


def release_of(given):
    """A command that releases with these options."""
    return ["release", *(f"--{name}={value}" for name, value in given.items())]


HERE = Path(__file__).parent
PATIENCE = 60.0
KEY = "0123456789012345678901234567890123"


class Store:
    """A bucket of an emulator: what is put there directly is read through the proxy."""

    name = ""
    flags = ()

    def __init__(self, home, work):
        self.home, self.work = home, work
        port, self.port = free_ports(2)
        self.upstream = f"127.0.0.1:{self.port}"
        self.process = None
        self.proxy = FaultProxy(self.upstream, port)
        self.environment = {"STREAMVEIL_NOISE_KEY": KEY}

    def start(self):
        """Start the emulator, which forgets all at its end, with an empty bucket."""
        log = (self.work / f"{self.name}.log").open("w")
        command = [HERE / f"{self.name}.sh", "start", self.home, str(self.port)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.make_bucket()
                return
            except Exception:  # of whatever client
                assert time.monotonic() < end, (self.work / f"{self.name}.log").read_text()
                time.sleep(0.2)

    def kill(self):
        """Kill the emulator with what it started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self):
        self.proxy.stop()
        self.kill()

    def folder(self):
        """A new folder of the bucket."""
        return f"{self.root}/{uuid.uuid4().hex[:8]}"

    def launch(self, *arguments, **environment):
        """Start a command as a process of its own."""
        command = [sys.executable, "-m", "streamveil", *arguments]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.work,
            env={**os.environ, **self.environment, **environment},
        )


class S3(Store):
    """moto, by Beam's options."""

    name, root, service = "s3", "s3://bucket", "S3"

    def __init__(self, home, work):
        super().__init__(home, work)
        self.flags = (f"--s3_endpoint_url={self.proxy.url}",)
        self.environment |= {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "2",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _client(self):
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=f"http://{self.upstream}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def make_bucket(self):
        self.client = self._client()
        self.client.create_bucket(Bucket="bucket")

    def put(self, path, data):
        self.client.put_object(Bucket="bucket", Key=self._key(path), Body=data)

    def get(self, path):
        """The content of a file; None where there is none."""
        try:
            return self.client.get_object(Bucket="bucket", Key=self._key(path))["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None

    def names(self, folder):
        found = self.client.list_objects_v2(Bucket="bucket", Prefix=self._key(folder) + "/")
        return sorted(one["Key"].split("/", 1)[1] for one in found.get("Contents", ()))

    def _key(self, path):
        return path.removeprefix("s3://bucket/")


class GCS(Store):
    """gcp-storage-emulator, with a service account whose tokens the proxy gives."""

    name, root, service = "gcs", "gs://bucket", "Google Cloud Storage"

    def __init__(self, home, work):
        super().__init__(home, work)
        account = work / "account.json"
        account.write_text(json.dumps(fake_account(self.proxy.url)))
        self.environment |= {
            "STORAGE_EMULATOR_HOST": self.proxy.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(account),
            "NO_GCE_CHECK": "true",
        }

    def _bucket(self):
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        client = storage.Client(
            project="p",
            credentials=AnonymousCredentials(),
            client_options={"api_endpoint": f"http://{self.upstream}"},
        )
        return client.bucket("bucket")

    def make_bucket(self):
        data = json.dumps({"name": "bucket"}).encode()
        request = urllib.request.Request(
            f"http://{self.upstream}/storage/v1/b?project=p",
            data,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5):
            pass
        self.bucket = self._bucket()

    def put(self, path, data):
        self.bucket.blob(self._key(path)).upload_from_string(data)

    def get(self, path):
        """The content of a file; None where there is none."""
        from google.api_core.exceptions import NotFound

        try:
            return self.bucket.blob(self._key(path)).download_as_bytes()
        except NotFound:
            return None

    def names(self, folder):
        found = self.bucket.list_blobs(prefix=self._key(folder) + "/")
        return sorted(one.name.split("/", 1)[1] for one in found)

    def _key(self, path):
        return path.removeprefix("gs://bucket/")


class Azure(Store):
    """Azurite, by the connection string of its one account."""

    name, root, service = "azure", "azfs://devstoreaccount1/bucket", "Azure Blob Storage"
    # Microsoft publishes it: it is the same in every emulator.
    account_key = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )

    def __init__(self, home, work):
        super().__init__(home, work)
        self.flags = (f"--azure_connection_string={self._connection(self.proxy.address)}",)

    def _connection(self, address):
        return (
            "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
            f"AccountKey={self.account_key};BlobEndpoint=http://{address}/devstoreaccount1;"
        )

    def make_bucket(self):
        from azure.storage.blob import BlobServiceClient

        client = BlobServiceClient.from_connection_string(
            self._connection(self.upstream), retry_total=0
        )
        self.container = client.create_container("bucket")

    def put(self, path, data):
        self.container.upload_blob(self._key(path), data)

    def get(self, path):
        """The content of a file; None where there is none."""
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self.container.download_blob(self._key(path)).readall()
        except ResourceNotFoundError:
            return None

    def names(self, folder):
        found = self.container.list_blobs(name_starts_with=self._key(folder) + "/")
        return sorted(one.name.split("/", 1)[1] for one in found)

    def _key(self, path):
        return path.removeprefix(f"{self.root}/")


class HDFS(Store):
    """A name node and a data node, by WebHDFS."""

    name, root, service = "hdfs", "hdfs://bucket", "HDFS"

    def __init__(self, home, work):
        super().__init__(home, work)
        port = self.proxy.port
        self.flags = ("--hdfs_host=127.0.0.1", f"--hdfs_port={port}", "--hdfs_user=someone")

    def make_bucket(self):
        from hdfs import InsecureClient

        self.client = InsecureClient(f"http://{self.upstream}", user="someone")
        self.admin_name = getpass.getuser()
        self.admin = InsecureClient(f"http://{self.upstream}", user=self.admin_name)
        self.admin.makedirs("/bucket")
        self.admin.set_owner("/bucket", "someone")
        # The name node answers before a data node is there to store anything.
        self.client.write("/bucket/ready", "yes", overwrite=True)
        self.client.delete("/bucket/ready")

    def command(self, line):
        """Let the server do what it does of itself elsewhere: see Hdfs.java."""
        log = self.work / f"{self.name}.log"
        done = log.read_text().count(f"done {line}")
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        end = time.monotonic() + PATIENCE
        while log.read_text().count(f"done {line}") == done:
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

    def put(self, path, data):
        self.client.write(self._path(path), data, overwrite=True)

    def get(self, path):
        """The content of a file; None where there is none."""
        if self.client.status(self._path(path), strict=False) is None:
            return None
        with self.client.read(self._path(path)) as file:
            return file.read()

    def names(self, folder):
        top = self._path(folder)
        if self.client.status(top, strict=False) is None:
            return []
        found = (f"{base}/{name}" for base, _, names in self.client.walk(top) for name in names)
        return sorted(path.removeprefix("/bucket/") for path in found)

    def _path(self, path):
        return "/" + path.removeprefix("hdfs://")


def fake_account(url):
    """A service account of Google with a key of its own, whose tokens come from that server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": text.decode(),
        "client_email": "test@p.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{url}/token",
    }


@contextlib.contextmanager
def running(kind, home, work):
    """A store that runs meanwhile."""
    store = kind(home, work)
    try:
        store.start()
        yield store
    finally:
        store.close()
