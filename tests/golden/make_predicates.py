"""Ask pylance what every predicate in `predicates.json` answers, and write its answers there.

To add a predicate, put it into the file with any answer and run `python -m tests.golden.make_predicates`; run it
too after changing the table, or to see what a new pylance answers. Only this script runs pylance's planner.
"""

import json
import pathlib
import tempfile

import lance
import pyarrow as pa

from tests.golden.predicates_table import table

PLACE = pathlib.Path(__file__).with_name("predicates.json")
JSON_PLACE = PLACE.with_name("predicates_json.json")
MESSAGE_LENGTH = 160
REFUSED = "refused"

Answer = list[int] | str


def main() -> None:
    ask_predicates()
    ask_json()


def ask_predicates() -> None:
    asked = json.loads(PLACE.read_text(encoding="utf-8"))["answers"]
    with tempfile.TemporaryDirectory() as place:
        dataset = lance.write_dataset(
            table(), f"{place}/t.lance", enable_stable_row_ids=True, data_storage_version="2.2"
        )
        answers = {group: {sql: _answer(dataset, sql) for sql in sorted(asked[group])} for group in asked}
    PLACE.write_text(_written(answers), encoding="utf-8")


def _written(answers: dict[str, dict[str, Answer]]) -> str:
    """One line a predicate, so that a change of one reads as such."""
    groups = []
    for group, answered in answers.items():
        lines = ",\n".join(f"  {json.dumps(sql)}: {json.dumps(answer)}" for sql, answer in answered.items())
        groups.append(f" {json.dumps(group)}: {{\n{lines}\n }}")
    return f'{{"pylance": {json.dumps(lance.__version__)}, "answers": {{\n' + ",\n".join(groups) + "\n}}\n"


def _answer(dataset: lance.LanceDataset, sql: str) -> Answer:
    """The rows, or how it refuses: without the place in its own source where it did."""
    try:
        rows = dataset.scanner(columns=["id"], filter=sql).to_table()
    except (ValueError, OSError, RuntimeError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {str(error).partition(', /')[0]}"[:MESSAGE_LENGTH]
    return [int(row) for row in rows["id"].to_pylist()]


def ask_json() -> None:
    """The JSON functions, each over each document alone: one that does not convert fails the whole question."""
    asked = json.loads(JSON_PLACE.read_text(encoding="utf-8"))
    documents = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(asked["documents"]))
    ids = pa.array(range(len(documents)), pa.int64())
    with tempfile.TemporaryDirectory() as place:
        dataset = lance.write_dataset(pa.table({"id": ids, "js": documents}), f"{place}/t.lance")
        answers = {sql: [_value(dataset, sql, each) for each in range(len(documents))] for sql in asked["answers"]}
    lines = ",\n".join(f"  {json.dumps(sql)}: {json.dumps(answer)}" for sql, answer in answers.items())
    JSON_PLACE.write_text(
        f'{{"pylance": {json.dumps(lance.__version__)}, "documents": {json.dumps(asked["documents"], indent=1)},\n'
        f'"answers": {{\n{lines}\n}}}}\n',
        encoding="utf-8",
    )


def _value(dataset: lance.LanceDataset, sql: str, row: int) -> bool | int | float | str | None:
    try:
        found = dataset.scanner(columns={"found": sql}, filter=f"id = {row}").to_table()
    except (ValueError, OSError, RuntimeError, pa.ArrowException):
        return REFUSED
    value: bool | int | float | str | None = found["found"][0].as_py()
    return value


if __name__ == "__main__":
    main()
