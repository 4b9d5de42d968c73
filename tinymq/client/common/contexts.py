"""Named clusters: the file in which `tinymq context` and `tinymq dev up` keep addresses for commands and programs.

    $XDG_CONFIG_HOME/tinymq/contexts.json, by default ~/.config/tinymq/contexts.json

The file holds addresses, directories and tokens, and only its owner may read it.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tinymq.base.errors import CorruptData, InvalidConfig, InvalidRequest, NotFound
from tinymq.base.private_files import open_private

SERVERS_VARIABLE = "TINYMQ_SERVERS"  # of the environment: the brokers, if a program or a command names no cluster
CONTEXT_VARIABLE = "TINYMQ_CONTEXT"  # of the environment: the same by the name of a context

FORMAT = 1
NAME_LENGTH_MAX = 64
CONTEXTS_MAX = 100
TOKEN_BYTES_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Context:
    """One named cluster."""

    servers: str
    directory: str = ""  # of a local cluster, absolute; "": none
    token: str = field(default="", repr=False)  # of the user; "": none
    tls_ca: str = ""  # the file by which brokers are known; "": without TLS, or that of tls_dir
    tls_dir: str = ""  # the directory of the user's certificate; "": none


@dataclass(frozen=True, slots=True)
class Contexts:
    """All named clusters, and the name of the one in use ("": none)."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Return a context by its name. Raises NotFound, which names a similar one."""
        if name in self.by_name:
            return self.by_name[name]
        near = difflib.get_close_matches(name, self.by_name, 1)
        hint = f"did you mean {near[0]!r}?" if near else "list them: tinymq context list"
        raise NotFound(f"there is no context {name!r}", hint=hint)

    def with_one(self, name: str, context: Context, *, use: bool) -> Contexts:
        """Return these with one more, or one replaced. Raises InvalidRequest."""
        if not name or len(name) > NAME_LENGTH_MAX or not all(c.isalnum() or c in "._-" for c in name):
            raise InvalidRequest(f"{name!r:.100} is not a name", hint=f"1 to {NAME_LENGTH_MAX} letters, digits, . _ -")
        if len(self.by_name) >= CONTEXTS_MAX and name not in self.by_name:
            raise InvalidRequest(f"there are {CONTEXTS_MAX} contexts", hint="delete some: tinymq context delete NAME")
        return Contexts(name if use else self.current, {**self.by_name, name: context})

    def without(self, name: str) -> Contexts:
        """Return these without one. Raises NotFound."""
        self.get(name)
        left = {each: context for each, context in self.by_name.items() if each != name}
        return Contexts("" if self.current == name else self.current, left)

    def using(self, name: str) -> Contexts:
        """Return these with another one in use. Raises NotFound."""
        self.get(name)
        return replace(self, current=name)


def path() -> Path:
    """Return the path of the file, which may not exist."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if home else Path.home() / ".config") / "tinymq" / "contexts.json"


def load() -> Contexts:
    """Read the file. Without a file there are no contexts. Raises CorruptData."""
    try:
        found = json.loads(path().read_text())
        if found["format"] != FORMAT:
            raise CorruptData(f"{path()} has format {found['format']!r}, not {FORMAT}", hint="use a newer tinymq")
        return Contexts(str(found["current"]), {name: Context(**each) for name, each in found["contexts"].items()})
    except FileNotFoundError:
        return Contexts()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{path()} is damaged", hint="correct it, or remove it") from error


def save(contexts: Contexts) -> None:
    """Replace the file."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    each = {name: _document(context) for name, context in sorted(contexts.by_name.items())}
    document = {"format": FORMAT, "current": contexts.current, "contexts": each}
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    with os.fdopen(open_private(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as out:
        out.write(json.dumps(document, indent=2) + "\n")
    new.replace(file)


def _document(context: Context) -> dict[str, str]:
    """Older versions of the command know no tokens and no TLS: a context without is written as they read it."""
    return {name: text for name, text in asdict(context).items() if text or name in ("servers", "directory")}


def name_of(directory: Path) -> str:
    """Return the name of the context of a local cluster in `directory`: its last part, "dev" for the default one."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in directory.absolute().name)
    return kept[:NAME_LENGTH_MAX] or "dev"


def read_token(path: Path) -> str:
    """Return the token in a file. Raises InvalidConfig if other users may read the file, or if it is too large."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidConfig(f"others may read the token file {path}", hint=f"chmod 600 {path}")
        data = path.read_bytes()
    except OSError as error:
        raise InvalidConfig(f"cannot read the token file {path}: {error.strerror}") from None
    if len(data) > TOKEN_BYTES_MAX:
        raise InvalidConfig(f"{path} is too large for a token")
    return data.decode("utf-8", "replace").strip()
