"""What can be done to a table, by both libraries: one function for each kind of step, and the registry of them.

A function is given the model and says how each library is told; None where there is nothing of that kind to do just
now. A new kind is a function and a line in `KINDS`. What changes a schema or settings is in `schema_steps.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.interop import schema_steps, sql_generator
from tests.interop.statement_pair import Told
from tests.interop.table_model import UNKNOWN, Model


def create(model: Model, v2_names: bool) -> Told:
    model.columns = model.new_columns()
    model.written = [set(model.columns)]
    metadata = model.random.choice(("", "", "", "{'about': 'this'}"))
    count = model.random.choice((0, 1, 4, 7, 12, 20))
    data = model.rows(model.columns, count, metadata)
    if not count and model.random.random() < 0.5:
        data = f"schema({model.columns}{', ' + metadata if metadata else ''})"
    per_file = f"max_rows_per_file={_per_file(model)}"
    theirs = (
        f"lance.write_dataset({_as_rows(data)}, uri, {per_file}, data_storage_version={model.storage_version!r}, "
        f"enable_stable_row_ids={model.stable}, enable_v2_manifest_paths={v2_names})"
    )
    ours = (
        f"Table.create(uri, {data}, {per_file}, storage_version={model.storage_version!r}, "
        f"stable_row_ids={model.stable}, durable=False)"
    )
    # Tables of ours have V2 names; those with V1 names are made by pylance, and written to by both.
    return Told(ours if v2_names else theirs, theirs)


def append(model: Model) -> Told | None:
    return _append(model, model.known) if model.known else None


def append_some_columns(model: Model) -> Told | None:
    needed = [name for name, spec in model.columns.items() if spec.endswith("!")]
    optional = [name for name in model.known if name not in needed]
    if not optional:
        return None
    chosen = {*needed, *model.some(optional)}
    return _append(model, {name: spec for name, spec in model.known.items() if name in chosen})


def append_reordered(model: Model) -> Told:
    items = list(model.known.items())
    model.random.shuffle(items)
    return _append(model, dict(items))


def _append(model: Model, columns: dict[str, str]) -> Told:
    model.written.append(set(columns))
    data, per_file = model.rows(columns), f"max_rows_per_file={_per_file(model)}"
    return Told(
        f"table.append({data}, {per_file})",
        f'lance.write_dataset({data}, uri, mode="append", {per_file})',
    )


def overwrite(model: Model) -> Told:
    if model.random.random() < 0.6 or not model.known:
        model.columns = model.new_columns()
    else:
        model.columns = model.known
    model.written = [set(model.columns)]
    metadata = model.random.choice(("", "", "{'about': 'other'}"))
    data, per_file = model.rows(model.columns, metadata=metadata), f"max_rows_per_file={_per_file(model)}"
    return Told(
        f"table.overwrite({data}, {per_file})",
        f'lance.write_dataset({data}, uri, mode="overwrite", {per_file})',
    )


def delete(model: Model) -> Told:
    return _both(f"delete({sql_generator.condition(model)!r})")


def update(model: Model) -> Told | None:
    names = model.some(model.others())
    values = {name: sql_generator.value(model, name, names) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return None
    where = "" if model.random.random() < 0.2 else f", where={sql_generator.condition(model)!r}"
    return _both(f"update({given}{where})")


def upsert(model: Model) -> Told | None:
    key = model.key
    if key is None:
        return None
    random = model.random
    matched = random.choice(("update", "update", "update", "delete", "ignore", "fail"))
    insert = random.random() < 0.6
    unmatched: bool | str = random.choice((False, False, False, True, sql_generator.condition(model)))
    if not insert and matched in ("ignore", "fail") and not unmatched:
        insert = True
    condition = None
    if matched == "update" and random.random() < 0.25:
        condition = f"{random.choice(('source', 'target'))}.{sql_generator.quoted(key)} % 2 = {random.randrange(2)}"
    columns = model.known
    if matched != "update" and not insert:
        columns = {key: columns[key]}
    elif random.random() < 0.3:
        optional = [name for name, spec in columns.items() if name != key and not spec.endswith("!")]
        kept = model.some(optional, 0)
        columns = {name: spec for name, spec in columns.items() if name == key or spec.endswith("!") or name in kept}
    if matched == "update" and list(columns) == [key]:
        return None  # keys alone update nothing; pylance moves the rows nevertheless
    model.written.append(set(columns))
    old = random.sample(range(model.keys), min(model.keys, random.choice((0, 1, 2, 4))))
    new = [model.keys + number for number in range(random.choice((0, 1, 3)))]
    if not old and not new and any(columns != model.columns for columns, _written in model.past):
        return None  # of rows that are not there pylance does not mind the types
    model.keys += len(new)
    keys = old + new
    random.shuffle(keys)
    data = model.rows_of(columns, str(keys))
    options = [f"matched={matched!r}", f"insert={insert}"]
    calls = {"update": f".when_matched_update_all({condition!r})" if condition else ".when_matched_update_all()"}
    calls |= {"delete": ".when_matched_delete()", "fail": ".when_matched_fail()", "ignore": ""}
    theirs = f"dataset.merge_insert({key!r}){calls[matched]}"
    if condition:
        options.append(f"matched_if={condition!r}")
    if insert:
        theirs += ".when_not_matched_insert_all()"
    if unmatched:
        options.append(f"delete_unmatched={unmatched!r}")
        theirs += f".when_not_matched_by_source_delete({'' if unmatched is True else repr(unmatched)})"
    return Told(f"table.upsert({data}, {key!r}, {', '.join(options)})", f"{theirs}.execute({data})")


def compact(model: Model) -> Told:
    target = model.random.choice((2, 5, 10, 100))
    materialize = model.random.random() < 0.8
    return Told(
        f"table.compact(target_rows={target}, materialize_deletions={materialize})",
        f"dataset.optimize.compact_files(target_rows_per_fragment={target}, materialize_deletions={materialize}, "
        "num_threads=1)",
    )


def restore(model: Model) -> Told:
    then = model.random.randrange(model.step)
    model.go_back(then)
    return Told(f"table.restore(after({then}))", f"dataset.checkout_version(after({then})).restore()")


def append_to_an_old_version(model: Model) -> Told | None:
    """Both find out what came between, and may refuse."""
    then = f"after({max(0, model.step - model.random.randint(2, 4))})"
    data = model.rows(model.known)
    return Told(
        f"table.at({then}).append({data}, retries=1)",
        f'lance.write_dataset({data}, dataset.checkout_version({then}), mode="append")',
    )


def delete_from_an_old_version(model: Model) -> Told:
    then = f"after({max(0, model.step - model.random.randint(2, 3))})"
    told = f"delete({sql_generator.condition(model)!r})"
    return Told(f"table.at({then}).{told}", f"dataset.checkout_version({then}).{told}")


def tag(model: Model) -> Told:
    random = model.random
    name = random.choice((*model.tags, f"tag-{model.step}"))
    if name in model.tags:
        if random.random() < 0.4:
            model.tags.remove(name)
            return _both(f"tags.delete({name!r})")
        return _both(f"tags.update({name!r}, after({random.randrange(model.step)}))")
    model.tags.append(name)
    return _both(f"tags.create({name!r}, after({random.randrange(model.step)}))")


def branch(model: Model) -> Told:
    random = model.random
    if model.branches and random.random() < 0.75:
        name = random.choice(list(model.branches))
        if random.random() < 0.15:
            del model.branches[name]
            return _both(f"branches.delete({name!r})")
        if random.random() < 0.5:
            return _both(f"delete({sql_generator.condition(model)!r})", on=name)
        data = model.rows({column: spec for column, spec in model.branches[name].items() if spec != UNKNOWN})
        return Told(
            f"on({name!r}).append({data})",
            f'lance.write_dataset({data}, on({name!r}), mode="append")',
        )
    name = random.choice((f"branch-{model.step}", f"team/branch-{model.step}"))
    then = random.randrange(model.step)
    model.branches[name] = dict(model.past[then][0])
    return Told(
        f"table.branches.create({name!r}, after({then}))",
        f"dataset.create_branch({name!r}, after({then}))",
    )


@dataclass(frozen=True)
class Kind:
    name: str
    weight: int
    """How often, beside the others."""
    tell: Callable[[Model], Told | None]


KINDS: tuple[Kind, ...] = (
    Kind("append", 10, append),
    Kind("append some columns", 6, append_some_columns),
    Kind("append reordered", 3, append_reordered),
    Kind("overwrite", 4, overwrite),
    Kind("delete", 14, delete),
    Kind("update", 10, update),
    Kind("upsert", 14, upsert),
    Kind("compact", 8, compact),
    Kind("restore", 4, restore),
    Kind("append to an old version", 3, append_to_an_old_version),
    # Weighs nothing: pylance plans it anew on the newest version, and says so; which pairs it stands beside is compared
    # in tests/lance_core/transactions.
    Kind("delete from an old version", 0, delete_from_an_old_version),
    Kind("tag", 3, tag),
    Kind("branch", 4, branch),
    *(Kind(name, weight, tell) for name, weight, tell in schema_steps.KINDS),
)
"""Those of indices are in `index_steps.py`, for programs of their own: with them the two may cover, and so
compact, other fragments, and what is compared exactly here would not be any more."""


def _per_file(model: Model) -> int:
    return model.random.choice((2, 3, 5, 8, 100))


def _as_rows(data: str) -> str:
    return f"pa.Table.from_batches([], {data})" if data.startswith("schema(") else data


def _both(call: str, on: str | None = None) -> Told:
    if on is not None:
        return Told(f"on({on!r}).{call}", f"on({on!r}).{call}")
    return Told(f"table.{call}", f"dataset.{call}")
