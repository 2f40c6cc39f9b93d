"""Literal secrets: refuses configuration that contains a secret itself, since Dagster stores and displays it.

When Dagster loads definitions, it serializes the configuration of resources into snapshots, runs and pages. So each
class of this project checks its arguments on construction. It does so before pydantic, whose errors repeat values. A
secret is a reference instead: a `dagster.EnvVar`, `env:NAME`, or a `provider` among the storage options.
"""

import difflib
import os
from collections.abc import Collection, Mapping

import dagster as dg

from lance_core import InvalidInput
from lance_core.tasks.credentials import check_storage_option_names, contains_secret, exposes_secret, is_reference

_references: set[tuple[str, str]] = set()
"""Argument and environment variable of each `EnvVar` that this process has passed to a class of this project."""


def check_arguments(owner: str, fields: Collection[str], arguments: Mapping[str, object]) -> None:
    """Raise for an argument that the class does not have, and for a string that contains a secret.

    The message contains no value: an argument with a typo in its name may be a secret too.
    """
    for name, value in arguments.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            remedy = f"did you mean {near[0]}=?" if near else f"it has {', '.join(f'{field}=' for field in fields)}"
            raise InvalidInput(f"{owner} has no argument {name}=; {remedy}")
        if is_literal(value, f"{name}=") and contains_secret(str(value)):
            raise InvalidInput(
                f"{name}= of {owner} contains a secret, such as a password or a signature, and Dagster displays the "
                'configuration of resources; pass it as dagster.EnvVar("NAME") and set that variable where this code '
                "runs"
            )


def check_storage_options(options: object, argument: str) -> None:
    """Raise for storage options that are not a mapping of strings, that no store has, or that contain a secret.

    `argument` names them in messages.
    """
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(text, str) for pair in options.items() for text in pair):
        raise InvalidInput(f"{argument} must be a mapping of strings to strings, or to dagster.EnvVar")
    check_storage_option_names(options)
    for name, value in options.items():
        if is_literal(value, name) and exposes_secret(name, value):
            raise InvalidInput(
                f"the storage option {name!r} is a literal secret, and Dagster displays the configuration of "
                'resources; pass it as dagster.EnvVar("NAME") or as "env:NAME", and set that variable where this code '
                "and Spark's workers run"
            )


def check_source_options(options: object, argument: str) -> None:
    """Raise for options of source files that are not a mapping, or that contain a secret at any depth.

    Their names are not checked, because the library that defines them is known only when the files are listed.
    """
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidInput(f"{argument} must be a mapping from names of options to their values, or to dagster.EnvVar")
    for name, value in options.items():
        if isinstance(value, Mapping):
            check_source_options(value, f"{argument}, {name!r},")
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            if is_literal(item, name) and exposes_secret(name, item):
                raise InvalidInput(
                    f"the option {name!r} in {argument} is a literal secret, and Dagster displays definitions; pass it "
                    'as dagster.EnvVar("NAME") or as "env:NAME", and set that variable where this code and Spark\'s '
                    "workers run"
                )


def is_literal(value: object, argument: str) -> bool:
    """Return whether Dagster would display the value: the code contains it or has read it from the environment itself.

    Dagster also recreates a resource with the value of an `EnvVar`. Such a value is recognized as the current value of
    a variable that an `EnvVar` passed to the same argument before.
    """
    if isinstance(value, dg.EnvVar):
        _references.add((argument, value.env_var_name))
        return False
    return (
        isinstance(value, str)
        and not is_reference(value)
        and all(value != os.environ.get(name) for known, name in _references if known == argument)
    )
