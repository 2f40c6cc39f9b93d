"""Storage options: their accepted names, the settings that they become, and errors that show the name of an option but
never its value.
"""

import pytest

from lance_core import InvalidInput, LanceError, Unsupported
from lance_core.storage.options import Settings, check_option_names, parse_settings

VALUE = "a-value-to-keep-secret"


def check(scheme: str, options: dict[str, str], environment: dict[str, str], expected: dict[str, str]) -> None:
    assert dict(parse_settings(scheme, options, environment).values) == expected


@pytest.mark.parametrize(
    ("scheme", "options", "expected"),
    [
        ("s3", {"aws_access_key_id": "a", "aws_secret_access_key": "b"}, {"key_id": "a", "key": "b"}),
        ("s3", {"access_key_id": "a", "session_token": "c"}, {"key_id": "a", "token": "c"}),
        ("s3", {"AWS_REGION": "r", "endpoint_url": "https://e"}, {"region": "r", "endpoint": "https://e"}),
        ("s3", {"aws_endpoint": "http://e", "allow_http": "true"}, {"endpoint": "http://e", "allow_http": "true"}),
        ("s3", {"virtual_hosted_style_request": "true"}, {"virtual_hosted": "true"}),
        ("s3", {"request_timeout": "3s", "client_max_retries": "2"}, {"timeout": "3s", "retries": "2"}),
        ("s3", {"aws_server_side_encryption": "e", "sse_kms_key_id": "k"}, {"encryption": "e", "kms_key": "k"}),
        ("gs", {"service_account": "/key.json"}, {"key_file": "/key.json"}),
        ("gs", {"google_service_account_key": "{}", "google_storage_token": "t"}, {"key": "{}", "token": "t"}),
        ("az", {"account_name": "n", "access_key": "k"}, {"account": "n", "key": "k"}),
        ("az", {"azure_storage_sas_token": "s", "use_emulator": "true"}, {"sas": "s", "emulator": "true"}),
        ("abfss", {"azure_client_id": "a", "authority_id": "c"}, {"client_id": "a", "tenant_id": "c"}),
        ("abfss", {"azure_client_secret": "b"}, {"client_secret": "b"}),
        ("s3", {"account_name": "of another store", "download_retry_count": "3"}, {}),
    ],
)
def test_spellings(scheme: str, options: dict[str, str], expected: dict[str, str]) -> None:
    check(scheme, options, {}, expected)


def test_options_override_the_environment() -> None:
    environment = {"AWS_ACCESS_KEY_ID": "e", "AWS_ENDPOINT": "https://e", "AWS_REGION": "e", "AWS_ALLOW_HTTP": "true"}
    expected = {"key_id": "g", "endpoint": "https://e", "region": "e", "allow_http": "true"}
    check("s3", {"access_key_id": "g"}, environment, expected)


def test_only_relevant_variables_of_the_environment_are_used() -> None:
    check("s3", {}, {"REGION": "x", "TOKEN": "x", "ENDPOINT": "x", "AZURE_STORAGE_ACCOUNT_KEY": "x"}, {})
    check("az", {}, {"AZURE_STORAGE_ACCOUNT_KEY": "k", "AZURE_STORAGE_ACCOUNT_NAME": "n"}, {"account": "n", "key": "k"})
    check("gs", {}, {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"key_file": "/k"})
    check("gs", {}, {"OBJECT_STORE_CLIENT_MAX_RETRIES": "3"}, {"retries": "3"})


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("aws_acces_key_id", InvalidInput, "'aws_acces_key_id'; did you mean 'aws_access_key_id'[?]"),
        ("password", InvalidInput, "no store has the option 'password'"),
        ("key", InvalidInput, "no store has the option 'key'"),
        ("aws_role_arn", Unsupported, "aws_role_arn is not supported: set AWS_ROLE_ARN in the environment"),
        ("proxy_url", Unsupported, "proxy_url is not supported: set HTTPS_PROXY"),
        ("aws_conditional_put", Unsupported, "commits need conditional puts"),
        ("aws_s3_express", Unsupported, "use a general purpose bucket"),
    ],
)
def test_unknown_options_are_rejected_by_name(name: str, error: type[LanceError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        check_option_names({name: VALUE})
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("options", [{"aws_region": 7}, {7: "x"}, {"aws_region": None}])
def test_options_must_be_strings(options: dict) -> None:
    with pytest.raises(InvalidInput, match="a mapping of strings to strings"):
        check_option_names(options)


@pytest.mark.parametrize(
    ("value", "expected"), [("30", 30), ("30s", 30), ("1.5s", 1.5), ("250ms", 0.25), ("2m", 120), ("1h", 3600)]
)
def test_durations(value: str, expected: float) -> None:
    assert Settings("s3", (("timeout", value),)).get_seconds("timeout", 1) == expected


@pytest.mark.parametrize(
    ("name", "read_setting"),
    [
        ("timeout", lambda found: found.get_seconds("timeout", 1)),
        ("retries", lambda found: found.get_int("retries", 1)),
        ("allow_http", lambda found: found.get_flag("allow_http")),
        ("endpoint", lambda found: found.get_endpoint()),
    ],
)
def test_an_invalid_value_is_rejected_without_being_shown(name: str, read_setting) -> None:
    with pytest.raises(InvalidInput, match="the storage option ") as caught:
        read_setting(Settings("s3", ((name, VALUE),)))
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["https://me:secret@host", "https://host?sig=secret", "ftp://host"])
def test_an_endpoint_has_no_user_and_no_query(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="without user, password and query") as caught:
        Settings("s3", (("endpoint", endpoint),)).get_endpoint()
    assert "secret" not in str(caught.value)


def test_settings_show_no_secret() -> None:
    settings = parse_settings(
        "az", {"account_key": VALUE, "sas_token": VALUE, "client_secret": VALUE, "bearer_token": VALUE}, {}
    )
    assert VALUE not in f"{settings!r} {settings}"
    assert settings.without_secrets(f"signed with {VALUE}.") == "signed with ***."
