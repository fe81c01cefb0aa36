"""Random structures, scores and questions, in processes of their own; `tests/fuzz.py` says how."""

import pytest
from fuzz import Fuzzer


@pytest.mark.thorough
def test_ten_thousand_random_instances():
    fuzzer = Fuzzer(seed=1, instances=10_000)
    fuzzer.run(jobs=1)
    assert not fuzzer.found, "\n".join(fuzzer.found)
    assert fuzzer.judged >= 10_000
