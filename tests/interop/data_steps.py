"""Step generators: one function for each step that changes the rows of a table, and the registry of all of them.

A function reads and updates the model and returns the statements of both libraries, or `None` if the step is impossible
in the present state. A new step is a function and a line in `STEP_GENERATORS`. Steps that change the schema or settings
are in `schema_steps.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.interop import schema_steps, sql_generator
from tests.interop.statement_pair import StatementPair, same_call
from tests.interop.table_model import UNKNOWN, TableModel


def create(model: TableModel, v2_names: bool) -> StatementPair:
    model.columns = model.new_columns()
    model.written_columns = [set(model.columns)]
    metadata = model.random.choice(("", "", "", "{'about': 'this'}"))
    count = model.random.choice((0, 1, 4, 7, 12, 20))
    data = model.new_rows(model.columns, count, metadata)
    if not count and model.random.random() < 0.5:
        data = f"make_schema({model.columns}{', ' + metadata if metadata else ''})"
    per_file = f"max_rows_per_file={_choose_rows_per_file(model)}"
    theirs = (
        f"lance.write_dataset({_as_table(data)}, uri, {per_file}, data_storage_version={model.storage_version!r}, "
        f"enable_stable_row_ids={model.stable_row_ids}, enable_v2_manifest_paths={v2_names})"
    )
    ours = (
        f"Table.create(uri, {data}, {per_file}, storage_version={model.storage_version!r}, "
        f"stable_row_ids={model.stable_row_ids}, durable=False)"
    )
    # Our library creates tables with V2 names only, so pylance creates the tables with V1 names; both write to them.
    return StatementPair(ours if v2_names else theirs, theirs)


def append(model: TableModel) -> StatementPair | None:
    return _append(model, model.usable_columns) if model.usable_columns else None


def append_some_columns(model: TableModel) -> StatementPair | None:
    required = [name for name, spec in model.columns.items() if spec.endswith("!")]
    optional = [name for name in model.usable_columns if name not in required]
    if not optional:
        return None
    chosen = {*required, *model.choose_some(optional)}
    return _append(model, {name: spec for name, spec in model.usable_columns.items() if name in chosen})


def append_reordered(model: TableModel) -> StatementPair:
    items = list(model.usable_columns.items())
    model.random.shuffle(items)
    return _append(model, dict(items))


def _append(model: TableModel, columns: dict[str, str]) -> StatementPair:
    model.written_columns.append(set(columns))
    data, per_file = model.new_rows(columns), f"max_rows_per_file={_choose_rows_per_file(model)}"
    return StatementPair(
        f"table.append({data}, {per_file})",
        f'lance.write_dataset({data}, uri, mode="append", {per_file})',
    )


def overwrite(model: TableModel) -> StatementPair:
    if model.random.random() < 0.6 or not model.usable_columns:
        model.columns = model.new_columns()
    else:
        model.columns = model.usable_columns
    model.written_columns = [set(model.columns)]
    metadata = model.random.choice(("", "", "{'about': 'other'}"))
    data, per_file = (
        model.new_rows(model.columns, metadata=metadata),
        f"max_rows_per_file={_choose_rows_per_file(model)}",
    )
    return StatementPair(
        f"table.overwrite({data}, {per_file})",
        f'lance.write_dataset({data}, uri, mode="overwrite", {per_file})',
    )


def delete(model: TableModel) -> StatementPair:
    return same_call(f"delete({sql_generator.generate_condition(model)!r})")


def update(model: TableModel) -> StatementPair | None:
    names = model.choose_some(model.columns_without_key())
    values = {name: sql_generator.generate_value(model, name, names) for name in names}
    assignments = {name: value for name, value in values.items() if value is not None}
    if not assignments:
        return None
    where = "" if model.random.random() < 0.2 else f", where={sql_generator.generate_condition(model)!r}"
    return same_call(f"update({assignments}{where})")


def upsert(model: TableModel) -> StatementPair | None:
    key = model.key
    if key is None:
        return None
    random = model.random
    matched = random.choice(("update", "update", "update", "delete", "ignore", "fail"))
    insert = random.random() < 0.6
    unmatched: bool | str = random.choice((False, False, False, True, sql_generator.generate_condition(model)))
    if not insert and matched in ("ignore", "fail") and not unmatched:
        insert = True
    condition = None
    if matched == "update" and random.random() < 0.25:
        condition = f"{random.choice(('source', 'target'))}.{sql_generator.quote(key)} % 2 = {random.randrange(2)}"
    columns = model.usable_columns
    if matched != "update" and not insert:
        columns = {key: columns[key]}
    elif random.random() < 0.3:
        optional = [name for name, spec in columns.items() if name != key and not spec.endswith("!")]
        chosen = model.choose_some(optional, 0)
        columns = {name: spec for name, spec in columns.items() if name == key or spec.endswith("!") or name in chosen}
    if matched == "update" and list(columns) == [key]:
        return None  # data with keys alone updates nothing, but pylance moves the rows (test_pylance_defects.py)
    model.written_columns.append(set(columns))
    old_keys = random.sample(range(model.key_count), min(model.key_count, random.choice((0, 1, 2, 4))))
    new_keys = [model.key_count + number for number in range(random.choice((0, 1, 3)))]
    if not old_keys and not new_keys and any(columns != model.columns for columns, _written in model.past):
        return None  # pylance does not check the types of data without rows
    model.key_count += len(new_keys)
    keys = old_keys + new_keys
    random.shuffle(keys)
    data = model.rows_with_keys(columns, str(keys))
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
    return StatementPair(f"table.upsert({data}, {key!r}, {', '.join(options)})", f"{theirs}.execute({data})")


def compact(model: TableModel) -> StatementPair:
    target = model.random.choice((2, 5, 10, 100))
    materialize = model.random.random() < 0.8
    return StatementPair(
        f"table.compact(target_rows={target}, materialize_deletions={materialize})",
        f"dataset.optimize.compact_files(target_rows_per_fragment={target}, materialize_deletions={materialize}, "
        "num_threads=1)",
    )


def restore(model: TableModel) -> StatementPair:
    step = model.random.randrange(model.step)
    model.go_back(step)
    return StatementPair(f"table.restore(after({step}))", f"dataset.checkout_version(after({step})).restore()")


def append_to_old_version(model: TableModel) -> StatementPair | None:
    """Either library detects the concurrent commits and may refuse."""
    version = f"after({max(0, model.step - model.random.randint(2, 4))})"
    data = model.new_rows(model.usable_columns)
    return StatementPair(
        f"table.at({version}).append({data}, retries=1)",
        f'lance.write_dataset({data}, dataset.checkout_version({version}), mode="append")',
    )


def delete_from_old_version(model: TableModel) -> StatementPair:
    version = f"after({max(0, model.step - model.random.randint(2, 3))})"
    call = f"delete({sql_generator.generate_condition(model)!r})"
    return StatementPair(f"table.at({version}).{call}", f"dataset.checkout_version({version}).{call}")


def tag(model: TableModel) -> StatementPair:
    random = model.random
    name = random.choice((*model.tags, f"tag-{model.step}"))
    if name in model.tags:
        if random.random() < 0.4:
            model.tags.remove(name)
            return same_call(f"tags.delete({name!r})")
        return same_call(f"tags.update({name!r}, after({random.randrange(model.step)}))")
    model.tags.append(name)
    return same_call(f"tags.create({name!r}, after({random.randrange(model.step)}))")


def branch(model: TableModel) -> StatementPair:
    random = model.random
    if model.branches and random.random() < 0.75:
        name = random.choice(list(model.branches))
        if random.random() < 0.15:
            del model.branches[name]
            return same_call(f"branches.delete({name!r})")
        if random.random() < 0.5:
            return same_call(f"delete({sql_generator.generate_condition(model)!r})", branch=name)
        data = model.new_rows({column: spec for column, spec in model.branches[name].items() if spec != UNKNOWN})
        return StatementPair(
            f"on({name!r}).append({data})",
            f'lance.write_dataset({data}, on({name!r}), mode="append")',
        )
    name = random.choice((f"branch-{model.step}", f"team/branch-{model.step}"))
    step = random.randrange(model.step)
    model.branches[name] = dict(model.past[step][0])
    return StatementPair(
        f"table.branches.create({name!r}, after({step}))",
        f"dataset.create_branch({name!r}, after({step}))",
    )


@dataclass(frozen=True)
class StepGenerator:
    name: str
    weight: int
    """Probability of the step, relative to the others."""
    generate: Callable[[TableModel], StatementPair | None]


STEP_GENERATORS: tuple[StepGenerator, ...] = (
    StepGenerator("append", 10, append),
    StepGenerator("append some columns", 6, append_some_columns),
    StepGenerator("append reordered", 3, append_reordered),
    StepGenerator("overwrite", 4, overwrite),
    StepGenerator("delete", 14, delete),
    StepGenerator("update", 10, update),
    StepGenerator("upsert", 14, upsert),
    StepGenerator("compact", 8, compact),
    StepGenerator("restore", 4, restore),
    StepGenerator("append to an old version", 3, append_to_old_version),
    # Its weight is 0: pylance replans it on the newest version and records that. The tests in
    # tests/lance_core/transactions compare which pairs of operations conflict.
    StepGenerator("delete from an old version", 0, delete_from_old_version),
    StepGenerator("tag", 3, tag),
    StepGenerator("branch", 4, branch),
    *(StepGenerator(*generator) for generator in schema_steps.STEP_GENERATORS),
)
"""Steps that change indices (`index_steps.py`) occur in separate programs only: the two libraries may cover, and thus
compact, different fragments, so the exact comparison of other programs does not apply to them."""


def _choose_rows_per_file(model: TableModel) -> int:
    return model.random.choice((2, 3, 5, 8, 100))


def _as_table(data: str) -> str:
    return f"pa.Table.from_batches([], {data})" if data.startswith("make_schema(") else data
