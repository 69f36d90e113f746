"""What a service said, in one line with the remedy, whatever client and filesystem it went by."""

import pytest
from apache_beam.io.filesystem import BeamIOError
from google.protobuf import message

from streamveil.io.faults import fault_in_reading, fault_of_service, is_absent

exceptions = pytest.importorskip("google.api_core.exceptions", reason="without the extra gcp")
PATH = "gs://bucket/events.csv"
CREDENTIALS = "give credentials that are valid and may do this"
LATER = "look whether the service and the way to it are up"


def nested(error):
    """As filesystems of Beam collect errors of single files."""
    return BeamIOError("Match operation failed", {PATH: BeamIOError("List failed", {PATH: error})})


def caused(error):
    """As an error of the client that another one was raised from."""
    outer = RuntimeError("it failed")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize("around", [lambda error: error, nested, caused])
@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (exceptions.ServiceUnavailable("busy"), LATER),
        (exceptions.TooManyRequests("slow down"), LATER),
        (exceptions.RetryError("timed out", None), LATER),
        (exceptions.Forbidden("no"), CREDENTIALS),
        (exceptions.Unauthorized("who?"), CREDENTIALS),
        (exceptions.BadRequest("the token has expired"), CREDENTIALS),
    ],
)
def test_a_fault_of_a_service_names_it_and_the_remedy(around, error, remedy):
    said = fault_in_reading(around(error), PATH)
    assert said.startswith("Google Cloud Storage says: ")
    assert said.endswith(f"{remedy}, and run it again")
    assert "\n" not in said


@pytest.mark.parametrize("around", [lambda error: error, nested, caused])
def test_what_is_not_there_is_no_fault(around):
    error = around(exceptions.NotFound("no such object"))
    assert is_absent(error)
    assert fault_in_reading(error, PATH) is None


def test_what_no_service_said_is_none_of_its_faults():
    assert fault_of_service(ValueError("a bad line")) is None
    assert fault_of_service(OSError(5, "a bad disk")) is None
    assert fault_of_service(message.DecodeError("a bad record")) is None
    aside = ValueError("a bad line")
    aside.__context__, aside.__suppress_context__ = exceptions.Forbidden("no"), True
    assert fault_of_service(aside) is None
    assert fault_in_reading(BeamIOError("no path", {PATH: ValueError("no object")})) is None


def test_a_status_alone_is_reported():
    """Beam keeps only that of what its batches of requests to Google Cloud Storage say."""
    said = fault_of_service(BeamIOError("Rename failed", {PATH: 403}), PATH)
    assert said.startswith("Google Cloud Storage says: Rename failed with exceptions")
    assert CREDENTIALS in said


def test_long_words_are_cut_off():
    assert len(fault_of_service(exceptions.ServiceUnavailable("x" * 9999))) < 450
