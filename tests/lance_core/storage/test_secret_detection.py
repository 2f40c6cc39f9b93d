"""Secret detection: every option that pylance's clients accept has a class, and values reveal secrets by their form."""

import pytest

from lance_core import InvalidInput, Unsupported
from lance_core.storage.option_names import PUBLIC_NAMES, SECRET_NAMES, SUPPORTED, UNSUPPORTED
from lance_core.storage.options import check_option_names
from lance_core.storage.secret_detection import contains_secret, exposes_secret, is_key_id, is_secret

# All spellings that object_store 0.14 parses for each store, with `*` before those of secrets.
S3 = """aws_access_key_id access_key_id *aws_secret_access_key *secret_access_key aws_default_region default_region
aws_region region aws_bucket aws_bucket_name bucket_name bucket aws_endpoint_url aws_endpoint endpoint_url endpoint
aws_endpoint_url_s3 *aws_session_token *aws_token *session_token *token aws_virtual_hosted_style_request
virtual_hosted_style_request aws_s3_express s3_express aws_imdsv1_fallback imdsv1_fallback aws_metadata_endpoint
metadata_endpoint aws_unsigned_payload unsigned_payload aws_checksum_algorithm checksum_algorithm
aws_container_credentials_relative_uri container_credentials_relative_uri aws_container_credentials_full_uri
container_credentials_full_uri aws_container_authorization_token_file container_authorization_token_file
aws_web_identity_token_file web_identity_token_file aws_role_arn role_arn aws_role_session_name role_session_name
aws_endpoint_url_sts endpoint_url_sts aws_skip_signature skip_signature aws_copy_if_not_exists copy_if_not_exists
aws_conditional_put conditional_put aws_disable_tagging disable_tagging aws_disable_bulk_delete disable_bulk_delete
aws_request_payer request_payer aws_allow_http aws_server_side_encryption server_side_encryption aws_sse_kms_key_id
sse_kms_key_id aws_sse_bucket_key_enabled sse_bucket_key_enabled *aws_sse_customer_key_base64
*sse_customer_key_base64"""
GCS = """google_service_account service_account google_service_account_path service_account_path
*google_service_account_key *service_account_key google_bucket google_bucket_name google_base_url base_url
google_application_credentials application_credentials *google_bearer_token *bearer_token google_skip_signature
*google_storage_token"""
AZURE = """*azure_storage_account_key *azure_storage_access_key *azure_storage_master_key *master_key *account_key
*access_key azure_storage_account_name account_name azure_storage_client_id azure_client_id client_id
*azure_storage_client_secret *azure_client_secret *client_secret azure_storage_tenant_id azure_storage_authority_id
azure_tenant_id azure_authority_id tenant_id authority_id azure_storage_authority_host azure_authority_host
authority_host *azure_storage_sas_key *azure_storage_sas_token *sas_key *sas_token *azure_storage_token
azure_storage_use_emulator use_emulator azure_storage_endpoint azure_endpoint azure_msi_endpoint
azure_identity_endpoint identity_endpoint msi_endpoint azure_object_id object_id azure_msi_resource_id msi_resource_id
azure_federated_token_file federated_token_file azure_use_fabric_endpoint use_fabric_endpoint azure_use_azure_cli
use_azure_cli azure_skip_signature azure_container_name container_name azure_disable_tagging
azure_fabric_token_service_url fabric_token_service_url azure_fabric_workload_host fabric_workload_host
*azure_fabric_session_token *fabric_session_token azure_fabric_cluster_identifier fabric_cluster_identifier
azure_credential_type credential_type *azure_storage_encryption_key *encryption_key azure_allow_http"""
CLIENT = """allow_http allow_invalid_certificates disable_system_certificates connect_timeout default_content_type
http1_only http2_only http2_keep_alive_interval http2_keep_alive_timeout http2_keep_alive_while_idle
http2_max_frame_size pool_idle_timeout pool_max_idle_per_host proxy_url proxy_ca_certificate proxy_excludes
randomize_addresses read_timeout timeout user_agent client_max_retries client_retry_timeout download_retry_count"""
ACCEPTED = f"{S3} {GCS} {AZURE} {CLIENT}".split()


def test_every_option_has_a_class() -> None:
    assert len(ACCEPTED) > 140
    assert not SECRET_NAMES & PUBLIC_NAMES
    for spelling in ACCEPTED:
        name = spelling.removeprefix("*")
        assert (name in SECRET_NAMES) == spelling.startswith("*") == is_secret(name) == is_secret(name.upper()), name
        assert name in SECRET_NAMES | PUBLIC_NAMES, name
        if name in UNSUPPORTED:
            assert name not in SUPPORTED
            with pytest.raises(Unsupported, match=f"the storage option {name} is not supported: "):
                check_option_names({name: "x"})
        else:
            check_option_names({name: "x"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aws_secret_acess_key", True),
        ("password", True),
        ("my_credential", True),
        ("x-signature", True),
        ("sas", True),
        ("gcs_service_token", True),
        ("their_key_id", False),
        ("colour", False),
    ],
)
def test_unknown_options_are_classified_by_their_name(name: str, expected: bool) -> None:
    assert is_secret(name) == expected
    with pytest.raises(InvalidInput):
        check_option_names({name: "x"})


def test_id_of_a_key_is_no_secret() -> None:
    for name in ("aws_access_key_id", "ACCESS_KEY_ID", "their_key_id"):
        assert is_key_id(name)
        assert not is_secret(name)


SECRETS = [
    "http://user:CANARY@host",
    "https://CANARY@host:443/x",
    "s3://me:a/b CANARY@bucket/t",
    "postgresql://host/db?password=CANARY",
    "postgresql+psycopg://host/db?user=me&sslpassword=CANARY",
    "jdbc:oracle:thin:scott/CANARY@//host:1521/x",
    "https://account.blob.core.windows.net/c?sv=2022-11-02&sig=CANARY",
    "sv=2022-11-02&ss=b&sig=CANARY",
    "?sv=2022-11-02&se=2030",
    "https://bucket.s3.amazonaws.com/t?X-Amz-Credential=CANARY",
    "https://bucket.s3.amazonaws.com/t?X-Amz-Security-Token=CANARY",
    "https://storage.googleapis.com/b/t?X-Goog-Signature=CANARY",
    "https://host/t?api_key=CANARY",
    "https%3A%2F%2Fhost%2Ft%3Fsig%3DCANARY",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=CANARY==",
    "SharedAccessSignature=CANARY",
    "sc://host:15002/;token=CANARY",
    '{"type": "service_account", "private_key": "CANARY"}',
    "-----BEGIN RSA PRIVATE KEY-----\nCANARY",
    "Bearer CANARYCANARYCANARYCANARY",
    "-Dfs.azure.client.secret=CANARY",
]
PUBLIC = [
    "eu-west-1",
    "30s",
    "https://host:9000/path",
    "abfss://container@account.dfs.core.windows.net/t",
    "s3://bucket/key=5/token=7/t.lance",
    "s3+ddb://lake/orders?ddbTableName=commits",
    "dynamodb://versions",
    "sqlite:////data/versions.db?check_same_thread=false",
    "/run/secrets/key.json",
    "arn:aws:kms:eu-west-1:111:key/abc",
    "basic pipelines of the team",
    "org.postgresql:postgresql:42.7.3",
    "",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secret_in_a_value(text: str) -> None:
    assert contains_secret(text)
    assert exposes_secret("region", text)


@pytest.mark.parametrize("text", PUBLIC)
def test_value_without_a_secret(text: str) -> None:
    assert not contains_secret(text)
    assert not exposes_secret("region", text)


def test_reference_exposes_nothing() -> None:
    assert exposes_secret("token", "x")
    for value in ("env:TOKEN", "", None):
        assert not exposes_secret("token", value)
