"""Faults of the machine, or of a service: a full disk, short memory, an object store that is away.

They pass, and no file is to blame.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from streamveil.mechanisms.core.records import ConfigurationError, MachineFault

PASSING = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EBUSY),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOLCK, errno.EINTR),
        *(errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
        *(errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
        *(
            errno.EREMOTEIO,
            errno.ECOMM,
            errno.ENOLINK,
            errno.EPROTO,
            errno.ESHUTDOWN,
            errno.EUCLEAN,
        ),
    }
)
"""Numbers of errors that say nothing about a file or an option."""
REFUSED = frozenset({errno.EACCES, errno.EPERM})
"""The same of a file to read, whose owner may let it be read later."""

_MEMORY = re.compile(
    r"\b(Arrow)?MemoryError\b|bad_alloc|malloc of size (?P<size>\d+) failed|[Oo]ut of memory|"
    r"[Nn]ot enough memory|Cannot allocate memory|can't start new thread|\bError -4 while\b"
)
# What a damaged file says of itself may be of any size.
_MOST_BYTES = 1 << 40

OUT_OF_MEMORY = "out of memory"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room"),
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "mount its disk for writing, or choose another place",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.ESTALE, errno.ENOTCONN), "mount its disk again"),
    errno.EIO: "look after its disk",
    **dict.fromkeys(REFUSED, "let this user read it"),
}


# Services that keep files and keys, by the packages whose errors are theirs; the first that fits.
_SERVICES = {
    "apache_beam.io.aws": "S3",
    "botocore": "S3",
    "boto3": "S3",
    **dict.fromkeys(("google.api_core", "google.auth", "google.cloud"), "Google Cloud"),
    **dict.fromkeys(("google.resumable_media", "apitools"), "Google Cloud"),
    "apache_beam.io.azure": "Azure Blob Storage",
    "azure": "Azure Blob Storage",
    "hdfs": "HDFS",
    "requests": "its server",
    "urllib3": "its server",
}
_SCHEMES = {
    "s3": "S3",
    "gs": "Google Cloud Storage",
    "azfs": "Azure Blob Storage",
    "hdfs": "HDFS",
    "bigquery": "BigQuery",
    "dataflow": "Dataflow",
}
_NOT_THERE = 404
_NOT_ALLOWED = frozenset({401, 403})
_QUOTAS = frozenset({"quotaExceeded", "rateLimitExceeded", "dailyLimitExceeded"})
"""Reasons of Google's services, which also answer 403."""
_IDENTITY = re.compile(
    r"[Cc]redential|[Ee]xpired|[Aa]ccess ?[Dd]enied|InvalidAccessKeyId|SignatureDoesNotMatch|"
    r"InvalidToken|AuthenticationFailed|invalid_grant|Permission denied"
)
_NO_BUCKET = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound", re.IGNORECASE)
# By the exceptions of a name node, which gives most of them the status 403.
_OF_NAME_NODES = (
    (re.compile("QuotaExceeded"), "make room there, or raise the quota"),
    (re.compile("Standby"), "name the active name node (--hdfs_host)"),
    (re.compile("SafeMode|safe mode"), "wait until the name node has left its safe mode"),
)
QUOTA_REMEDY = "wait until its quota lets it, or have that raised"
WAY_REMEDY = "look whether the service and the way to it are up"
_LONGEST = 300


def is_memory_short(error: BaseException) -> bool:
    """Whether it was raised for want of memory, or of threads."""
    match = _MEMORY.search(str(error))
    if match and match["size"] is not None:
        return int(match["size"]) < _MOST_BYTES
    if isinstance(error, MemoryError):
        return True
    named = isinstance(error, OSError) and error.errno not in (None, errno.ENOMEM)
    return match is not None and not named


def fault_in_reading(error: BaseException, place: str = "") -> str | None:
    """What the machine or a service lacked while a file was read, and the remedy.

    None for a fault of the file, and for one that is not there. `place` is its path. What a
    filesystem of the network raises has no number, and is its own.
    """
    if is_memory_short(error):
        return f"{OUT_OF_MEMORY}: give the run more memory, or smaller files, and run it again"
    if is_absent(error):
        return None
    if (fault := fault_of_service(error, place)) is not None:
        return fault
    if not isinstance(error, OSError):
        return None
    number = error.errno
    if number in PASSING or number in REFUSED:
        remedy = _REMEDIES.get(number, "fix that")
        return f"{os.strerror(number)}: {remedy}, and run it again"
    if isinstance(error, ConnectionError | TimeoutError) or _is_of_beam(error):
        return f"{' '.join(str(error).split())}: fix that, and run it again"
    return None


@contextlib.contextmanager
def blaming(
    what: str, place: str = "", find: Callable[[BaseException, str], str | None] = fault_in_reading
) -> Iterator[None]:
    """Context in which a fault of the machine or of a service is raised as a MachineFault.

    All else passes as it is.

    Args:
        what: what could not be done, which the message begins with.
        place: the path that it is about.
        find: :func:`fault_in_reading`, or :func:`fault_of_service` where a disk speaks for itself.
    """
    try:
        yield
    except (ConfigurationError, MachineFault):
        raise
    except Exception as error:
        why = find(error, place)
        if why is None:
            raise
        raise MachineFault(f"{what}: {why}") from error


def fault_of_service(error: BaseException, place: str = "") -> str | None:
    """What a service said that did not do what it was asked to, and the remedy, in one line.

    None where no service was asked.

    Args:
        error: what was raised; its causes are looked at, too.
        place: the path that it is about, whose scheme names the service more closely.
    """
    for each in _causes(error):
        service = _service_of(each)
        if service is None:
            continue
        service = _SCHEMES.get(place.partition(":")[0], service)
        status, text = _status_of(each), words_of(each)
        kind = f"{getattr(each, 'exception', '')} {text}"
        known = (remedy for pattern, remedy in _OF_NAME_NODES if pattern.search(kind))
        if service == "HDFS" and (found := next(known, None)) is not None:
            remedy = found
        elif status == _NOT_THERE or _NO_BUCKET.search(text):
            remedy = "make what is not there, or name another"
        elif _reason_of(each) in _QUOTAS:
            remedy = QUOTA_REMEDY
        elif status in _NOT_ALLOWED or _IDENTITY.search(text):
            remedy = "give credentials that are valid and may do this"
        else:
            remedy = WAY_REMEDY
        return f"{service} says: {text}: {remedy}, and run it again"
    return None


def is_absent(error: BaseException) -> bool:
    """Whether a service said that what it was asked for is not there."""
    asked = (each for each in _causes(error) if _service_of(each) is not None)
    return any(_status_of(each) == _NOT_THERE for each in asked)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error, those of single files that a filesystem of Beam collects in it, and its causes."""
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop(0)
        if not isinstance(each, BaseException) or any(each is one for one in seen):
            continue
        seen.append(each)
        yield each
        details = getattr(each, "exception_details", None)
        if isinstance(details, dict):
            waiting += details.values()
        waiting.append(each.__cause__)
        if not each.__suppress_context__:
            waiting.append(each.__context__)


def _service_of(error: BaseException) -> str | None:
    module = type(error).__module__
    found = (
        name
        for package, name in _SERVICES.items()
        if module == package or module.startswith(f"{package}.")
    )
    if service := next(found, None):
        return service
    details = getattr(error, "exception_details", None)  # Beam keeps of some the status alone
    of_status = isinstance(details, dict) and any(isinstance(one, int) for one in details.values())
    return "its service" if of_status else None


def _status_of(error: BaseException) -> int | None:
    """The status of HTTP that a service answered with; None where there is none."""
    response = getattr(error, "response", None)
    details = getattr(error, "exception_details", None)
    for holder, name in ((error, "code"), (error, "status_code"), (response, "status_code")):
        found = getattr(holder, name, None)
        if isinstance(found, int):
            return int(found)
    values = details.values() if isinstance(details, dict) else ()
    return next((int(one) for one in values if isinstance(one, int)), None)


def _reason_of(error: BaseException) -> str | None:
    """Why, in a word, a service of Google refused it; None where it does not say."""
    errors = getattr(error, "errors", None)
    first = errors[0] if isinstance(errors, list) and errors else None
    return first.get("reason") if isinstance(first, dict) else None


def words_of(error: BaseException) -> str:
    """What a service says, in one line that is not too long."""
    said = getattr(error, "message", None)
    errors = getattr(error, "errors", None)
    if isinstance(errors, list) and errors and isinstance(errors[0], dict):
        said = errors[0].get("message", said)  # without the address that was asked
    content = getattr(error, "content", None)  # of clients of Google that say no more than that
    if isinstance(content, bytes | str):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            said = json.loads(content)["error"]["message"]
    text = " ".join((said if isinstance(said, str) else str(error)).split())
    text = text or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_of_beam(error: OSError) -> bool:
    """Whether a filesystem of Beam raised it, which is not imported for that.

    One that takes a path for none of its own raises ValueError inside.
    """
    module = sys.modules.get("apache_beam.io.filesystem")
    if module is None or not isinstance(error, module.BeamIOError):
        return False
    return not any(isinstance(each, ValueError) for each in _causes(error))
