"""Log redaction: removes secrets from what the client libraries of stores log.

At debug level they log whole requests, with session tokens in the headers. A user who debugs a problem needs the
requests, not the tokens. So the loggers known to do this get a filter that replaces every secret that this process
has received for a store by asterisks. Logging is not changed otherwise.
"""

import logging
import traceback
from collections.abc import Iterable

from lance_core.storage.options import redact

_VERBOSE_LOGGERS = (
    "botocore.auth",
    "botocore.awsrequest",
    "botocore.client",
    "botocore.endpoint",
    "botocore.hooks",
    "botocore.httpchecksum",
    "botocore.httpsession",
    "botocore.parsers",
    "botocore.regions",
    "botocore.retries.standard",
    "botocore.retryhandler",
    "boto3.resources.action",
    "s3transfer.utils",
    "urllib3.connectionpool",
    "google.auth.transport.requests",
    "gcsfs",
    "azure.core.pipeline.policies.http_logging_policy",
    "azure.identity",
    "fsspec.http",
    "fsspec.sftp",
    "paramiko.transport",
    "s3fs",
)
_SECRETS_MAX = 1024
_UNFORMATTABLE = "message omitted: its arguments do not match its format, so secrets in it could not be redacted"
_FORMAT_ERRORS = (
    ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors raised by arguments that do not match the format, or by the `__str__` of an argument."""
_secrets: dict[str, None] = {}
"""Known secrets in the order of arrival, so that renewed credentials evict the oldest ones."""


class _RedactingFilter(logging.Filter):
    """Filter that redacts the message and the traceback of a record. It drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except _FORMAT_ERRORS:  # a logging call must not fail because of the filter
            text, record.msg, record.args = "", _UNFORMATTABLE, None
        masked = redact(text, _secrets)
        if masked != text:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[0] is not None:
            error_type, error, trace = record.exc_info
            formatted = "".join(traceback.format_exception(error_type, error, trace)).rstrip("\n")
            if (masked := redact(formatted, _secrets)) != formatted:
                record.exc_info, record.exc_text = None, masked
        return True


_FILTER = _RedactingFilter()


def redact_in_logs(secrets: Iterable[str]) -> None:
    """Remember secrets, and redact them in everything that the known loggers write from now on."""
    for secret in secrets:
        _secrets[secret] = None
    while len(_secrets) > _SECRETS_MAX:
        del _secrets[next(iter(_secrets))]
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
