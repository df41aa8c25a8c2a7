import pytest


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "9223372037", "soon"])
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_timeout_that_no_wait_can_have_is_wrong_usage(run_cli, seconds, processes):
    result = run_cli("worker", "--app", "no.app", "--shutdown-timeout", seconds, *processes)

    assert result.exit_code == 2
    assert "Invalid value for '--shutdown-timeout'" in result.stderr
