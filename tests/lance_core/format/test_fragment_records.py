"""Fragment records: edits and differences of encoded fragments equal those of a dictionary of parsed ones."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lance_core.format._pb import table_pb2
from lance_core.format.fragment import Fragment
from lance_core.format.fragment_records import EditedFragments, FragmentRecords, find_difference

NAMES = st.text("ab", max_size=3)
STATES = st.builds(
    lambda rows, name, deletes: table_pb2.DataFragment(
        physical_rows=rows,
        files=[table_pb2.DataFile(path=name)],
        deletion_file=table_pb2.DeletionFile(num_deleted_rows=1) if deletes else None,
    ),
    st.integers(0, 300),
    NAMES,
    st.booleans(),
)
VERSIONS = st.dictionaries(st.integers(0, 40), STATES, max_size=12)
BLOCK = 1 << 20


def records_of(fragments: dict[int, table_pb2.DataFragment], order: list[int] | None = None) -> FragmentRecords:
    message = table_pb2.Manifest(version=7, max_fragment_id=99)
    for number in order or sorted(fragments):
        listed = message.fragments.add()
        listed.CopyFrom(fragments[number])
        listed.id = number
    return FragmentRecords(message.SerializeToString(), path="m")


def with_id(number: int, state: table_pb2.DataFragment) -> Fragment:
    return Fragment(state).with_id(number)


@given(VERSIONS, VERSIONS, st.randoms(use_true_random=False))
def test_a_difference_consists_of_what_only_one_version_has(
    before: dict[int, table_pb2.DataFragment], after: dict[int, table_pb2.DataFragment], random: Random
) -> None:
    shared = {number: before[number] for number in before if random.random() < 0.7}
    after = {**after, **shared}
    difference = find_difference(records_of(before), records_of(after))
    old, new = ({with_id(*item).encode() for item in version.items()} for version in (before, after))
    assert [each.encode() for each in difference.removed] == [
        with_id(number, before[number]).encode()
        for number in sorted(before)
        if with_id(number, before[number]).encode() not in new
    ]
    assert {each.encode() for each in difference.added} == new - old


def test_differences_beyond_the_first_block_of_bytes() -> None:
    before = {number: table_pb2.DataFragment(files=[table_pb2.DataFile(path="x" * 900)]) for number in range(4_000)}
    after = {**before, 2_500: table_pb2.DataFragment(physical_rows=1)}
    del after[2_600]
    assert len(records_of(before).encode()) > 3 * BLOCK
    difference = find_difference(records_of(before), records_of(after))
    assert [each.id for each in difference.removed] == [2_500, 2_600]
    assert [each.id for each in difference.added] == [2_500]


@given(
    VERSIONS,
    st.dictionaries(st.integers(0, 40), STATES),
    st.sets(st.integers(0, 40)),
    VERSIONS,
    st.permutations(range(41)),
)
def test_edits_equal_those_of_a_dictionary(
    before: dict[int, table_pb2.DataFragment],
    changed: dict[int, table_pb2.DataFragment],
    removed: set[int],
    added: dict[int, table_pb2.DataFragment],
    order: list[int],
) -> None:
    expected = dict(before)
    records = records_of(before, [number for number in order if number in before])
    edited = EditedFragments(records)
    assert records.find_repeated_id() is None
    for number in changed.keys() & before.keys():
        edited.replace(with_id(number, changed[number]))
        expected[number] = changed[number]
    for number in removed:
        edited.remove(with_id(number, table_pb2.DataFragment()).id)
        expected.pop(number, None)
    assert {number: edited[number].physical_rows for number in edited} == {
        number: state.physical_rows for number, state in expected.items()
    }
    assert [number in edited for number in range(41)] == [number in expected for number in range(41)]
    new = {number: state for number, state in added.items() if number not in expected}
    after = edited.with_added([with_id(*item).message for item in new.items()])
    expected |= new
    assert after.encode() == records_of(expected).encode()
    assert after.ids.tolist() == sorted(expected)
    assert after.has_deletion_files == any(state.HasField("deletion_file") for state in expected.values())


@given(VERSIONS, st.integers(0, 50))
def test_a_search_finds_the_fragment_with_the_id(fragments: dict[int, table_pb2.DataFragment], wanted: int) -> None:
    records = records_of(fragments)
    for _few_then_many in range(101):
        records.position_of(0)
    found = records_of(fragments).find(wanted)
    assert (found is not None) == (records.find(wanted) is not None) == (wanted in fragments)
    if found is not None:
        assert found.encode() == with_id(wanted, fragments[wanted]).encode()


def test_a_repeated_id_is_found() -> None:
    twice = table_pb2.Manifest(fragments=[table_pb2.DataFragment(id=number) for number in (4, 2, 9, 2)])
    assert FragmentRecords(twice.SerializeToString(), path="m").find_repeated_id() == 2
    zeros = table_pb2.Manifest(fragments=[table_pb2.DataFragment(), table_pb2.DataFragment(physical_rows=1)])
    assert FragmentRecords(zeros.SerializeToString(), path="m").find_repeated_id() == 0


@given(VERSIONS, st.permutations(range(41)))
def test_rows_are_counted_together_or_one_by_one(
    fragments: dict[int, table_pb2.DataFragment], order: list[int]
) -> None:
    for listed in (None, [number for number in order if number in fragments]):
        records = records_of(fragments, listed)
        counts = [fragment.physical_rows for fragment in records]
        is_ascending = listed is None or listed == sorted(listed)
        needs_each = records.has_deletion_files or 0 in counts or not is_ascending
        assert records.count_rows() == (None if needs_each else sum(counts))
