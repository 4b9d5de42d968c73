"""The repository's own rules, as far as a program can see them (CONTRIBUTING.md says why)."""

from __future__ import annotations

import ast
import gc
import importlib
import io
import re
import subprocess
import textwrap
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf import descriptor_pb2

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
TEXTS = {".py", ".md", ".toml", ".proto", ".yml", ".yaml", ".txt", ".cfg", ""}

FILE_CODE_LINES_MAX = 330  # without blank lines, comments and docstrings (adr/0142)
TEST_FILE_CODE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
UNCOMMENTED_LINES_MAX = 30  # of a function in the rooms whose code is hard
HARD_ROOMS = ("raft", "log", "broker")
POSITIONAL_MAX = 6
SEEN_FROM_BOTH_ENDS = {  # classes of one name
    "Broker", "Cluster", "Due", "FetchStream", "Grant", "GroupStory", "HungTransaction", "Partition", "Peers",
    "ProduceStream", "Redriven", "Transaction", "Verb", "WorkStream",
}  # fmt: skip
VARIADIC = {"pack", "zip", "gather", "element"}  # calls that cannot name their arguments
FOLDER_MODULES_MAX = 15
SUBJECT_LENGTH_MAX = 72
SUBJECTS_SINCE = "1d77fed075e90aaa0a128077a5d6f61cade178bc"

NAMES_THAT_SAY_NOTHING = re.compile(
    r"(Manager|Helper|Handler|Utils?)$|^(manager|helper|handler|util)s?$|_(helper|util)s?$"
)
# A home, a scratch folder, or a checkout of one machine.
MACHINE_PATHS = re.compile(r"(?<![\w.<{~])/(home|root|Users|work|tmp|opt)/(?!\w*\.\.\.)[\w.-]+")


def _tracked() -> list[Path]:
    """Files that are in the repository, and sources that will be; without git (an unpacked archive), all files."""
    command = ["git", "ls-files", "--exclude-standard"]
    try:
        tracked = subprocess.run([*command, "--cached"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        others = subprocess.run([*command, "--others"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        new = [name for name in others.splitlines() if Path(name).suffix in (".py", ".md", ".proto")]
        files = [ROOT / name for name in [*tracked.splitlines(), *new]]
    except (OSError, subprocess.CalledProcessError):
        hidden = {".git", ".venv", ".tinymq", "__pycache__"}
        files = [path for path in ROOT.rglob("*") if not hidden & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in files if path.is_file())


FILES = _tracked()
PYTHON = [p for p in FILES if p.suffix == ".py" and not p.name.endswith(GENERATED)]
PRODUCT = [p for p in PYTHON if p.relative_to(ROOT).parts[0] in ("tinymq", "chaos", "spark")]
SOURCE = [p for p in PYTHON if p.relative_to(ROOT).parts[0] == "tinymq"]
TESTS = [p for p in PYTHON if p.relative_to(ROOT).parts[0] == "tests"]

KINDS = (
    ast.AsyncFunctionDef, ast.Call, ast.ClassDef, ast.ExceptHandler, ast.FunctionDef, ast.Import, ast.ImportFrom,
    ast.While,
)  # fmt: skip
# The nodes of PYTHON: each file is parsed once, and each tree walked once.
TREES: dict[Path, ast.Module] = {}
NODES: dict[tuple[Path, type[ast.AST]], list[ast.AST]] = defaultdict(list)  # of KINDS
N = TypeVar("N", bound=ast.AST)


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Garbage collection is off: it would visit each of a million nodes, and trees have no cycles."""
    gc.disable()
    try:
        for path in PYTHON:
            TREES[path] = ast.parse(path.read_text(), str(path))
            for node in ast.walk(TREES[path]):
                if isinstance(node, KINDS):
                    NODES[path, type(node)].append(node)
        yield
    finally:
        TREES.clear()
        NODES.clear()
        gc.enable()


def _where(path: Path, node: ast.AST | None = None) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def _nodes(paths: list[Path], *kinds: type[N]) -> Iterator[tuple[Path, N]]:
    assert set(kinds) <= set(KINDS)
    for path in paths:
        for kind in kinds:
            for node in NODES.get((path, kind), ()):
                assert isinstance(node, kind)
                yield path, node


def _functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    yield from _nodes(PYTHON, ast.FunctionDef)
    yield from _nodes(PYTHON, ast.AsyncFunctionDef)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _imports(paths: list[Path]) -> Iterator[tuple[Path, ast.AST, str]]:
    """Yield imports by their full names."""
    for path, node in _nodes(paths, ast.Import):
        for alias in node.names:
            yield path, node, alias.name
    for path, each in _nodes(paths, ast.ImportFrom):
        if each.level == 0:
            yield path, each, each.module or ""


def test_the_rules_see_the_code() -> None:
    assert len(SOURCE) > 10
    assert ROOT / "tests" / "test_tidy.py" in TESTS


def _docstring(node: ast.AST) -> ast.Constant | None:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    found = first.value if isinstance(first, ast.Expr) else None
    return found if isinstance(found, ast.Constant) and isinstance(found.value, str) else None


def _code_lines(path: Path) -> int:
    """Count the lines of code: all but blank lines, comments and docstrings."""
    lines = path.read_text().splitlines()
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(TREES[path]):
        docstring = _docstring(node)
        if docstring is not None and docstring.end_lineno is not None:
            code.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(code)


def _is_generated(path: Path) -> bool:
    return path.read_text().startswith('"""Generated by `make proto`')


def test_files_are_short() -> None:
    """Those that a person writes: a signature that fits three lines takes ten where ruff has formatted it."""
    long = []
    for path in PYTHON:
        limit = TEST_FILE_CODE_LINES_MAX if path in TESTS else FILE_CODE_LINES_MAX
        if path.read_text().count("\n") > limit and not _is_generated(path):
            lines = _code_lines(path)
            if lines > limit:
                long.append(f"{_where(path)}: {lines} lines of code")
    assert not long


def test_docstrings_and_comments_are_no_code(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""One.\n\nTwo.\n"""\n\n# why\nx = (\n    1,  # here\n)\n\n\ndef f():\n    """Three."""\n    return "x"\n'
    )
    TREES[path] = ast.parse(path.read_text())
    assert _code_lines(path) == 5


def test_one_class_name_is_one_thing() -> None:
    """Names of SEEN_FROM_BOTH_ENDS are one thing that two rooms see, or that a test's world replaces."""
    classes = defaultdict(set)
    for path, node in _nodes(SOURCE, ast.ClassDef):
        if not node.name.startswith("_") and not _is_generated(path):
            classes[node.name].add(path.relative_to(ROOT).as_posix())
    assert {
        name: places for name, places in classes.items() if len(places) > 1 and name not in SEEN_FROM_BOTH_ENDS
    } == {}
    assert {name for name in SEEN_FROM_BOTH_ENDS if len(classes[name]) < 2} == set()


def test_no_folder_is_a_shelf_to_be_searched() -> None:
    """A larger folder must become rooms. Programs for spark-submit lie side by side, because a path starts each."""
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in PRODUCT if path.name != "__init__.py")
    del folders["spark/pipelines"]
    assert {folder: modules for folder, modules in folders.items() if modules > FOLDER_MODULES_MAX} == {}


def test_every_room_says_what_belongs_there() -> None:
    """And what does not belong: the docstring of a sub-package has at least two sentences."""
    rooms = [path for path in PRODUCT if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 3]
    assert len(rooms) > 40
    assert not [_where(path) for path in rooms if (ast.get_docstring(TREES[path]) or "").count(".") < 2]


def test_files_that_texts_cite_are_there() -> None:
    cited = re.compile(r"(?<![\w/.])(?:tinymq|chaos|spark|tests|benchmarks|examples)/[\w/]+\.py\b")
    texts = [path for path in FILES if path.suffix in (".py", ".md")]
    places = [(path, name) for path in texts for name in cited.findall(path.read_text()) if "/x/" not in name]
    homes = (ROOT, ROOT / "chaos", ROOT / "spark", ROOT / "tests")
    assert len(places) > 100
    assert not [f"{_where(path)}: {name}" for path, name in places if not any((home / name).exists() for home in homes)]


def test_decisions_are_cited_by_their_names() -> None:
    """A number would change when another decision is added."""
    decisions = re.findall(r"^\d+\. \*\*(.+?)\*\*", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    cited = [
        (path, name)
        for path in PYTHON
        if path != ROOT / "tests" / "test_tidy.py"
        for name in re.findall(r"\(ARCHITECTURE\.md: ([^)]+)\)|\(architecture[ ,]", path.read_text())
    ]
    assert len(cited) > 3
    assert not [
        f"{_where(path)} {name}" for path, name in cited if not any(d.startswith(name or "?") for d in decisions)
    ]


def test_commits_say_which_room_they_change() -> None:
    """All since SUBJECTS_SINCE. An unpacked archive has no commits."""
    if not (ROOT / ".git").exists():
        return
    log = ["git", "log", "--no-merges", "--format=%s", f"{SUBJECTS_SINCE}..HEAD"]
    subjects = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    form = re.compile(r"[a-z][a-z_/-]*(, [a-z][a-z_/-]*)*: \S")
    assert not [subject for subject in subjects if len(subject) > SUBJECT_LENGTH_MAX or not form.match(subject)]


def test_functions_are_short() -> None:
    long = [(path, node) for path, node in _functions() if _lines(node) > FUNCTION_LINES_MAX]
    assert not [f"{_where(path, node)} {node.name}: {_lines(node)} lines" for path, node in long]


def test_long_functions_of_hard_rooms_give_reasons() -> None:
    """A comment in the middle of the function, where a reader would be lost."""
    without = []
    for path, node in _functions():
        if path not in SOURCE or path.relative_to(ROOT).parts[1] not in HARD_ROOMS:
            continue
        if _lines(node) > UNCOMMENTED_LINES_MAX:
            assert node.end_lineno is not None
            body = "\n".join(path.read_text().splitlines()[node.lineno - 1 : node.end_lineno]) + "\n"
            tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent(body)).readline)
            comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
            if all(comment.startswith(("# fmt:", "# type:", "# noqa")) for comment in comments):
                without.append(f"{_where(path, node)} {node.name}")
    assert without == []


def test_long_calls_name_their_arguments() -> None:
    long = []
    for path, call in _nodes(PRODUCT, ast.Call):
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if len(call.args) > POSITIONAL_MAX and not starred and name not in VARIADIC:
            long.append(f"{_where(path, call)} {name}: {len(call.args)} arguments without names")
    assert long == []


def test_every_module_opens_with_its_rule() -> None:
    assert not [_where(path) for path in PYTHON if not ast.get_docstring(TREES[path])]


def test_names_say_something() -> None:
    classes = [
        f"{_where(p, n)} {n.name}" for p, n in _nodes(PYTHON, ast.ClassDef) if NAMES_THAT_SAY_NOTHING.search(n.name)
    ]
    modules = [_where(path) for path in PYTHON if NAMES_THAT_SAY_NOTHING.search(path.stem)]
    assert not classes + modules


def test_tests_never_sleep() -> None:
    """Tests wait for a condition with a deadline, or move a manual clock. Only a loop that checks a condition may call
    asyncio.sleep, which lets other tasks run.
    """
    sleeps = []
    for path in TESTS:
        looping = {id(n) for _, loop in _nodes([path], ast.While) for n in ast.walk(loop)}
        for _, node in _nodes([path], ast.Call):
            called = ast.unparse(node.func)
            if called in ("time.sleep", "asyncio.sleep"):
                zero = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
                if called == "time.sleep" or not (zero or id(node) in looping):
                    sleeps.append(_where(path, node))
        for _, imported in _nodes([path], ast.ImportFrom):
            if imported.module in ("time", "asyncio"):
                sleeps += [_where(path, imported) for alias in imported.names if alias.name == "sleep"]
    assert not sleeps


def test_no_test_is_skipped() -> None:
    marks = re.compile(r"pytest\.(skip|xfail|importorskip)\b|mark\.(skip|skipif|xfail)\b")
    this = ROOT / "tests" / "test_tidy.py"
    assert not [_where(path) for path in TESTS if path != this and marks.search(path.read_text())]


def test_nothing_is_unpickled() -> None:
    """Unpickling a peer's bytes would run the peer's code."""
    forbidden = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
    found = [(p, n, name) for p, n, name in _imports(SOURCE) if name.split(".")[0] in forbidden]
    assert not [f"{_where(p, n)} {name}" for p, n, name in found]


def test_only_raft_imports_pysyncobj() -> None:
    found = [(p, n) for p, n, name in _imports(PYTHON) if name.split(".")[0] == "pysyncobj"]
    allowed = (("tinymq", "raft"), ("tests", "raft"))
    assert not [_where(p, n) for p, n in found if p.relative_to(ROOT).parts[:2] not in allowed]


def test_grpc_is_imported_at_the_edges_only() -> None:
    found = [(p, n) for p, n, name in _imports(SOURCE) if name.split(".")[0] == "grpc"]
    channel = ROOT / "tinymq" / "client" / "net" / "grpc_transport.py"
    assert not [_where(p, n) for p, n in found if p.relative_to(ROOT).parts[1] != "rpc" and p != channel]


def test_pysyncobj_is_pinned_in_one_place() -> None:
    pin = re.compile(r"pysyncobj\s*[=<>~!]=", re.IGNORECASE)
    named = [
        p for p in FILES if p.suffix in (".toml", ".cfg", ".lock") or p.name == "Makefile"
    ]  # requirements/ follows
    pins = [(p.name, line.strip()) for p in named for line in p.read_text().splitlines() if pin.search(line)]
    assert pins == [("pyproject.toml", '"pysyncobj==0.3.17",')]


def test_no_error_is_dropped_unseen() -> None:
    """A broad except clause must handle the error."""
    dropped = []
    for path, node in _nodes(PYTHON, ast.ExceptHandler):
        broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id.endswith("Exception"))
        if broad and all(isinstance(each, ast.Pass) for each in node.body):
            dropped.append(_where(path, node))
    for path, call in _nodes(PYTHON, ast.Call):
        if ast.unparse(call.func).endswith("suppress"):
            dropped += [_where(path, call) for a in call.args if ast.unparse(a) in ("Exception", "BaseException")]
    assert not dropped


def _texts() -> Iterator[tuple[Path, int, str]]:
    for path in FILES:
        if path.suffix in TEXTS and path.name != "LICENSE" and not path.name.endswith(GENERATED):
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                yield path, number, line


def test_no_path_of_one_machine() -> None:
    this = ROOT / "tests" / "test_tidy.py"
    found = [(p, n, m[0]) for p, n, line in _texts() if p != this and (m := MACHINE_PATHS.search(line))]
    assert not [f"{p.relative_to(ROOT)}:{n}: {what}" for p, n, what in found]


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    this = ROOT / "tests" / "test_tidy.py"
    assert not [f"{p.relative_to(ROOT)}:{n}" for p, n, line in _texts() if p != this and marks.search(line)]


def test_links_between_pages_lead_somewhere() -> None:
    link = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
    pages = [path for path in FILES if path.suffix == ".md"]
    targets = [(page, target) for page in pages for target in link.findall(page.read_text())]
    assert not [f"{_where(page)}: {t}" for page, t in targets if not (page.parent / t).exists()]


def _without_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """The compiler adds them to a descriptor set, and leaves them out of generated code."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        _without_json_names(nested)


@pytest.mark.parametrize("name", ["tinymq", "peer", "registry", "partition"])
def test_generated_code_is_not_stale(name: str, tmp_path: Path) -> None:
    """`make proto` was run after the last change of a .proto file. Compared by meaning, not by compiler version."""
    from grpc_tools import protoc

    module = importlib.import_module(f"tinymq.proto.{name}_pb2")
    out = tmp_path / "descriptors"
    assert protoc.main(["protoc", f"-I{ROOT}", f"--descriptor_set_out={out}", f"tinymq/proto/{name}.proto"]) == 0
    (fresh,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    for message in fresh.message_type:
        _without_json_names(message)
    checked_in = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    assert fresh == checked_in, "run make proto"
    stubs = (ROOT / "tinymq" / "proto" / f"{name}_pb2.pyi").read_text()
    assert not [m.name for m in fresh.message_type if f"class {m.name}(" not in stubs], "run make proto"
    services = {s.name: {m.name for m in s.method} for s in fresh.service}
    if services:
        calls = (ROOT / "tinymq" / "proto" / f"{name}_pb2_grpc.py").read_text()
        missing = [f"/{s}/{m}" for s in services for m in services[s] if f"{fresh.package}.{s}/{m}'" not in calls]
        assert not missing, "run make proto"


def test_the_generated_code_runs_with_the_oldest_allowed_libraries() -> None:
    """Generated code refuses an older runtime at import, so pyproject.toml must require that version."""
    project = (ROOT / "pyproject.toml").read_text()
    grpc_code = (ROOT / "tinymq" / "proto" / "tinymq_pb2_grpc.py").read_text()
    grpc_version = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", grpc_code)
    code = (ROOT / "tinymq" / "proto" / "tinymq_pb2.py").read_text()
    protobuf_version = re.search(r"Protobuf Python Version: ([\d.]+)", code)
    assert grpc_version is not None
    assert protobuf_version is not None
    assert f'"grpcio>={grpc_version[1]}"' in project
    assert f'"protobuf>={protobuf_version[1]}"' in project


def test_the_fast_tests_are_there() -> None:
    """pytest with several workers runs no test at all if one of its paths is missing."""
    fast = re.search(r"^FAST := ((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert fast is not None
    paths = fast[1].replace("\\", " ").split()
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / "tests" / path).exists()] == []
