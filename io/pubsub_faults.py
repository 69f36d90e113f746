"""What Google's client library for Pub/Sub raises, as errors of ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from contextlib import contextmanager

from streamveil.mechanisms.core.records import ConfigurationError, MachineFault

_EMULATOR = "PUBSUB_EMULATOR_HOST"

# Of answers of Pub/Sub that the same request gets until a person does something: what that is.
_REMEDIES = {
    "UNAUTHENTICATED": "give credentials that have not expired, such as by gcloud auth "
    "application-default login, or in GOOGLE_APPLICATION_CREDENTIALS",
    "PERMISSION_DENIED": "grant the account roles/pubsub.subscriber of a subscription to read, and "
    "roles/pubsub.publisher of a topic to write",
    "NOT_FOUND": "create it, or name one that is there",
    "FAILED_PRECONDITION": "look at its state in Google's console",
    "INVALID_ARGUMENT": "check its name and its settings",
    "UNIMPLEMENTED": f"check what {_EMULATOR} names",
}
# The library reports an account that cannot be refreshed as a service that is away.
_EXPIRED = ("RefreshError", "invalid_grant", "Reauthentication")


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Raise what Google's client library raises as errors of ours, which name the place.

    That is a ConfigurationError, with the remedy, for what stays until a person does something, and
    a MachineFault for what passes by itself.
    """
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    emulator = os.environ.get(_EMULATOR)
    where = f"pubsub:{place}{f' at {_EMULATOR}={emulator}' if emulator else ''}"
    try:
        yield
    except (api.GoogleAPIError, auth.GoogleAuthError, TimeoutError) as error:
        status = getattr(getattr(error, "grpc_status_code", None), "name", type(error).__name__)
        why = " ".join(str(getattr(error, "message", "") or error).split())
        lapsed = any(word in why for word in _EXPIRED)
        by_account = isinstance(error, auth.GoogleAuthError) and not error.retryable
        remedy = _REMEDIES.get("UNAUTHENTICATED" if lapsed or by_account else status)
        if remedy is None:
            raise MachineFault(
                f"{where} cannot be reached: {status}: {why}: look after the network and Google's "
                "status page, and run it again"
            ) from error
        raise ConfigurationError(f"{where} is refused: {status}: {why}: {remedy}") from error
