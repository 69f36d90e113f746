"""Roles of Sphinx in docstrings, such as :func:`release`, shown on the site as plain code."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`[~.]?([^`]+)`")


class Roles(griffe.Extension):
    """Takes the roles out of every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See griffe."""
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
