"""What an asset comes after, as Dagster takes it: as `deps`, or, where a key has a sign that `deps` does not take, as
inputs that nothing is loaded for. The ledgers of branches have such keys, `orders@dev`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import dagster as dg

Dependency: TypeAlias = dg.AssetKey | dg.AssetDep | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]
_BRANCH_SIGN = "@"


@dataclass(frozen=True, slots=True)
class Dependencies:
    deps: tuple[Dependency, ...] = ()
    ins: dict[str, dg.AssetIn] = field(default_factory=dict)

    @classmethod
    def of(cls, dependencies: Iterable[Dependency]) -> "Dependencies":
        deps: list[Dependency] = []
        ins: dict[str, dg.AssetIn] = {}
        for each in dependencies:
            key = _asset_key(each)
            if key is not None and any(_BRANCH_SIGN in part for part in key.path):
                ins |= ordering_input(each if isinstance(each, dg.AssetDep) else dg.AssetDep(key))
            else:
                deps.append(each)
        return cls(tuple(deps), ins)


def ordering_input(dep: dg.AssetDep) -> dict[str, dg.AssetIn]:
    """The same as an input, `@dg.asset(ins=...)`; the function of the asset gets nothing for it."""
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
