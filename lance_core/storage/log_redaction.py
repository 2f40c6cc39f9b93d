"""Secrets kept out of what clients of stores write into logs.

At their most talkative they log whole requests, with session tokens in their headers. Whoever turns that on to look for
a fault wants the requests, not the tokens. So the loggers that are known to do it get a filter, which puts asterisks in
the place of every secret that this process has been given for a store. Nothing else about logging is touched.
"""

import logging
import traceback
from collections.abc import Iterable

from lance_core.storage.options import hidden

_TALKATIVE = (
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
)
_KEPT = 1024
_NO_TEXT = "a message whose arguments do not fit it; left out, since nobody can tell what is secret in them"
_NOT_A_TEXT = (
    ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What arguments that do not fit raise, or such as fail to say what they are."""
_known: dict[str, None] = {}
"""In the order in which they came: those that are renewed push out the oldest."""


class _Mask(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except _NOT_A_TEXT:  # whoever logs goes on, as if nobody looked
            text, record.msg, record.args = "", _NO_TEXT, None
        masked = hidden(text, _known)
        if masked != text:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, trace = record.exc_info
            told = "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")
            if (masked := hidden(told, _known)) != told:
                record.exc_info, record.exc_text = None, masked
        return True


_MASK = _Mask()


def redact_in_logs(secrets: Iterable[str]) -> None:
    for secret in secrets:
        _known[secret] = None
    while len(_known) > _KEPT:
        del _known[next(iter(_known))]
    for name in _TALKATIVE:
        logging.getLogger(name).addFilter(_MASK)
