"""Planted defects: small, deliberate faults of the product. Each harness of this package must detect some of them,
because a harness that misses a defect is no evidence.

    with planted_defect("rebase skipped"):
        assert find_failing_seed(simulate_writers, range(300))

The catalogues `*_defects.py` are the only modules of this package that patch private names of the product.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.histories.cleanup_defects import CLEANUP_DEFECTS
from tests.histories.commit_defects import COMMIT_DEFECTS, DIRECT_COMMIT_DEFECTS
from tests.histories.defect_patch import DefectPatch
from tests.histories.group_commit_defects import GROUP_COMMIT_DEFECTS
from tests.histories.operation_defects import OPERATION_DEFECTS

PLANTED_DEFECTS: Mapping[str, DefectPatch] = {
    **COMMIT_DEFECTS,
    **DIRECT_COMMIT_DEFECTS,
    **CLEANUP_DEFECTS,
    **GROUP_COMMIT_DEFECTS,
    **OPERATION_DEFECTS,
}


@contextmanager
def planted_defect(name: str) -> Iterator[None]:
    """Run a block with one defect of the product."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_DEFECTS[name](patch)
        yield
