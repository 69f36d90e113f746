"""Secrets that Google Secret Manager keeps, by Google's client library."""

from __future__ import annotations

import re
from functools import partial

from streamveil.io.faults import QUOTA_REMEDY, WAY_REMEDY
from streamveil.io.optional import require_google
from streamveil.mechanisms.core.records import ConfigurationError, MachineFault

PATIENCE = 60.0
"""Seconds in which it is asked again where a fault may pass."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 10.0
"""Seconds between two tries, about."""
ONE_ANSWER = 15.0
"""Seconds for an answer."""

_CREDENTIALS = (
    "give credentials that are valid, in GOOGLE_APPLICATION_CREDENTIALS, by gcloud auth "
    "application-default login or by the account of the machine, and run it again"
)
# Of answers that stay the same until a person does something: what that is.
_REMEDIES = {
    "UNAUTHENTICATED": _CREDENTIALS,
    "PERMISSION_DENIED": "the account that launches and those of the workers need the role "
    "roles/secretmanager.secretAccessor on it",
    "NOT_FOUND": "name a version that the secret has",
    "FAILED_PRECONDITION": "it is disabled; enable it again, for the key of a stream must stay the "
    "same",
    "INVALID_ARGUMENT": "check the names of the project and of the secret",
}
# What the service says beside the status, and the remedy.
_BY_WORDS = {
    "DESTROYED": "nobody can read it any more; give the key from where else you keep it, or begin "
    "a new stream with a new key",
    "API has not been used": "enable the API of Secret Manager in the project, as by gcloud "
    "services enable secretmanager.googleapis.com",
}
_BY_STATUS = {
    "RESOURCE_EXHAUSTED": QUOTA_REMEDY,
    "DEADLINE_EXCEEDED": "look whether the service, the server that gives access tokens and the "
    "way to both are up",
}
_TOKENS = (
    "look whether the server that gives access tokens and the way to it are up, and whether the "
    "credentials are valid"
)
# The library reports an account that gets no access token as a service that is away.
_NO_TOKEN = "Getting metadata from plugin failed with error: "
_REFUSED_ACCOUNT = re.compile(
    r"invalid_(client|grant|request|scope|target|token)|unauthorized_client|access_denied|"
    r"PERMISSION_DENIED|UNAUTHENTICATED|Reauthentication"
)


def secret_of(version: str) -> bytes:
    """What projects/P/secrets/S/versions/N holds.

    Raises ConfigurationError for what stays until a person does something, and MachineFault for
    what may pass and did not.
    """
    where = f"secret:{version}"
    require_google("google.cloud.secretmanager", where)
    from google.api_core.exceptions import GoogleAPIError, RetryError
    from google.api_core.retry import Retry
    from google.auth.exceptions import GoogleAuthError

    again = Retry(_may_pass, FIRST_WAIT, LONGEST_WAIT, timeout=PATIENCE)
    try:
        return again(partial(_read_version, version))()
    except (GoogleAPIError, GoogleAuthError) as error:
        last = (error.cause or error) if isinstance(error, RetryError) else error
        if isinstance(last, MachineFault):
            raise last from None
        why, remedy = _reason_of(last), _remedy(last)
        if remedy is not None:
            raise ConfigurationError(f"{where} cannot be read ({why}): {remedy}") from error
        remedy = _TOKENS
        if status := _status_of(last):
            why, remedy = f"Secret Manager says: {why}", _BY_STATUS.get(status, WAY_REMEDY)
        raise MachineFault(
            f"{where} could not be read: {why}: {remedy}, and run it again"
        ) from error


def _read_version(version: str) -> bytes:
    """What is there, undamaged. Raises MachineFault, and errors of Google's.

    By a connection of its own, since one that stalls would stay so.
    """
    from google.cloud import secretmanager
    from google_crc32c import value as checksum_of

    with secretmanager.SecretManagerServiceClient() as client:
        answer = client.access_secret_version(
            request={"name": version}, retry=None, timeout=ONE_ANSWER
        )
    if _within_project(answer.name) != _within_project(version):
        raise MachineFault(
            f"secret:{version} was asked for, and Secret Manager gave {answer.name!r}: run it again"
        )
    payload = answer.payload
    if "data_crc32c" in payload and payload.data_crc32c != checksum_of(payload.data):
        raise MachineFault(
            f"secret:{version} came damaged from Secret Manager, by its checksum: run it again"
        )
    data: bytes = payload.data
    return data


def _within_project(version: str) -> tuple[str, str]:
    """Secret and number: a project goes by its name or by its number."""
    secret, _, number = version.partition("/secrets/")[2].partition("/versions/")
    return secret, number


def _may_pass(error: BaseException) -> bool:
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    known = isinstance(error, (GoogleAPIError, GoogleAuthError, MachineFault))
    return known and _remedy(error) is None


def _remedy(error: BaseException) -> str | None:
    """What a person has to do; None for what may pass by itself."""
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, GoogleAuthError):
        passes = error.retryable or isinstance(error, TransportError)
        return None if passes else _CREDENTIALS
    if _NO_TOKEN in str(error):
        return _CREDENTIALS if _REFUSED_ACCOUNT.search(str(error)) else None
    found = (remedy for words, remedy in _BY_WORDS.items() if words in str(error))
    return next(found, _REMEDIES.get(_status_of(error)))


def _reason_of(error: BaseException) -> str:
    text = getattr(error, "message", "") or str(error)
    what = _status_of(error)
    if _NO_TOKEN in text:
        what, text = "the account gets no access token", text.rpartition(_NO_TOKEN)[2]
    return " ".join(f"{what}: {text}".removeprefix(": ").split())


def _status_of(error: BaseException) -> str:
    """By its name; empty for what is no answer of the service."""
    status = getattr(error, "grpc_status_code", None)
    return "" if status is None or _NO_TOKEN in str(error) else status.name
