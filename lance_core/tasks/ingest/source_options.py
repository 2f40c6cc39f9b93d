"""Source options: choose the client that reads a source file, and the options that apply to the file.

    /landing/a.csv, file:///landing/a.csv        the local disk
    s3://, gs://, az://, abfss://                 the clients of tables, with options in Lance's spelling
    the same with options in fsspec's spelling    fsspec (`key`, `anon`, `client_kwargs`, ...)
    https://, sftp://, hf://, zip://...::...      fsspec, and every other protocol that it knows

Options apply to all files, or to those of one protocol: `{"sftp": {"username": "me"}, "s3": {"aws_region": "x"}}`.
Start with `SourceClient.of`.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lance_core.errors import InvalidInput
from lance_core.storage.factory import without_secrets
from lance_core.storage.fsspec_files import known_protocols, protocols_of
from lance_core.storage.option_names import SUPPORTED, UNSUPPORTED
from lance_core.storage.options import PROVIDER, options_for
from lance_core.storage.secret_detection import contains_secret

SourceOptions = Mapping[str, object]
_STORE_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "abfss",
    "abfss": "abfss",
}
"""Scheme of the object store for each scheme of a source."""
_LOCAL_SCHEMES = ("file", "local")
_PROCESS_PROTOCOLS = frozenset({"memory"})
"""Protocols of files that exist in one process only."""
_LANCE_PREFIXES = ("aws_", "google_", "azure_")
_LANCE_NAMES = SUPPORTED | UNSUPPORTED.keys() | {PROVIDER}


class SourceKind(enum.Enum):
    LOCAL = "a local file"
    STORE = "an object of a store that can hold tables"
    FSSPEC = "a file that fsspec reaches"


@dataclass(frozen=True, slots=True)
class SourceClient:
    """Client for a file, a directory or a glob."""

    kind: SourceKind
    uri: str
    """URI in the spelling that identifies files."""
    options: SourceOptions = field(repr=False)

    @classmethod
    def of(cls, uri: str, options: SourceOptions, *, argument: str = "source_options") -> "SourceClient":
        scheme, separator, rest = uri.partition("://")
        is_chain = "::" in scheme
        scheme = scheme.lower() if separator else ""
        if not separator or (scheme in _LOCAL_SCHEMES and "::" not in rest):
            return cls(SourceKind.LOCAL, f"file://{rest}" if scheme == "local" else uri, {})
        if contains_secret(uri):
            raise InvalidInput(
                f"{without_secrets(uri)} contains a password or a signature, which the table would record with the "
                f"name of the file; pass it in {argument}= instead"
            )
        applicable = _applicable_options(uri, options)
        store_scheme = _STORE_SCHEMES.get(scheme)
        if store_scheme is not None and "::" not in rest and _is_lance_spelling(store_scheme, applicable):
            return cls(SourceKind.STORE, f"{store_scheme}://{rest}", applicable)
        if is_chain:
            return cls(SourceKind.FSSPEC, uri, applicable)
        path = rest.lstrip("/") if scheme == "memory" else rest  # memory:// has no hosts
        return cls(SourceKind.FSSPEC, f"{scheme}://{path}", applicable)

    @property
    def store_options(self) -> dict[str, str]:
        """Options of a client of tables."""
        for name, value in self.options.items():
            if name.lower() in _LANCE_NAMES and not isinstance(value, str):
                raise InvalidInput(
                    f"the option {name!r} for {without_secrets(self.uri)} must be a string, as in storage_options, not "
                    f"a {type(value).__name__}"
                )
        return {name: value if isinstance(value, str) else "" for name, value in self.options.items()}


def inherited_options(options: Mapping[str, str], *, table: str, files: Sequence[str]) -> SourceOptions:
    """Return the options of a table that apply to files on object stores, by scheme. Other files inherit none."""
    by_scheme: dict[str, SourceOptions] = {}
    for file in files:
        scheme = _STORE_SCHEMES.get(file.partition("://")[0].lower())
        if scheme is not None and scheme not in by_scheme:
            by_scheme[scheme] = options_for(options, own=table, other=f"{scheme}://{file.partition('://')[2]}")
    return by_scheme


def check_source_options(options: object, argument: str = "source_options") -> None:
    """Raise unless the options are a mapping whose names are strings. The message contains no value."""
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidInput(f"{argument}= must be a mapping from names of options to their values")


def is_in_this_process(uri: str) -> bool:
    """Return whether a file exists in this process only, so that other processes do not find it."""
    return not _PROCESS_PROTOCOLS.isdisjoint(protocols_of(uri))


def check_shared(uris: Sequence[str], *, argument: str) -> None:
    """Raise `InvalidInput` for a location that exists in this process only, so that workers do not find it."""
    for uri in uris:
        if local := _PROCESS_PROTOCOLS.intersection(protocols_of(uri)):
            raise InvalidInput(
                f"{argument}= is {without_secrets(uri)}, and {min(local)}:// exists in one process only, which the "
                "workers are not; use a directory or an object store that the driver and all workers reach"
            )


def _applicable_options(uri: str, options: SourceOptions) -> SourceOptions:
    """Return the options for a URI: those for all files, and those for its protocols."""
    protocols = protocols_of(uri)
    groups = {name: value for name, value in options.items() if isinstance(value, Mapping) and _is_protocol(name)}
    common = {name: value for name, value in options.items() if name not in groups}
    first = _STORE_SCHEMES.get(protocols[0], protocols[0])
    own = [value for name, value in groups.items() if _STORE_SCHEMES.get(name, name) == first]
    chained = {name: value for name, value in groups.items() if name in protocols[1:]}
    return {**common, **{key: value for group in own for key, value in group.items()}, **chained}


def _is_protocol(name: str) -> bool:
    return name in _STORE_SCHEMES or name in known_protocols()


def _is_lance_spelling(scheme: str, options: SourceOptions) -> bool:
    names = [name.lower() for name in options]
    if any(name.startswith(_LANCE_PREFIXES) for name in names):
        return True
    is_fsspec_token = scheme == "gs" and "token" in names  # for S3 and Azure, `token` means the same in both spellings
    return (
        not is_fsspec_token
        and all(name in _LANCE_NAMES for name in names)
        and all(isinstance(value, str) for value in options.values())
    )
