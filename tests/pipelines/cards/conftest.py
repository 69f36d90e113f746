"""What cards are held to."""

import json

import jsonschema
import pytest


@pytest.fixture(scope="session")
def schema(pytestconfig):
    path = pytestconfig.rootpath / "pipelines" / "cards" / "card.schema.json"
    return jsonschema.Draft202012Validator(json.loads(path.read_text()))
