"""Asset dependencies: converts those of a write to the form that Dagster accepts, and the inputs of its function.

Most dependencies are `deps`. The key of a branch's ledger, `orders@dev`, has a sign that `deps` does not accept; it
becomes an input that loads nothing. An input of a function is loaded by an I/O manager, or is a Lance table, which the
write reads itself.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, get_args, runtime_checkable

import dagster as dg

from lance_assets.resources.lance import Access

Dependency: TypeAlias = dg.AssetKey | dg.AssetDep | dg.AssetSpec | dg.AssetsDefinition | str | Sequence[str]
_BRANCH_SIGN = "@"
_RESOURCE_MARK = get_args(dg.ResourceParam[object])[-1]
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@runtime_checkable
class InputTable(Protocol):
    """Table that a write reads itself, such as a `LanceTable`."""

    @property
    def dep(self) -> dg.AssetDep: ...
    @property
    def uri(self) -> str: ...
    def access(self) -> Access: ...


Input: TypeAlias = dg.AssetIn | InputTable


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Upstream assets, divided into `deps` and `ins` of `@dg.asset`."""

    deps: tuple[Dependency, ...] = ()
    ins: dict[str, dg.AssetIn] = field(default_factory=dict)

    @classmethod
    def of(cls, dependencies: Iterable[Dependency], inputs: Mapping[str, Input] | None = None) -> "Dependencies":
        """Divide the dependencies. A table among the inputs becomes a dependency, since an I/O manager need not know
        it."""
        tables = [each for each in (inputs or {}).values() if isinstance(each, InputTable)]
        ins = {name: each for name, each in (inputs or {}).items() if isinstance(each, dg.AssetIn)}
        deps: list[Dependency] = []
        for dependency in (*dependencies, *(table.dep for table in tables)):
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


def loads_value(each: Input) -> bool:
    """Return whether an input gives the function a value, and does not only order the assets."""
    return isinstance(each, InputTable) or not getattr(each.dagster_type, "is_nothing", False)


def parameters_after(function: object, positional: int) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function that follow its first ones, by name; none if it has no signature."""
    if not callable(function):
        return {}
    try:
        try:
            signature = inspect.signature(function, eval_str=True)
        except (AttributeError, NameError, SyntaxError, TypeError):  # an annotation for type checkers only
            signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as a builtin function
        return {}
    return dict(list(signature.parameters.items())[positional:])


def _required_parameters(function: object, positional: int) -> dict[str, inspect.Parameter]:
    """Return the parameters without a default that follow the first ones."""
    declared = parameters_after(function, positional) if positional else {}
    return {name: each for name, each in declared.items() if each.kind in _BY_NAME and each.default is each.empty}


def resource_names(function: object, positional: int) -> list[str]:
    """Return the parameters of the function of a write that are resources, by their annotations."""
    return [name for name, each in _required_parameters(function, positional).items() if _is_resource(each.annotation)]


def _is_resource(annotation: object) -> bool:
    is_resource_class = isinstance(annotation, type) and issubclass(annotation, dg.ConfigurableResource)
    return is_resource_class or _RESOURCE_MARK in get_args(annotation)[1:]


def input_parameters(function: object, positional: int, ins: Mapping[str, Input]) -> list[inspect.Parameter]:
    """Return the parameters of the function of a write that Dagster gives a value, as for the function of an asset.

    They are the inputs and `config`: the parameters without a default that follow the first ones, other than
    resources. An input of `ins` that the function has no parameter for gets one, too. Tables are left out, since the
    write reads them itself.
    """
    declared = {
        name: each
        for name, each in _required_parameters(function, positional).items()
        if not _is_resource(each.annotation)
    }
    names = list(declared)
    names += [name for name, each in ins.items() if name not in names and loads_value(each)]
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            annotation=_type_of(declared[name]) if name in declared else inspect.Parameter.empty,
        )
        for name in names
        if not isinstance(ins.get(name), InputTable)
    ]


def _type_of(parameter: inspect.Parameter) -> object:
    """Return the annotation, unless it is a text that could not be evaluated."""
    return inspect.Parameter.empty if isinstance(parameter.annotation, str) else parameter.annotation


def accepted_values(function: object, positional: int, values: Mapping[str, object]) -> dict[str, object]:
    """Return the values that a function has parameters for."""
    parameters = parameters_after(function, positional)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(values)
    return {name: value for name, value in values.items() if name in parameters}


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
