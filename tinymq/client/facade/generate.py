"""Writes the synchronous classes of tinymq/client/facade/generated/ from the asynchronous ones. Run by `make proto`.

Each public method of an asynchronous class becomes a method with the same name, signature and docstring. It runs the
asynchronous method on the client's loop and waits for the result. A class in facade/ defines by hand the methods that
are faster when they stay in the calling thread; the generator leaves those out. A test fails when the files are stale
(tests/client/facade/test_generate.py). docs/adr/0043-the-synchronous-client-is-generated.md gives the reasons.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
GENERATED = "tinymq.client.facade.generated"
ENDINGS = {"close", "release", "__aexit__"}  # they do nothing when the loop has ended, because it closed everything
RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


@dataclass(frozen=True)
class Twin:
    """An asynchronous class, and the synchronous class that is generated from it."""

    module: str  # of the asynchronous class
    name: str  # of the synchronous class; the asynchronous one has Async before it
    by_hand: str = ""  # the module of facade/ whose class `name` extends the generated one
    internal: frozenset[str] = frozenset()  # names without an underscore that only other rooms of the client use
    sync_only: frozenset[str] = frozenset()  # names without an asynchronous half: of engines that call from threads
    lazy: bool = False  # the module is imported when it is first used: most programs never use it

    @property
    def generated_name(self) -> str:
        return f"{self.name}Calls" if self.by_hand else self.name

    @property
    def generated_module(self) -> str:
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()
        return f"{GENERATED}.{self.by_hand.rpartition('.')[2] or words}"

    @property
    def home(self) -> str:
        """The module that defines the synchronous class for applications."""
        return self.by_hand or self.generated_module


TWINS = (
    Twin("tinymq.client.admin.access", "Access", lazy=True),
    Twin("tinymq.client.admin.group_admin", "GroupAdmin"),
    Twin("tinymq.client.admin.admin", "Admin", lazy=True),
    Twin(
        "tinymq.client.facade.async_client",
        "Client",
        by_hand="tinymq.client.facade.client",
        internal=frozenset({"cluster", "producers", "serve_with", "shared_producer"}),
    ),
    Twin(
        "tinymq.client.frame.frame",
        "Frame",
        by_hand="tinymq.client.facade.frame",
        internal=frozenset({"reading"}),
        sync_only=frozenset({"lazy", "relation"}),
    ),
    Twin("tinymq.client.admin.holds", "Hold"),
    Twin("tinymq.client.admin.schedule", "Schedule", by_hand="tinymq.client.facade.schedule"),
    Twin(
        "tinymq.client.produce.producer",
        "Producer",
        by_hand="tinymq.client.facade.producer",
        internal=frozenset(
            {"abandon", "append_here", "close_s", "closed", "direct", "ended"}
            | {"ready", "send_delayed", "unfinished", "written"}
        ),
    ),
    Twin(
        "tinymq.client.group.consumer",
        "Consumer",
        by_hand="tinymq.client.facade.consumer",
        internal=frozenset({"arrival", "at_hand", "batch", "closed", "leave", "more", "take", "transactional"}),
    ),
    Twin(
        "tinymq.client.transaction.transaction",
        "Transaction",
        by_hand="tinymq.client.facade.transaction",
        internal=frozenset({"closed", "leave"}),
    ),
    Twin(
        "tinymq.client.work.worker",
        "Worker",
        by_hand="tinymq.client.facade.worker",
        internal=frozenset({"arrival", "attached", "closed", "fail_in_hand", "leave", "say", "take", "take_one"}),
    ),
    Twin(
        "tinymq.client.queue.queue",
        "Queue",
        by_hand="tinymq.client.facade.queue",
        internal=frozenset({"closed", "leave"}),
    ),
    Twin(
        "tinymq.client.consume.reader",
        "Reader",
        by_hand="tinymq.client.facade.reader",
        internal=frozenset({"arrival", "closed", "fail"}),
    ),
    Twin(
        "tinymq.client.consume.scan",
        "Scan",
        by_hand="tinymq.client.facade.scan",
        internal=frozenset({"closed", "take"}),
    ),
)
SYNC = {f"Async{twin.name}": twin for twin in TWINS}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def generate(twin: Twin) -> str:
    """Return the source text of a class's generated module, not formatted yet."""
    source = _parse(twin.module)
    definition = _class(source, f"Async{twin.name}")
    bases = [SYNC[base.id].name for base in definition.bases if isinstance(base, ast.Name) and base.id in SYNC]
    body = [_beginning(twin, bases), *_members(twin, definition)]
    doc = f"The methods of {twin.name} that have the client's loop do the work."
    if not twin.by_hand:
        doc = _in_sync_words(ast.get_docstring(definition) or "")
    named = f"({', '.join(bases)})" if bases else ""
    code = f"class {twin.generated_name}{named}:\n{_indented(_quoted(doc))}\n\n{_indented(chr(10).join(body))}\n"
    head = f'"""Generated by `make proto` from {_path(twin.module).relative_to(ROOT)}: edit that file instead."""\n\n'
    return f"{head}from __future__ import annotations\n\n{_imports(twin, source, code)}\n\n\n{code}"


def _members(twin: Twin, definition: ast.ClassDef) -> list[str]:
    """The code of each public member, in the order of the asynchronous class."""
    by_hand = _defined(_class(_parse(twin.by_hand), twin.name)) if twin.by_hand else set()
    members = []
    docs = _docs_of_attributes(definition)
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not node.target.id.startswith("_"):
                members.append(_attribute(node.target.id, node.annotation, docs.get(node.target.id)))
        elif isinstance(node, Function):
            name = RENAMED.get(node.name, node.name)
            if name not in by_hand | twin.internal and (node.name in RENAMED or not name.startswith("_")):
                members.append(_method(node, name))
    return members


def _attribute(name: str, annotation: ast.expr, doc: str | None) -> str:
    body = "\n".join([*([_quoted(doc)] if doc else []), f"return self._async.{name}"])
    return f"@property\ndef {name}(self) -> {ast.unparse(annotation)}:\n{_indented(body)}\n"


def _docs_of_attributes(of: ast.ClassDef) -> dict[str, str]:
    """The string that stands under the annotation of an attribute."""
    return {
        node.target.id: below.value.value
        for node, below in pairwise(of.body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def _method(node: Function, name: str) -> str:
    doc = ast.get_docstring(node)
    lines = [_quoted(_in_sync_words(doc))] if doc else []
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    if node.name == "__aiter__" or (node.name == "__aenter__" and _only_returns_self(node)):
        returns, body = "Self", "return self"
    elif node.name == "__aenter__":
        body = "self._loop_thread.run(self._async.__aenter__())\nreturn self"
    else:
        body = _passed_on(node, returns)
        returns = SYNC[returns].name if returns in SYNC else returns
    decorator = "@property\n" if _is_property(node) else ""
    head = f"{decorator}def {name}({ast.unparse(node.args)}) -> {returns}:\n"
    return head + _indented("\n".join([*lines, body])) + "\n"


def _passed_on(node: Function, returns: str) -> str:
    """The statement that calls the asynchronous method."""
    call = f"self._async.{node.name}" + ("" if _is_property(node) else f"({_arguments(node.args)})")
    if returns in SYNC:  # the object belongs to the loop, so the loop has to make it
        twin = SYNC[returns]
        loading = f"from {twin.home} import {twin.name}\n\n" if twin.lazy else ""
        return f"{loading}return {twin.name}(self._loop_thread, self._loop_thread.do(lambda: {call}))"
    if isinstance(node, ast.FunctionDef):
        return f"return {call}" if returns != "None" else call
    waiting = f"self._loop_thread.run({call})"
    if node.name in ENDINGS:
        return f"if self._loop_thread.alive:\n    {waiting}"
    return f"return {waiting}" if returns != "None" else waiting


def _arguments(args: ast.arguments) -> str:
    """The arguments of the call that passes a signature's values on."""
    names = [arg.arg for arg in (*args.posonlyargs, *args.args)][1:]
    names += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    return ", ".join([*names, *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def _beginning(twin: Twin, bases: list[str]) -> str:
    if twin.name == "Client":  # it has no asynchronous client until its first use starts the loop
        return (
            "_loop_thread: LoopThread\n\n@property\ndef _async(self) -> AsyncClient:\n"
            "    return self._loop_thread.client\n"
        )
    return (
        f"def __init__(self, loop_thread: LoopThread, asynchronous: Async{twin.name}) -> None:\n"
        + ("    super().__init__(loop_thread, asynchronous)\n" if bases else "    self._loop_thread = loop_thread\n")
        + f"    self._async{f': Async{twin.name}' if bases else ''} = asynchronous\n"
    )


def _imports(twin: Twin, source: ast.Module, code: str) -> str:
    """The import of every name that the code uses, from the module from which the asynchronous class imports it."""
    homes = {"LoopThread": "tinymq.client.facade.loop_thread", "Self": "typing", "TYPE_CHECKING": "typing"}
    modules: dict[str, str] = {}  # by their local name: `import x as y`
    for node in source.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            homes[node.targets[0].id] = twin.module
        elif isinstance(node, ast.ClassDef):
            homes[node.name] = twin.module
    homes |= {each.name: each.home for each in TWINS}
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    if any(each.lazy and each is not twin and each.name in used for each in TWINS):
        used.add("TYPE_CHECKING")
    from_modules: dict[str, list[str]] = {}
    lazy = {each.name for each in TWINS if each.lazy and each is not twin} & used
    for name in used & homes.keys() - lazy:
        from_modules.setdefault(homes[name], []).append(name)
    lines: list[tuple[int, int, str, str]] = []  # section, kind, module, text: the order that isort wants
    for module, names in from_modules.items():
        imported = ", ".join(sorted(names, key=lambda name: (not name.isupper(), name)))
        lines.append((_section(module), 1, module, f"from {module} import {imported}"))
    for local in used & modules.keys():
        alias = f" as {local}" if local != modules[local] else ""
        lines.append((_section(modules[local]), 0, modules[local], f"import {modules[local]}{alias}"))
    sections: dict[int, list[str]] = {}
    for section, *_, text in sorted(lines):
        sections.setdefault(section, []).append(text)
    if lazy:
        sections[3] = ["if TYPE_CHECKING:", *(f"    from {homes[name]} import {name}" for name in sorted(lazy))]
    return "\n\n".join("\n".join(sections[section]) for section in sorted(sections))


def _section(module: str) -> int:
    package = module.partition(".")[0]
    return 0 if package in sys.stdlib_module_names else 2 if package == "tinymq" else 1


def _in_sync_words(doc: str) -> str:
    """A docstring of an asynchronous class, in the words of the synchronous class."""
    doc = re.sub(r"\basync (with|for)\b", r"\1", doc).replace("await ", "")
    return re.sub(r"\bAsync(?=[A-Z])", "", doc)


def _quoted(doc: str) -> str:
    return f'"""{doc}\n"""' if "\n" in doc else f'"""{doc}"""'


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in code.splitlines())


def _only_returns_self(node: Function) -> bool:
    (first, *others) = node.body
    return not others and ast.unparse(first) == "return self"


def _is_property(node: Function) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def _defined(of: ast.ClassDef) -> set[str]:
    return {node.name for node in of.body if isinstance(node, Function)}


def _class(source: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in source.body if isinstance(node, ast.ClassDef) and node.name == name)


def _path(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _parse(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text())


def path_of(twin: Twin) -> Path:
    """The path of a class's generated module."""
    return _path(twin.generated_module)


def main() -> None:
    """Write all the files, formatted."""
    for twin in TWINS:
        path_of(twin).write_text(generate(twin))
    subprocess.run(["ruff", "format", "--quiet", *(str(path_of(twin)) for twin in TWINS)], check=True)


if __name__ == "__main__":
    main()
