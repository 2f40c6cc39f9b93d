"""Hash chain: the encoding of the parent hash, and invalid values of other writers."""

import pytest

from lance_core.format import manifest
from lance_core.format._pb import transaction_pb2
from lance_core.format.ids import Version
from lance_core.format.manifest import PARENT, PARENT_BYTES_MAX, ParentHash
from lance_core.format.operations import Append
from lance_core.format.transaction import Transaction

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb22cd15d6c15b0f00a08"


def test_a_parent_hash_is_encoded_and_decoded() -> None:
    parent = ParentHash(Version(41), DIGEST)
    assert str(parent) == f"41 sha256:{DIGEST}"
    assert ParentHash.of(str(parent)) == parent


@pytest.mark.parametrize(
    "text",
    [
        "", "41", DIGEST, f"0 sha256:{DIGEST}", f"041 sha256:{DIGEST}", f"41 sha256:{DIGEST.upper()}",
        f"41 sha256:{DIGEST[1:]}", f"41 sha256:{DIGEST}\n", f"{10**19} sha256:{DIGEST}", f"4\u0661 sha256:{DIGEST}",
    ],
)  # fmt: skip
def test_an_invalid_parent_hash_matches_no_version(text: str) -> None:
    assert ParentHash.of(text) == ParentHash(Version(0), text)
    assert str(ParentHash.of(text)) == text


def test_the_parent_hash_is_a_hidden_property() -> None:
    ours = Transaction(Version(41), "uuid", Append(()), {"run": "7"}, ParentHash(Version(41), DIGEST))
    message = transaction_pb2.Transaction.FromString(ours.encode())
    assert dict(message.transaction_properties) == {"run": "7", PARENT: f"41 sha256:{DIGEST}"}
    again = Transaction.decode(ours.encode(), path="t")
    assert again == ours
    assert again.properties == {"run": "7"}


def test_the_size_of_a_parent_hash_is_bounded() -> None:
    bare = Transaction(Version(1), "uuid", Append(()))
    longest = ParentHash(Version(2**63 - 1), DIGEST)
    reported = Transaction(Version(1), "uuid", Append(()), {}, longest)
    assert len(reported.encode()) - len(bare.encode()) < PARENT_BYTES_MAX
    assert manifest.ParentHash.of(str(longest)) == longest
