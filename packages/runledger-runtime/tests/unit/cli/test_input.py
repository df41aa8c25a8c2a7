import pytest

from runledger_core import ValidationError
from runledger_runtime.cli._input import decode_argument


def test_closed_standard_input_counts_as_empty(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)

    with pytest.raises(ValidationError) as caught:
        decode_argument("-", field="payload")

    assert (caught.value.code, caught.value.field) == ("input.json_malformed", "payload")
