"""Dependencies of an asset, in the form that Dagster accepts.

Most are `deps`. The key of a branch's ledger, `orders@dev`, has a sign that `deps` does not accept; it becomes an
input that loads nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import dagster as dg

Dependency: TypeAlias = dg.AssetKey | dg.AssetDep | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]
_BRANCH_SIGN = "@"


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Upstream assets, divided into `deps` and `ins` of `@dg.asset`."""

    deps: tuple[Dependency, ...] = ()
    ins: dict[str, dg.AssetIn] = field(default_factory=dict)

    @classmethod
    def of(cls, dependencies: Iterable[Dependency]) -> "Dependencies":
        deps: list[Dependency] = []
        ins: dict[str, dg.AssetIn] = {}
        for dependency in dependencies:
            key = _asset_key(dependency)
            if key is not None and any(_BRANCH_SIGN in part for part in key.path):
                ins |= ordering_input(dependency if isinstance(dependency, dg.AssetDep) else dg.AssetDep(key))
            else:
                deps.append(dependency)
        return cls(tuple(deps), ins)


def ordering_input(dep: dg.AssetDep) -> dict[str, dg.AssetIn]:
    """Return the dependency as `@dg.asset(ins=...)`. It only orders the assets: the function gets no value for it."""
    name = "after_" + "_".join(dep.asset_key.path)
    safe = "".join(sign if sign.isalnum() and sign.isascii() else "_" for sign in name)
    return {safe: dg.AssetIn(key=dep.asset_key, partition_mapping=dep.partition_mapping, dagster_type=dg.Nothing)}


def _asset_key(dependency: Dependency) -> dg.AssetKey | None:
    match dependency:
        case dg.AssetDep():
            return dependency.asset_key
        case dg.AssetSpec():
            return dependency.key
        case dg.AssetKey():
            return dependency
        case dg.AssetsDefinition() | str():
            return None
        case _:
            return dg.AssetKey(list(dependency))
