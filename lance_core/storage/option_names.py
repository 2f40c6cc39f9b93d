"""Option names: every storage option that pylance and its clients of S3, Google Cloud Storage and Azure accept.

Each spelling is either an option of `Settings`, an option of the codec alone, or an option that this library does not
support. `options.py` parses options by these names, and `secret_detection.py` decides from them which options are
secret. Values are never read here.
"""

# Name of each option in `Settings`, and its accepted spellings. Messages use the first spelling.
COMMON = {
    "allow_http": ("allow_http", "aws_allow_http", "azure_allow_http", "azure_storage_allow_http"),
    "allow_invalid_certificates": ("allow_invalid_certificates",),
    "connect_timeout": ("connect_timeout",),
    "timeout": ("timeout", "request_timeout"),
    "retries": ("client_max_retries", "object_store_client_max_retries"),
    "retry_timeout": ("client_retry_timeout", "object_store_client_retry_timeout"),
    "requests_max": ("max_concurrent_requests", "object_store_max_concurrent_requests"),
    "bytes_max": ("max_concurrent_bytes", "object_store_max_concurrent_bytes"),
}
S3 = {
    "key_id": ("aws_access_key_id", "access_key_id"),
    "key": ("aws_secret_access_key", "secret_access_key"),
    "token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
    "endpoint": ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url", "aws_endpoint_url_s3"),
    "virtual_hosted": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    "unsigned": ("aws_skip_signature", "skip_signature"),
    "encryption": ("aws_server_side_encryption", "server_side_encryption"),
    "kms_key": ("aws_sse_kms_key_id", "sse_kms_key_id"),
    "bucket_key": ("aws_sse_bucket_key_enabled", "sse_bucket_key_enabled"),
    "requester_pays": ("aws_request_payer", "request_payer"),
    "single_deletes": ("aws_disable_bulk_delete", "disable_bulk_delete"),
}
GCS = {
    "key_file": (
        "google_service_account",
        "service_account",
        "google_service_account_path",
        "service_account_path",
        "google_application_credentials",
        "application_credentials",
    ),
    "key": ("google_service_account_key", "service_account_key"),
    "token": ("google_storage_token", "google_bearer_token"),
    "endpoint": ("google_base_url",),
    "unsigned": ("google_skip_signature", "skip_signature"),
}
AZURE = {
    "account": ("azure_storage_account_name", "account_name"),
    "key": (
        "azure_storage_account_key",
        "account_key",
        "azure_storage_access_key",
        "access_key",
        "azure_storage_master_key",
        "master_key",
    ),
    "sas": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "token": ("azure_storage_token", "bearer_token", "token"),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "tenant_id": (
        "azure_storage_tenant_id",
        "azure_tenant_id",
        "tenant_id",
        "azure_storage_authority_id",
        "azure_authority_id",
        "authority_id",
    ),
    "emulator": ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator"),
    "endpoint": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    "unsigned": ("azure_skip_signature", "skip_signature"),
}
OPTIONS_BY_SCHEME = {"s3": S3, "gs": GCS, "az": AZURE, "abfss": AZURE}
SECRETS = frozenset(("key_id", "key", "token", "sas", "client_secret"))
"""Options in `Settings` whose values are redacted. The id of a key grants no access, but is redacted as well."""
CODEC_ONLY = frozenset(
    (
        "download_retry_count",
        "default_content_type",
        "http1_only",
        "http2_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "randomize_addresses",
        "read_timeout",
        "user_agent",
        "aws_unsigned_payload",
        "unsigned_payload",
        "aws_checksum_algorithm",
        "checksum_algorithm",
        "aws_copy_if_not_exists",
        "copy_if_not_exists",
        "aws_disable_tagging",
        "azure_disable_tagging",
        "disable_tagging",
        "dynamodb_endpoint",
        "expires_at_millis",
        "refresh_offset_millis",
        "lance_aimd_initial_rate",
        "lance_aimd_min_rate",
        "lance_aimd_max_rate",
        "lance_aimd_decrease_factor",
        "lance_aimd_additive_increment",
        "lance_aimd_burst_capacity",
        "lance_aimd_max_retries",
        "lance_aimd_min_backoff_ms",
        "lance_aimd_max_backoff_ms",
    )
)
"""Options that only the codec uses. Our own requests work the same without them."""
_MANAGED_KEYS = "use encryption with keys that the store manages"
_MANAGED_IDENTITY = "the managed identity is used automatically if no other credential is configured"
_FROM_URI = "the URI of the table names the bucket or container; remove the option"
_OTHER_STORE = "tables live on S3, Google Cloud Storage, Azure or a local disk"
_FABRIC = "set azure_storage_endpoint, and pass an azure_storage_token"
_UNSUPPORTED_SPELLINGS = {
    ("proxy_url", "proxy_ca_certificate"): "set HTTPS_PROXY in the environment",
    ("proxy_excludes",): "set NO_PROXY in the environment",
    ("disable_system_certificates",): "name a certificate bundle in the environment",
    ("aws_s3_express", "s3_express"): "directory buckets list objects in no order; use a general purpose bucket",
    ("aws_conditional_put", "conditional_put"): (
        "commits need conditional puts and always use them; remove the option"
    ),
    ("aws_bucket", "aws_bucket_name", "google_bucket", "google_bucket_name", "bucket", "bucket_name"): _FROM_URI,
    ("azure_container_name", "container_name"): _FROM_URI,
    ("aws_sse_customer_key_base64", "sse_customer_key_base64"): _MANAGED_KEYS,
    ("azure_storage_encryption_key", "encryption_key"): _MANAGED_KEYS,
    ("aws_web_identity_token_file", "web_identity_token_file"): "set AWS_WEB_IDENTITY_TOKEN_FILE in the environment",
    ("aws_role_arn", "role_arn"): "set AWS_ROLE_ARN in the environment",
    ("aws_role_session_name", "role_session_name"): "set AWS_ROLE_SESSION_NAME in the environment",
    ("aws_endpoint_url_sts", "endpoint_url_sts"): "set AWS_ENDPOINT_URL_STS in the environment",
    ("aws_imdsv1_fallback", "imdsv1_fallback"): (
        "credentials of the machine are read with version 2 of the metadata service only"
    ),
    ("aws_metadata_endpoint", "metadata_endpoint"): "set AWS_EC2_METADATA_SERVICE_ENDPOINT in the environment",
    ("aws_container_credentials_relative_uri", "container_credentials_relative_uri"): (
        "set AWS_CONTAINER_CREDENTIALS_RELATIVE_URI in the environment"
    ),
    ("aws_container_credentials_full_uri", "container_credentials_full_uri"): (
        "set AWS_CONTAINER_CREDENTIALS_FULL_URI in the environment"
    ),
    ("aws_container_authorization_token_file", "container_authorization_token_file"): (
        "set AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE in the environment"
    ),
    ("aws_provider_scheme",): "credentials are found in the usual order; remove the option",
    ("use_opendal",): "remove the option",
    ("base_url",): "set google_base_url",
    ("azure_federated_token_file", "federated_token_file"): "set AZURE_FEDERATED_TOKEN_FILE in the environment",
    ("azure_storage_authority_host", "azure_authority_host", "authority_host"): (
        "set AZURE_AUTHORITY_HOST in the environment"
    ),
    ("azure_use_azure_cli", "use_azure_cli"): (
        "the Azure CLI is used automatically if no other credential is configured"
    ),
    ("azure_msi_endpoint", "azure_identity_endpoint", "identity_endpoint", "msi_endpoint"): _MANAGED_IDENTITY,
    ("azure_object_id", "object_id", "azure_msi_resource_id", "msi_resource_id"): _MANAGED_IDENTITY,
    ("azure_credential_type", "credential_type"): "the type of credential follows from the options; remove the option",
    ("azure_use_fabric_endpoint", "use_fabric_endpoint"): "set azure_storage_endpoint",
    ("azure_fabric_token_service_url", "fabric_token_service_url"): _FABRIC,
    ("azure_fabric_workload_host", "fabric_workload_host"): _FABRIC,
    ("azure_fabric_session_token", "fabric_session_token"): _FABRIC,
    ("azure_fabric_cluster_identifier", "fabric_cluster_identifier"): _FABRIC,
    ("hf_token", "hf_root", "hf_revision"): _OTHER_STORE,
    ("oss_endpoint", "oss_region"): _OTHER_STORE,
    ("oss_access_key_id", "oss_secret_access_key", "oss_security_token"): _OTHER_STORE,
    ("cos_endpoint", "cos_secret_id", "cos_secret_key", "cos_enable_versioning"): _OTHER_STORE,
    ("tos_endpoint", "tos_region"): _OTHER_STORE,
    ("tos_access_key_id", "tos_secret_access_key", "tos_security_token"): _OTHER_STORE,
}
UNSUPPORTED = {name: advice for names, advice in _UNSUPPORTED_SPELLINGS.items() for name in names}
"""Advice for each option that pylance accepts and this library does not."""
SUPPORTED = CODEC_ONLY | {
    spelling for names in (COMMON, S3, GCS, AZURE) for spellings in names.values() for spelling in spellings
}
_UNSUPPORTED_SECRETS = (
    "aws_sse_customer_key_base64",
    "sse_customer_key_base64",
    "azure_storage_encryption_key",
    "encryption_key",
    "azure_fabric_session_token",
    "fabric_session_token",
    "hf_token",
    "oss_secret_access_key",
    "oss_security_token",
    "cos_secret_key",
    "tos_secret_access_key",
    "tos_security_token",
)
KEY_IDS = frozenset((*S3["key_id"], "oss_access_key_id", "tos_access_key_id", "cos_secret_id"))
"""Options with the id of a key. It names a key and grants no access by itself."""
SECRET_NAMES = frozenset(
    spelling
    for names in (S3, GCS, AZURE)
    for option in SECRETS & names.keys()
    for spelling in names[option]
    if spelling not in KEY_IDS
) | frozenset(_UNSUPPORTED_SECRETS)
"""Known options whose value is a secret."""
PUBLIC_NAMES = (SUPPORTED | UNSUPPORTED.keys()) - SECRET_NAMES
"""Known options whose value is no secret by its name; a URL among them may still contain one."""
