"""The socket file: where it may lie, what it replaces, what it never removes."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybatcher import ConfigError
from pybatcher.sidecar.front import listening as module
from pybatcher.sidecar.front.listening import (
    ListeningSocket,
    inherited_socket,
    open_socket,
)

PATIENCE = 60.0
pytestmark = pytest.mark.usefixtures("path_for_doubles")

DOUBLE = Path(__file__).parents[1] / "support" / "listening_double.py"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # fewer: what was garbage is collected


def refusal(path: Path | str, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        open_socket(path, backlog=5, **options)  # type: ignore[arg-type]
    return str(caught.value)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def leave_stale(path: Path, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(str(path))


def test_it_listens_for_us_alone_and_goes_with_its_file(path: Path) -> None:
    listening = open_socket(path, backlog=5)
    assert listening.path == path
    assert mode_of(path) == 0o600
    assert not listening.sock.getblocking()
    assert not listening.sock.get_inheritable()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listening.close()
    listening.close()
    assert not path.exists()


def test_with_other_users_the_file_lets_everybody_in(path: Path) -> None:
    listening = open_socket(path, backlog=5, allow_uids=(5,))
    assert mode_of(path) == 0o666
    listening.admit(())
    assert mode_of(path) == 0o600
    listening.admit((6,))
    assert mode_of(path) == 0o666
    path.unlink()
    listening.admit(())
    listening.close()


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_its_mode_is_not_the_umasks_from_its_first_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    at_first = []
    chmod = os.chmod

    def chmod_later(file: Path, mode: int) -> None:
        at_first.append(mode_of(file))
        chmod(file, mode)

    monkeypatch.setattr(os, "chmod", chmod_later)
    before = os.umask(umask)
    try:
        listening = open_socket(path, backlog=5)
    finally:
        assert os.umask(before) == umask
    assert at_first == [0o600 & ~umask]
    assert mode_of(path) == 0o600
    listening.close()


def test_a_relative_path_is_kept_from_where_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listening = open_socket("s", backlog=5)
    monkeypatch.chdir("/")
    listening.close()
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    assert f"chmod go-w '{folder}'" in refusal(folder / "s")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_others_may_read_it(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    open_socket(tmp_path / "s", backlog=5).close()


def test_a_directory_of_somebody_else_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.stat(path.parent).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    os_stat = os.stat

    def as_if_of_user_5(name: object, **options: object) -> object:
        status = os_stat(name, **options)  # type: ignore[arg-type]
        changed = [5 if i == stat.ST_UID else value for i, value in enumerate(status)]
        return os.stat_result(changed) if name == path.parent else status

    monkeypatch.setattr(os, "stat", as_if_of_user_5)
    assert "belongs to user 5" in refusal(path)


def test_a_directory_that_is_not_there_or_none(tmp_path: Path) -> None:
    said = refusal(tmp_path / "none" / "s")
    assert "No such file or directory" in said
    assert f"mkdir -m 700 '{tmp_path / 'none'}'" in said
    (tmp_path / "file").touch()
    assert "is no directory" in refusal(tmp_path / "file" / "s")


def test_a_path_has_107_bytes_at_most(tmp_path: Path) -> None:
    room = 107 - len(os.fsencode(tmp_path)) - 1
    open_socket(tmp_path / ("é" * (room // 2) + "x" * (room % 2)), backlog=5).close()
    said = refusal(tmp_path / ("x" * (room + 1)))
    assert "a path of 108 bytes" in said
    assert "107 at most" in said
    assert "a path of 1" in refusal(tmp_path / ("é" * (room // 2 + 1)))


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_stale_socket_is_replaced(path: Path, kind: int) -> None:
    leave_stale(path, kind)
    listening = open_socket(path, backlog=5)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listening.close()


def test_a_live_one_is_refused_and_left_alone(path: Path) -> None:
    listening = open_socket(path, backlog=5)
    assert refusal(path) == (
        f"the socket '{path}' is in use by process {os.getpid()}; end it, or choose another"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    listening.close()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_so_is_that_of_another_program(path: Path, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(path))
        if kind != socket.SOCK_DGRAM:
            other.listen(1)
        inode = os.stat(path).st_ino
        assert "is in use by" in refusal(path)
        assert os.stat(path).st_ino == inode


def test_one_whose_backlog_is_full_is_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as first:
        other.bind(str(path))
        other.listen(0)
        first.connect(str(path))
        assert "is in use by another process" in refusal(path)


def test_what_is_no_socket_is_never_removed(path: Path) -> None:
    path.write_text("precious")
    assert "is there and no socket" in refusal(path)
    assert path.read_text() == "precious"
    link = path.with_name("link")
    leave_stale(path.with_name("stale"))
    link.symlink_to(path.with_name("stale"))
    assert "is there and no socket" in refusal(link)
    assert link.is_symlink()
    path.with_name("folder").mkdir()
    assert "is there and no socket" in refusal(path.with_name("folder"))


def test_what_the_system_refuses_is_a_config_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: object, mode: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "chmod", fail)
    assert refusal(path) == f"cannot make the socket '{path}': Read-only file system"


@pytest.mark.parametrize("server_closes_first", [False, True])
def test_close_leaves_the_file_of_a_successor(path: Path, server_closes_first: bool) -> None:
    """Its inode may not even have the number of ours: ours is held until then."""
    listening = open_socket(path, backlog=5)
    path.unlink()
    if server_closes_first:
        listening.sock.close()
    successors = []
    for _ in range(20):  # file systems hand numbers out again at once
        path.unlink(missing_ok=True)
        leave_stale(path)
        successors.append(os.stat(path).st_ino)
    listening.close()
    assert path.exists(), successors


def test_close_without_a_file_or_a_directory_is_silent(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    listening = open_socket(folder / "s", backlog=5)
    (folder / "s").unlink()
    folder.rmdir()
    listening.close()
    assert listening.sock.fileno() == -1


def test_a_socket_of_somebody_else_keeps_its_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(5)
        ListeningSocket(sock).close()
        assert sock.fileno() == -1
    assert path.exists()


def test_a_start_waits_for_another(path: Path) -> None:
    opened: list[ListeningSocket] = []
    thread = threading.Thread(target=lambda: opened.append(open_socket(path, backlog=5)))
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread.start()
        thread.join(0.1)
        assert not opened
        assert not path.exists()
    finally:
        os.close(lock)
    thread.join(PATIENCE)
    opened[0].close()


def test_nobody_can_keep_a_server_waiting_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_TIMEOUT", 0.05)
    listening = open_socket(path, backlog=5)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "has been locked by another process" in refusal(path)
        listening.close()
    finally:
        os.close(lock)
    assert listening.sock.fileno() == -1


@pytest.mark.usefixtures("system")
def test_of_many_that_start_at_once_one_wins(path: Path) -> None:
    leave_stale(path)
    starters = [
        subprocess.Popen(
            [sys.executable, str(DOUBLE), "open", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = []
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    for starter in starters:
        assert starter.stdout is not None
        said.append(starter.stdout.readline())
    assert sum(line == "listens\n" for line in said) == 1
    assert sum("is in use by process" in line for line in said) == 3
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    for starter in starters:
        starter.communicate("end\n", PATIENCE)
        assert starter.returncode == 0
    assert not path.exists()


def inherit(sock: socket.socket | int) -> subprocess.Popen[str]:
    descriptor = sock if isinstance(sock, int) else sock.fileno()
    return subprocess.Popen(
        [sys.executable, str(DOUBLE), "inherit", str(descriptor)],
        pass_fds=(descriptor,),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("system")
def test_a_socket_is_taken_from_an_init_system(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, socket.socket(socket.AF_UNIX) as client:
        sock.bind(str(path))
        sock.listen(5)
        with inherit(sock) as process:
            client.settimeout(PATIENCE)
            client.connect(str(path))
            assert client.recv(100) == b"inherited"
            assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("family", "kind", "listens"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, False),
        (socket.AF_UNIX, socket.SOCK_SEQPACKET, True),
        (socket.AF_UNIX, socket.SOCK_DGRAM, False),
        (socket.AF_INET, socket.SOCK_STREAM, True),
    ],
)
def test_but_no_other_kind_of_socket(path: Path, family: int, kind: int, listens: bool) -> None:
    with socket.socket(family, kind) as sock:
        sock.bind(str(path) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        if listens:
            sock.listen(5)
        with inherit(sock) as process:
            said, _ = process.communicate(timeout=PATIENCE)
    assert "is no listening unix stream socket" in said
    assert process.returncode == 0


def test_nor_a_descriptor_that_is_no_socket() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        with inherit(descriptor) as process:
            said, _ = process.communicate(timeout=PATIENCE)
    finally:
        os.close(descriptor)
    assert "descriptor 3 is no socket" in said
    assert process.returncode == 0


def test_what_is_meant_for_another_process_is_not_taken() -> None:
    assert inherited_socket({}, 7) is None
    assert inherited_socket({"LISTEN_FDS": "1"}, 7) is None
    assert inherited_socket({"LISTEN_PID": "8", "LISTEN_FDS": "1"}, 7) is None
    assert inherited_socket({"LISTEN_PID": "7"}, 7) is None
    assert inherited_socket({"LISTEN_PID": "7", "LISTEN_FDS": "0"}, 7) is None


@pytest.mark.parametrize("count", ["2", "-1", "x", ""])
def test_one_socket_is_served(count: str) -> None:
    with pytest.raises(ConfigError, match=f"^LISTEN_FDS is '{count}'; one socket can be served"):
        inherited_socket({"LISTEN_PID": "7", "LISTEN_FDS": count}, 7)
