"""Query sets of queries, read from YAML files; JSON is YAML as well."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from streamveil.io.domain import read_domain
from streamveil.io.files import is_there, open_file, reading
from streamveil.mechanisms.core.boolean_text import FALSE, TRUE
from streamveil.mechanisms.core.records import ConfigurationError
from streamveil.mechanisms.queries.queries import QuerySet
from streamveil.mechanisms.queries.reading import query_set_of


def read_queries(path: str) -> QuerySet:
    """Read a query set from a YAML file on any Beam filesystem.

    If the `keys` of a query are the name of a file, that file is read too (see
    :func:`read_domain`).

    Raises:
        ConfigurationError: if the file is not valid YAML, if a YAML key occurs twice, or if a query
            is not valid. The error message names the place in the file, or the query and the YAML
            key whose value is not valid.
    """
    if not is_there(path):
        raise ConfigurationError(f"file of queries {path} does not exist: check its name")
    with reading(path), open_file(path) as file:
        text = file.read()
    try:
        found = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {_in_words(error)}") from None
    except (yaml.reader.ReaderError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise ConfigurationError(f"{path} is not YAML: {what}: save it as text in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as of no date
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    return queries_of(found, path)


def queries_of(found: Any, name: str = "the queries") -> QuerySet:
    """Make a query set from a mapping that has the form of a query file.

    Args:
        found: the mapping.
        name: name of the file or place from which the mapping comes. Error messages show this name.

    Raises:
        ConfigurationError: if a query is not valid.
    """
    try:
        return query_set_of(found, read_domain)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None


class _Loader(yaml.SafeLoader):
    """Refuses what YAML would read as something else than is written.

    That is a key that a mapping has twice, of which it keeps the last, whole numbers such as 010
    and 12:30, which it takes for 8 and 750, and words such as no and on, which it takes for
    booleans. Characters that JSON writes as two halves are put together.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        number: int = super().construct_yaml_int(node)
        if node.value != str(number):
            raise yaml.MarkedYAMLError(
                problem=f"{node.value} is {number} in YAML: write it in quotes if it is text, else "
                "as a plain number",
                problem_mark=node.start_mark,
            )
        return number

    def construct_yaml_bool(self, node: yaml.ScalarNode) -> bool:
        if node.value.lower() not in (TRUE, FALSE):
            raise yaml.MarkedYAMLError(
                problem=f"{node.value} is a boolean in YAML: write it in quotes if it is text, "
                "else true or false",
                problem_mark=node.start_mark,
            )
        return node.value.lower() == TRUE

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        written: str = self.construct_scalar(node)
        joined = written.encode("utf-16-le", "surrogatepass")
        return joined.decode("utf-16-le", "surrogatepass")

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, yaml.Mark] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                continue
            mark = first.setdefault(key.value, key.start_mark)
            if mark is not key.start_mark:
                problem = f"the key {key.value!r} is written twice, first in line {mark.line + 1}"
                raise yaml.MarkedYAMLError(
                    problem=f"{problem}: leave one out", problem_mark=key.start_mark
                )
        found: Mapping[Hashable, Any] = super().construct_mapping(node, deep)
        return {"null" if key is None else key: value for key, value in found.items()}


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_yaml_bool)
_Loader.add_constructor("tag:yaml.org,2002:str", _Loader.construct_yaml_str)


def _in_words(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
    what = " ".join(str(part) for part in (error.context, error.problem) if part)
    return f"{place}{' '.join(what.split())}"
