"""Golden predicate generator: evaluates every predicate of `predicates.json` with pylance and writes the answers
there.

To add a predicate, put it into the file with any answer and run `python -m tests.golden.make_predicates`. Run it also
after changing the table, or to see the answers of a new pylance. Only this program runs pylance's planner.
"""

import json
import pathlib
import tempfile

import lance
import pyarrow as pa

from tests.golden.predicates_table import table

ANSWERS_FILE = pathlib.Path(__file__).with_name("predicates.json")
JSON_ANSWERS_FILE = ANSWERS_FILE.with_name("predicates_json.json")
MESSAGE_LENGTH = 160
REFUSED = "refused"

Answer = list[int] | str


def main() -> None:
    ask_predicates()
    ask_json()


def ask_predicates() -> None:
    recorded = json.loads(ANSWERS_FILE.read_text(encoding="utf-8"))["answers"]
    with tempfile.TemporaryDirectory() as directory:
        dataset = lance.write_dataset(
            table(), f"{directory}/t.lance", enable_stable_row_ids=True, data_storage_version="2.2"
        )
        answers = {group: {sql: _ask_pylance(dataset, sql) for sql in sorted(recorded[group])} for group in recorded}
    ANSWERS_FILE.write_text(_format_answers(answers), encoding="utf-8")


def _format_answers(answers: dict[str, dict[str, Answer]]) -> str:
    """Return the file with one line per predicate, so that a diff shows single predicates."""
    groups = []
    for group, answered in answers.items():
        lines = ",\n".join(f"  {json.dumps(sql)}: {json.dumps(answer)}" for sql, answer in answered.items())
        groups.append(f" {json.dumps(group)}: {{\n{lines}\n }}")
    return f'{{"pylance": {json.dumps(lance.__version__)}, "answers": {{\n' + ",\n".join(groups) + "\n}}\n"


def _ask_pylance(dataset: lance.LanceDataset, sql: str) -> Answer:
    """Return the matching rows, or the error without the location in pylance's own source."""
    try:
        rows = dataset.scanner(columns=["id"], filter=sql).to_table()
    except (ValueError, OSError, RuntimeError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {str(error).partition(', /')[0]}"[:MESSAGE_LENGTH]
    return [int(row) for row in rows["id"].to_pylist()]


def ask_json() -> None:
    """Evaluate each JSON function on each document alone, because one document that does not convert fails the whole
    query."""
    recorded = json.loads(JSON_ANSWERS_FILE.read_text(encoding="utf-8"))
    documents = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(recorded["documents"]))
    ids = pa.array(range(len(documents)), pa.int64())
    with tempfile.TemporaryDirectory() as directory:
        dataset = lance.write_dataset(pa.table({"id": ids, "js": documents}), f"{directory}/t.lance")
        answers = {
            sql: [_ask_json_value(dataset, sql, each) for each in range(len(documents))] for sql in recorded["answers"]
        }
    lines = ",\n".join(f"  {json.dumps(sql)}: {json.dumps(answer)}" for sql, answer in answers.items())
    JSON_ANSWERS_FILE.write_text(
        f'{{"pylance": {json.dumps(lance.__version__)}, "documents": {json.dumps(recorded["documents"], indent=1)},\n'
        f'"answers": {{\n{lines}\n}}}}\n',
        encoding="utf-8",
    )


def _ask_json_value(dataset: lance.LanceDataset, sql: str, row: int) -> bool | int | float | str | None:
    try:
        result = dataset.scanner(columns={"value": sql}, filter=f"id = {row}").to_table()
    except (ValueError, OSError, RuntimeError, pa.ArrowException):
        return REFUSED
    value: bool | int | float | str | None = result["value"][0].as_py()
    return value


if __name__ == "__main__":
    main()
