"""Credentials: storage options among the options of a data source, which Spark may display."""

import pytest

from lance_core import InvalidInput
from lance_core.tasks.credentials import parse_storage_options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"storage.aws_secret_access_key": "x", "path": "p"}, {"aws_secret_access_key": "x"}),
        ({"storage.aws_access_key_id": "x"}, {"aws_access_key_id": "x"}),
        ({"storage.account_key": "env:KEY"}, {"account_key": "env:KEY"}),
        ({"secret.account_key": "x", "storage.account_name": "a"}, {"account_key": "x", "account_name": "a"}),
        ({"storage.provider": "a.b:c"}, {"provider": "a.b:c"}),
        ({"manifest_store": "sqlite:////data/m.db", "storage.timeout": "3s"}, {"timeout": "3s"}),
        ({"manifest_store": "env:M"}, {}),
    ],
)
def test_options_for_the_store(options: dict[str, str], expected: dict[str, str]) -> None:
    assert parse_storage_options(options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage.account_key": "CANARY"}, "option storage.account_key is a secret.*secret.account_key, which Spark"),
        ({"storage.sas_key": "CANARY"}, "option storage.sas_key is a secret"),
        ({"storage.google_service_account_key": "CANARY"}, "storage.google_service_account_key='env:VARIABLE'"),
        ({"storage.token": "x", "secret.token": "CANARY"}, "given twice, as storage.token and secret.token"),
        ({"manifest_store": "postgresql://me:CANARY@host/db"}, "manifest_store has a password in it"),
        ({"manifeststore": "postgresql://host/db?password=CANARY"}, "manifest_store has a password in it"),
    ],
)
def test_an_exposed_secret_is_rejected(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        parse_storage_options(options)
    assert "CANARY" not in str(caught.value)
