"""A missing package is reported with the extra that installs it, in one line."""

import re
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from streamveil.io import check_output, read_domain, read_requirements
from streamveil.io.files import list_files
from streamveil.mechanisms.core.records import ConfigurationError

SCHEMES = [
    ("s3", "boto3", "aws"),
    ("gs", "google.cloud.storage", "gcp"),
    ("azfs", "azure.storage.blob", "azure"),
    ("hdfs", "hdfs", "hadoop"),
]


@pytest.mark.parametrize(("scheme", "module", "extra"), SCHEMES)
@pytest.mark.parametrize("use", [list_files, check_output, read_domain, read_requirements])
def test_a_filesystem_names_its_extra(monkeypatch, use, scheme, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    path = f"{scheme}://bucket/file.csv"
    with pytest.raises(ConfigurationError) as caught:
        use(path)
    message = str(caught.value)
    assert path in message
    assert f"pip install '.[{extra}]'" in message
    assert "\n" not in message


def test_every_extra_is_there_to_be_installed():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    ours = re.findall(r"^(\w+) = \[", text.split("dependencies]")[1], re.MULTILINE)
    beams = metadata("apache-beam").get_all("Provides-Extra")
    for _, _, extra in SCHEMES:
        assert extra in ours
        assert extra in beams


@pytest.mark.parametrize(
    ("path", "module", "missing"),
    [
        ("hdfs://folder/x.csv", "hdfs", "--hdfs_host is missing"),
        ("azfs://account/bucket/x.csv", "azure.storage.blob", "--azure_connection_string"),
    ],
)
def test_a_filesystem_names_the_options_that_it_needs(monkeypatch, path, module, missing):
    pytest.importorskip(module)
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    FileSystems.set_options(PipelineOptions([]))
    with pytest.raises(ConfigurationError) as caught:
        list_files(path)
    assert path in str(caught.value)
    assert missing in str(caught.value)


def test_s3_without_credentials_is_refused_at_once(monkeypatch, tmp_path):
    """Beam would look for them for ten minutes."""
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    FileSystems.set_options(PipelineOptions([]))
    with pytest.raises(ConfigurationError, match=r"s3://b/x\.csv: S3 needs credentials"):
        list_files("s3://b/x.csv")
