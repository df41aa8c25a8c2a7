from __future__ import annotations

import pytest

from runledger_test_support.server import DatabaseServer, ServerOrigin

pytest_plugins = ["pytester"]


@pytest.fixture
def other_session(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    runledger_server: DatabaseServer,
) -> pytest.Pytester:
    # A second server would take a second; the first one serves as somebody's.
    monkeypatch.setenv("RUNLEDGER_TEST_ADMIN_DATABASE_URL", runledger_server.admin_dsn)
    return pytester


def test_fixtures_work_in_a_session_of_their_own(other_session: pytest.Pytester) -> None:
    other_session.makepyfile(
        """
        def test_database(runledger_database, runledger_pool):
            with runledger_pool.connection() as connection:
                connection.execute("INSERT INTO runledger.job_queue (job_type, max_attempts)"
                                   " VALUES ('t', 1)")
            count = runledger_database.connect().execute(
                "SELECT count(*) FROM runledger.job_queue").fetchone()
            assert count == (1,)

        def test_next_database_is_new(runledger_database):
            count = runledger_database.connect().execute(
                "SELECT count(*) FROM runledger.job_queue").fetchone()
            assert count == (0,)

        def test_unmigrated(runledger_unmigrated_database):
            schema = runledger_unmigrated_database.connect().execute(
                "SELECT to_regnamespace('runledger')").fetchone()
            assert schema == (None,)
        """
    )

    result = other_session.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=3)


def test_session_leaves_no_database(
    other_session: pytest.Pytester, runledger_unmigrated_database
) -> None:
    connection = runledger_unmigrated_database.connect(autocommit=True)
    names = "SELECT datname FROM pg_database ORDER BY 1"
    before = connection.execute(names).fetchall()
    other_session.makepyfile("def test_one(runledger_pool): raise RuntimeError")

    result = other_session.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(failed=1)
    assert connection.execute(names).fetchall() == before


def test_server_of_the_session_is_said_to_be_somebodys(
    other_session: pytest.Pytester, runledger_server: DatabaseServer
) -> None:
    other_session.makepyfile(
        f"""
        def test_server(runledger_server):
            assert runledger_server.origin == "{ServerOrigin.ADMIN_URL}"
            assert runledger_server.version_number == {runledger_server.version_number}
        """
    )

    result = other_session.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=1)


def test_nothing_starts_for_tests_that_ask_for_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No server could be had here.
    monkeypatch.setenv("RUNLEDGER_TEST_ADMIN_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    pytester.makepyfile("def test_nothing(): pass")

    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=1)
