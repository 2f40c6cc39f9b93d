"""Predicate trees: the tree that a planner reads from a predicate, and predicates built from trees."""

import pyarrow as pa
import pytest

from lance_core.errors import InvalidInput
from lance_core.expressions import (
    And,
    Call,
    Comparison,
    Constant,
    In,
    IsNull,
    Like,
    Node,
    Not,
    Op,
    Or,
    Other,
    Predicate,
)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("name", pa.large_string()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("ms", "UTC")),
        ("s", pa.struct([("x", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)


def scalar(value: object, column: str) -> pa.Scalar:
    return pa.scalar(value, SCHEMA.field(column).type)


ID3 = Comparison(("id",), Op.EQ, scalar(3, "id"))


@pytest.mark.parametrize(
    ("sql", "tree"),
    [
        ("id = 3", ID3),
        ("3 = id", ID3),
        ("3 < ID", Comparison(("id",), Op.GT, scalar(3, "id"))),
        ("CAST(id AS int) = 3", ID3),
        ("NOT id = 3", Comparison(("id",), Op.NE, scalar(3, "id"))),
        ("NOT id > 3", Comparison(("id",), Op.LE, scalar(3, "id"))),
        (
            "id BETWEEN 1 AND 3",
            And((Comparison(("id",), Op.GE, scalar(1, "id")), Comparison(("id",), Op.LE, scalar(3, "id")))),
        ),
        ("id IN (1, 3)", In(("id",), (scalar(1, "id"), scalar(3, "id")))),
        ("id = 1 OR ID = 3", In(("id",), (scalar(1, "id"), scalar(3, "id")))),
        ("id = 3 OR b", Or((ID3, Comparison(("b",), Op.EQ, pa.scalar(True))))),
        ("NOT b", Not(Comparison(("b",), Op.EQ, pa.scalar(True)))),
        ("id NOT IN (1,2,3,4)", Not(In(("id",), tuple(scalar(each, "id") for each in (1, 2, 3, 4))))),
        ("f = 0.1", Comparison(("f",), Op.EQ, scalar(0.1, "f"))),
        ("small = 5", Comparison(("small",), Op.EQ, scalar(5, "small"))),
        ("s.x = 5", Comparison(("s", "x"), Op.EQ, pa.scalar(5, pa.int32()))),
        ("name = 'a'", Comparison(("name",), Op.EQ, scalar("a", "name"))),
        ("kind = 'a'", Comparison(("kind",), Op.EQ, pa.scalar("a"))),
        ("b IS NULL", IsNull(("b",))),
        ("s.x IS NOT NULL", Not(IsNull(("s", "x")))),
        ("name LIKE 'ab%'", Like(("name",), "ab%")),
        ("starts_with(name, 'a_b')", Like(("name",), "a\\_b%")),
        ("name NOT LIKE 'a%b'", Not(Like(("name",), "a%b"))),
        ("name ILIKE 'ab%'", Like(("name",), "ab%", ignore_case=True)),
        ("contains(name, 'x')", Call("contains", ("name",), (pa.scalar("x"),))),
        ("array_has(tags, 'x')", Call("array_has", ("tags",), (pa.scalar("x"),))),
        ("true", Constant(True)),
        ("1 = 2", Constant(False)),
    ],
)
def test_trees_of_predicates(sql: str, tree: Node) -> None:
    assert Predicate.parse(sql, SCHEMA).tree == tree


@pytest.mark.parametrize("sql", ["id + 1 = 3", "small = 300", "id % 2 = 0", "b IS NOT TRUE", "id = small"])
def test_unsupported_expressions_are_other_nodes(sql: str) -> None:
    tree = Predicate.parse(sql, SCHEMA).tree
    assert isinstance(tree, Other)
    assert tree.columns <= {"id", "small", "b"}


def test_literals_have_the_type_of_their_column() -> None:
    values = Predicate.parse("price = 1.5 AND at > '2020-01-01T00:00:00Z'", SCHEMA).tree
    assert isinstance(values, And)
    assert [each.value.type for each in values.operands if isinstance(each, Comparison)] == [
        SCHEMA.field("price").type,
        SCHEMA.field("at").type,
    ]


@pytest.mark.parametrize(
    ("pattern", "prefix", "is_prefix"),
    [("ab%", "ab", True), ("a\\_b%", "a_b", True), ("a_b%", "a", False), ("%a", "", False), ("ab", "ab", False)],
)
def test_prefixes_of_patterns(pattern: str, prefix: str, is_prefix: bool) -> None:
    like = Like(("name",), pattern)
    assert (like.prefix, like.is_prefix) == (prefix, is_prefix)
    assert Like(("name",), pattern, ignore_case=True).prefix == ""


def test_predicates_are_built_from_trees() -> None:
    quote = "it's \"`\\ a name"
    node = And((In(("name",), (scalar(quote, "name"),)), Not(IsNull(("s", "x"))), Or(())))
    built = Predicate.from_node(And((*node.operands[:2],)), SCHEMA)
    batch = pa.RecordBatch.from_pylist([{"name": quote, "s": {"x": 1}}, {"name": "x", "s": {"x": 1}}], SCHEMA)
    assert built.mask(batch).to_pylist() == [True, False]
    assert Predicate.from_node(node, SCHEMA).mask(batch).to_pylist() == [False, False]
    assert Predicate.from_node(And(()), SCHEMA).tree == Constant(True)


def test_a_built_predicate_is_checked_like_any_other() -> None:
    with pytest.raises(InvalidInput, match="there is no column 'nme' at character 1; did you mean 'name'"):
        Predicate.from_node(IsNull(("nme",)), SCHEMA)
