"""Changes docstrings for the site.

Roles of Sphinx, such as :func:`release`, become plain code. The section `Example:` becomes
`Examples:`, since griffe shows the code of this one alone as code.
"""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`[~.]?([^`]+)`")
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Roles(griffe.Extension):
    """Changes every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """See griffe."""
        if obj.docstring:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub("Examples:", text)
