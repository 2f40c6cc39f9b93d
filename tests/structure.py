"""Structure rules: functions from the parsed source tree to the findings that break a rule.

A rule takes the modules of the tree and returns one line for each finding: file, line and what to do instead. A rule
opens no file, so that `test_structure.py` runs it on the real tree and on a small bad one. The layers of imports are
contracts in `pyproject.toml`, which import-linter checks. Start at `RULES`, at the bottom.
"""

import ast
import io
import posixpath
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

_TERM = re.compile(r"(?:(?!\n\n|\. )[^:]){2,90}:\s\S")
"""Opening of a docstring: `<term>: what it does`, in its first sentence."""
PRODUCT = ("lance_core", "lance_assets")
PURE_PACKAGES = (
    "lance_core.datafiles.assemble",
    "lance_core.datafiles.blob_locations",
    "lance_core.datafiles.column_layout",
    "lance_core.expressions",
    "lance_core.format",
    "lance_core.fsck.manifests",
    "lance_core.index.access_path",
    "lance_core.maintenance.compaction_plan",
    "lance_core.scan.column_resolution",
    "lance_core.scan.plan",
    "lance_core.tasks.streaming.offsets",
    "lance_core.transactions",
    "lance_assets.common.text",
    "lance_assets.io_manager.partition_predicates",
    "lance_assets.io_manager.partition_values",
    "lance_assets.io_manager.window_bounds",
    "lance_assets.ledger.partition_keys",
    "lance_assets.lineage.graph",
    "lance_assets.lineage.model",
    "lance_assets.lineage.render",
    "lance_assets.maintenance.plan",
)
"""Packages and modules without I/O, clocks, random numbers and threads; the simulator replaces what they are passed."""
GENERATED = "lance_core.format._pb"
CODEC = "lance_core.datafiles.lance_codec"

# Modules that no import statement names: the shell, Dagster's workspace.yaml and users load them.
ENTRY_POINTS = (
    "lance_assets.demo",
    "lance_assets.components",
    "lance_assets.demo.definitions",
    "lance_core.datafiles.decoder_worker",
    "lance_core.operations",
    "lance_core.tasks",
)

# Implementations that only tests use: the codec and the store that histories run on in memory.
FOR_TESTS = ("lance_core.datafiles.ipc_codec", "lance_core.storage.memory")

# Modules of the core that users may import besides the package itself.
PUBLIC_PACKAGES = ("lance_core.operations", "lance_core.progress", "lance_core.shell", "lance_core.tasks")

# Imports that are allowed inside a function, because they are slow and not always needed: lance.file takes 0.3 s.
LOADED_ON_FIRST_USE: Mapping[str, tuple[str, ...]] = {
    CODEC: ("lance.file", "lance_core.datafiles.isolated_reader"),
    "lance_core.expressions.arrow_evaluation": ("pyarrow.acero",),
    "lance_core.expressions.engine": ("datafusion",),
    "lance_core.index.registry": (
        "lance_core.index.bitmap",
        "lance_core.index.bloomfilter",
        "lance_core.index.btree",
        "lance_core.index.label_list",
        "lance_core.index.ngram",
        "lance_core.index.text.inverted",
        "lance_core.index.vector.vector_type",
        "lance_core.index.zonemap",
    ),
    "lance_core.table.frames": ("lance_core.table.arrow_dataset", "lance_core.table.torch_datasets"),
    "lance_core.storage.factory": (
        "lance_core.storage.manifest_stores.dynamodb",
        "lance_core.storage.manifest_stores.sql",
    ),
    "lance_core.storage.manifest_stores.dynamodb": ("botocore",),
    "lance_core.storage.manifest_stores.sql": ("sqlalchemy",),
    "lance_core.table.reading": ("lance_core.fsck.examine",),
    "lance_core.table.searches": (
        "lance_core.index.hybrid_search",
        "lance_core.index.text.text_search",
        "lance_core.index.vector.search",
    ),
    "lance_core.storage.object_store": ("lance_core.storage.buckets.client_cache",),
}

IO_MODULES = (
    "asyncio", "concurrent", "fsspec", "glob", "http", "logging", "multiprocessing", "numpy.random", "os",
    "pathlib", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "random", "requests", "secrets", "shutil",
    "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
)  # fmt: skip
CLOCK_CALLS = ("now", "today", "utcnow")
FRESH_UUIDS = ("uuid1", "uuid4", "uuid6", "uuid7")
OPENS_FILES = ("input", "open", "print")
# Spark pickles the plans that travel to workers; the core itself unpickles nothing.
EXECUTES_BYTES = (
    "cffi",
    "cloudpickle",
    "ctypes",
    "dill",
    "joblib",
    "jsonpickle",
    "marshal",
    "pickle",
    "shelve",
    "yaml",
)
EXECUTES_TEXT = ("__import__", "compile", "eval", "exec")
EXECUTES_LOADED_DATA = ("allow_pickle", "read_pickle", "set_auto_load", "unsafe_load")


TOP_LEVEL_NAMES_MAX = {"lance_core": 24, "lance_assets": 20}
CLASSES_OF_ONE_NAME_MAX = 2
MODULES_OF_ONE_NAME_MAX = 3
COMPLEXITY, COMPLEXITY_MAX = 15, 25
COMPLEX_FUNCTIONS: Mapping[str, str] = {
    "lance_assets.checks.duplicates._normalize": "one case per type",
    "lance_assets.checks.index_checks.judge": "comprehensions over one list, each a line of the result",
    "lance_assets.cli.diff._column_changes": "comprehensions: one per kind of change, in the order they are printed",
    "lance_assets.cli.diff._fragment_changes": "comprehensions: one per kind of change, in the order they are printed",
    "lance_assets.cli.printing.table_lines": "comprehensions: one step each of laying out a table",
    "lance_assets.definitions.lance_table.lance_table": "public constructor: one condition per optional argument",
    "lance_assets.discovery.leader.elect_leader": "one protocol, whose steps share the list of claims",
    "lance_assets.discovery.reconcile.reconcile": "its correctness rests on the order of its reads and writes",
    "lance_assets.maintenance.maintenance_step._maintain": "the three actions of one step, in order, each optional",
    "lance_assets.maintenance.policy.__post_init__": "validation: one condition per option",
    "lance_assets.spark.session._start_application": "one condition per setting",
    "lance_assets.spark.settings.__post_init__": "validation: one condition per setting",
    "lance_assets.spark.types._transport_type": "one case per Arrow type",
    "lance_core.datafiles.assemble._assemble": "one case per nested type",
    "lance_core.datafiles.blob_writing.check_references": "validation: one condition per defect of a reference",
    "lance_core.datafiles.conform.is_equivalent": "one case per pair of types",
    "lance_core.datafiles.fragment_reader._build_layout": "one pass over the files that fills four tables",
    "lance_core.datafiles.fragment_reader._open": "hot path: a cached layout, or the checks that build one",
    "lance_core.expressions.tree._node_or_none": "one case per kind of expression",
    "lance_core.expressions.widening.is_widening": "one case per family of types",
    "lance_core.format.transaction._encode_operation": "one case per operation",
    "lance_core.format.schema._from_arrow": "one case per Arrow type",
    "lance_core.scan.explain._explain_lines": "one condition per line of the explanation",
    "lance_core.scan.plan.plan_scan": "validation of the arguments, then the plan",
    "lance_core.scan.row_reader._matching_batches": "chooses one of three ways to read late columns",
    "lance_core.tasks.ingest.csv_values.parse_values": "one case per type",
    "lance_core.tasks.streaming.stream_source.latest_offset": "one condition per limit of a stream",
    "lance_core.transactions.apply._apply_operation": "one case per operation",
    "lance_core.transactions.apply_rows._rewritten_indices": "one condition per way to follow a compaction",
    "lance_core.transactions.rebase._rebase_deletions": "one condition per way in which deletions meet",
    "lance_core.transactions.rebase._tombstone_dropped_columns": "one pass over files and fields",
    "lance_core.versions.snapshot.read_history": "one loop, whose conditions are the cases of a stale listing",
}
"""Functions whose complexity is above `COMPLEXITY`, with the reason why splitting them would not help a reader."""
RELATIVE_OPENING = re.compile(r"(?:Of|What|Who|Whose|Which|Where|Whether|Those|None of|Whoever|Whatever)\b")
FILE_REFERENCE = re.compile(r"(?<![\w./{}*-])(?!NNN|here\b)((?:[\w-]+/)*[\w-]+\.(?:py|md))(?![\w({*])")
RELATIVE_LINK = re.compile(r"\]\((?!\w+:)([^)\s#]+\.(?:py|md|proto|toml|yaml))(?:#[^)]*)?\)")
NOT_CHECKED_FOR_REFERENCES = ("CHANGELOG.md", "tests/structure.py", "tests/test_structure.py", "tests/__init__.py")


@dataclass(frozen=True)
class Module:
    """One Python file: dotted name, path in the tree and text. It has no slots, since it caches its parse."""

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree, cached since many rules visit them."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> "tuple[Import, ...]":
        return tuple(_imports(self, self.tree, in_function=False, for_types=False))

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    def finding(self, line: int, message: str) -> str:
        return f"{self.path}:{line}: {message}"


@dataclass(frozen=True)
class Import:
    """One imported name; `from a import b` is `a.b`, whether `b` is a module or a name in it."""

    name: str
    line: int
    in_function: bool
    for_types: bool


Modules = tuple[Module, ...]
Rule = Callable[[Modules], list[str]]


def pure_packages_do_no_io(modules: Modules) -> list[str]:
    """Pure packages get clocks, uuids, random numbers and bytes as arguments: the simulator replaces them."""
    findings = []
    for module in modules_within(handwritten(modules), *PURE_PACKAGES):
        findings += [
            module.finding(each.line, f"a pure package imports {each.name}; pass in what it needs")
            for each in module.imports
            if is_within(each.name, *IO_MODULES) or each.name in {f"uuid.{name}" for name in FRESH_UUIDS}
        ]
        for node in module.nodes:
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in OPENS_FILES:
                    findings.append(module.finding(node.lineno, f"a pure package calls {name}(); pass in the bytes"))
                case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCK_CALLS:
                    findings.append(
                        module.finding(node.lineno, f"a pure package reads the clock with {name}(); pass in the time")
                    )
                case ast.Attribute(value=ast.Name(id="uuid"), attr=name) if name in FRESH_UUIDS:
                    findings.append(
                        module.finding(node.lineno, f"a pure package creates a uuid with {name}; pass it in")
                    )
                case ast.Attribute(value=ast.Name(id="numpy" | "np"), attr="random"):
                    findings.append(module.finding(node.lineno, "a pure package draws a random number; pass it in"))
    return findings


def every_module_is_imported(modules: Modules) -> list[str]:
    """A module that no other module imports is dead. A package whose `__init__` is empty is not checked."""
    product = modules_within(handwritten(modules), *PRODUCT)
    opened = {module.name for module in product if module.name in PRODUCT and len(module.tree.body) > 1}
    mentioned_by: dict[str, set[str]] = {}
    for module in product:
        for mentioned in {
            prefix for name in _mentions(module) for prefix in accumulate(name.split("."), "{}.{}".format)
        }:
            mentioned_by.setdefault(mentioned, set()).add(module.name)
    findings = []
    for module in product:
        known = (
            module.name in PRODUCT
            or is_within(module.name, *ENTRY_POINTS, *FOR_TESTS)
            or module.name.endswith(".__main__")
        )
        if known or module.name.partition(".")[0] not in opened:
            continue
        if all(is_within(other, module.name) for other in mentioned_by.get(module.name, ())):
            findings.append(module.finding(1, f"no module imports {module.name}; use it, remove it or list it above"))
    return findings


def generated_code_stays_in_format(modules: Modules) -> list[str]:
    """Only the format package imports generated messages; other packages use its views."""
    return [
        module.finding(each.line, f"{each.name} is generated code; only lance_core/format imports it, use its views")
        for module in modules
        if not is_within(module.name, "lance_core.format", "tests")
        for each in module.imports
        if is_within(each.name, GENERATED)
    ]


def core_executes_no_data(modules: Modules) -> list[str]:
    """A table is untrusted input: data that is read must not be executed."""
    findings = []
    for module in modules_within(handwritten(modules), "lance_core"):
        findings += [
            module.finding(each.line, f"{each.name} executes what it reads; use protobuf, JSON or Arrow IPC")
            for each in module.imports
            if is_within(each.name, *EXECUTES_BYTES)
        ]
        findings += [
            module.finding(node.lineno, f"{node.func.id}() executes text")
            for node in module.nodes
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXECUTES_TEXT
        ]
        for node in module.nodes:
            match node:
                case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in EXECUTES_LOADED_DATA:
                    findings.append(
                        module.finding(node.lineno, f"{name} runs what it reads; use protobuf, JSON or Arrow IPC")
                    )
    return findings


def reads_are_bounded(modules: Modules) -> list[str]:
    """A file can have any size: outside the storage package it is read up to a limit, or in ranges."""
    return [
        module.finding(node.lineno, f"{ast.unparse(node)} reads a file of any size; use read_whole or pass a range")
        for module in modules_within(handwritten(modules), "lance_core")
        if not is_within(module.name, "lance_core.storage", *FOR_TESTS)
        for node in module.nodes
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if isinstance(node.func, ast.Attribute) and node.func.attr == "read"
        if re.fullmatch(r"(.*\.)?_?(own_store|store|root)", ast.unparse(node.func.value))
    ]


def exceptions_are_named(modules: Modules) -> list[str]:
    """An except clause names the errors that it can handle; all others propagate."""
    return [
        module.finding(node.lineno, "catches every exception; name the ones that it handles")
        for module in modules_within(handwritten(modules), "lance_core")
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler) and not _raises_again(node)
        if node.type is None or {"Exception", "BaseException"} & {each.strip() for each in _named(node.type)}
    ]


def _named(errors: ast.expr) -> list[str]:
    return [ast.unparse(each) for each in (errors.elts if isinstance(errors, ast.Tuple) else [errors])]


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def pylance_is_a_codec(modules: Modules) -> list[str]:
    """The product uses lance.file of pylance only, in one module, however it is imported."""
    findings = []
    for module in modules_within(handwritten(modules), *PRODUCT):
        for name, line in _loads(module):
            if is_within(name, "lance") and (module.name != CODEC or not is_within(name, "lance.file")):
                findings.append(module.finding(line, f"{name} of pylance; use only lance.file, and only in {CODEC}"))
    return findings


def core_imports_at_the_top(modules: Modules) -> list[str]:
    """An import inside a function hides a cycle between layers, unless the module is slow to import."""
    findings = []
    for module in modules_within(handwritten(modules), "lance_core"):
        lazy = LOADED_ON_FIRST_USE.get(module.name, ())
        for each in module.imports:
            if each.in_function and not is_within(each.name, *lazy):
                findings.append(
                    module.finding(each.line, f"{each.name} is imported inside a function; import it at the top")
                )
            if not each.in_function and not each.for_types and is_within(each.name, *lazy):
                findings.append(module.finding(each.line, f"{each.name} is slow to import; load it inside a function"))
    return findings


def lance_assets_uses_the_public_api(modules: Modules) -> list[str]:
    """lance_assets imports the public names of lance_core, its tasks and its operations; other modules may move."""
    rooms = {module.name for module in modules if is_within(module.name, "lance_core")} - {"lance_core"}
    return [
        module.finding(each.line, f"{each.name} is internal; use lance_core, its tasks or operations")
        for module in modules_within(modules, "lance_assets")
        for each in module.imports
        if is_within(each.name, *rooms) or each.name.startswith("lance_core._") or each.name.count(".") > 1
        if is_within(each.name, "lance_core") and not is_within(each.name, *PUBLIC_PACKAGES)
    ]


def spark_package_imports_no_dagster(modules: Modules) -> list[str]:
    """Executors load lance_assets.spark, so neither it nor what it imports may load Dagster."""
    assets = {module.name for module in modules if is_within(module.name, "lance_assets")}
    return [
        module.finding(each.line, f"{each.name} in the Spark package, which may import lance_core and PySpark")
        for module in modules_within(modules, "lance_assets.spark")
        for each in module.imports
        if is_within(each.name, "dagster", "dagster_pyspark", "dagster_shared")
        or (is_within(each.name, *(assets - {"lance_assets"})) and not is_within(each.name, "lance_assets.spark"))
    ]


def suppressions_name_a_code(modules: Modules) -> list[str]:
    """A suppression of a linter or type checker names the code that it suppresses."""
    bare = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)", re.IGNORECASE)
    return [
        module.finding(token.start[0], f"{token.string!r} suppresses every code; name one")
        for module in handwritten(modules)
        if bare.search(module.text)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT and bare.search(token.string)
    ]


def modules_have_docstrings(modules: Modules) -> list[str]:
    """A module docstring says what the module holds."""
    return [
        module.finding(1, "no module docstring; say what the module holds")
        for module in handwritten(modules)
        if not ast.get_docstring(module.tree)
    ]


def docstrings_open_with_a_term(modules: Modules) -> list[str]:
    """The docstring of a module of the product begins with the established term for it, and says what it does."""
    return [
        module.finding(1, "the docstring does not open with a term, a colon and what the module does")
        for module in handwritten(modules)
        if module.path.startswith(("lance_core/", "lance_assets/", "pyspark_lance/"))
        and not _TERM.match(ast.get_docstring(module.tree) or "")
    ]


def packages_are_few(modules: Modules) -> list[str]:
    """A reader finds a module by its folder, so each package has few top-level names."""
    findings = []
    for package, names_max in TOP_LEVEL_NAMES_MAX.items():
        names = {module.path.split("/")[1].removesuffix(".py"): module for module in modules_within(modules, package)}
        named = sorted(name for name in names if not name.startswith("__"))
        if len(named) > names_max:
            last = names[named[-1]]
            findings.append(
                last.finding(1, f"{package} has {len(named)} top-level names, at most {names_max}; group them")
            )
    return findings


def names_are_unique(modules: Modules) -> list[str]:
    """A name that several modules define has to be looked up before it is understood."""
    classes: dict[str, list[tuple[Module, int]]] = {}
    files: dict[str, list[Module]] = {}
    for module in modules_within(handwritten(modules), *PRODUCT):
        stem = module.path.rpartition("/")[2].removesuffix(".py")
        if not stem.startswith("__"):
            files.setdefault(stem, []).append(module)
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append((module, node.lineno))
    return [
        *(
            module.finding(line, f"{len(uses)} classes are called {name}, at most {CLASSES_OF_ONE_NAME_MAX}; rename it")
            for name, uses in classes.items()
            if len({module.name for module, _ in uses}) > CLASSES_OF_ONE_NAME_MAX
            for module, line in uses[-1:]
        ),
        *(
            uses[-1].finding(1, f"{len(uses)} modules are called {name}, at most {MODULES_OF_ONE_NAME_MAX}; rename it")
            for name, uses in files.items()
            if len(uses) > MODULES_OF_ONE_NAME_MAX
        ),
    ]


def functions_are_simple(modules: Modules) -> list[str]:
    """A function with many branches is split, or its reason is in `COMPLEX_FUNCTIONS`."""
    findings = []
    for module in modules_within(handwritten(modules), *PRODUCT):
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef):
                allowed = COMPLEXITY_MAX if f"{module.name}.{node.name}" in COMPLEX_FUNCTIONS else COMPLEXITY
                if (branches := complexity(node)) > allowed:
                    advice = f"{node.name} has complexity {branches}; split it, or say why not in COMPLEX_FUNCTIONS"
                    findings.append(module.finding(node.lineno, advice))
    return findings


def complexity(function: ast.FunctionDef) -> int:
    """Return the cyclomatic complexity of a function, without those nested in it: one, plus one for each branch."""
    return 1 + sum(_branches(child) for child in ast.iter_child_nodes(function))


def _branches(node: ast.AST) -> int:
    own = 0
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return 0
        case (
            ast.If() | ast.IfExp() | ast.For() | ast.While() | ast.ExceptHandler() | ast.comprehension() | ast.Assert()
        ):
            own = 1
        case ast.BoolOp(values=values):
            own = len(values) - 1
        case ast.match_case(pattern=ast.MatchAs(pattern=None)):
            own = 0
        case ast.match_case():
            own = 1
    return own + sum(_branches(child) for child in ast.iter_child_nodes(node))


def sentences_open_plainly(modules: Modules) -> list[str]:
    """A docstring starts with what the thing is or does, and its sentences with their subject."""
    return [
        module.finding(line, f"a sentence opens with {match[0]!r}; start with the subject or the verb")
        for module in handwritten(modules)
        for line, text in docstrings(module)
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()))
        if (match := RELATIVE_OPENING.match(sentence)) and not sentence.endswith("?")
    ]


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Return the docstrings of a module, its classes, functions and attributes, each with its line."""
    for node in module.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield statement.lineno, text


def patches_are_public(modules: Modules) -> list[str]:
    """A test replaces public names of the product only, so that the product can change inside. A module that plants
    defects for the harnesses (`*_defects.py`) may break any function."""
    findings = []
    for module in modules_within(modules, "tests"):
        for node in () if module.path.endswith("_defects.py") else module.nodes:
            match node:
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]):
                    name = path.rpartition(".")[2]
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    pass
                case _:
                    continue
            if name.startswith("_") and not name.startswith("__"):
                findings.append(module.finding(node.lineno, f"{name} is private; replace a public name"))
    return findings


def references_resolve(files: Mapping[str, str]) -> list[str]:
    """A Python file that a document or a docstring mentions exists."""
    paths = [path for path in files if path.endswith((".py", ".md", ".proto"))]
    endings = {"/".join(path.split("/")[start:]) for path in paths for start in range(path.count("/") + 1)}
    return [
        f"{path}:{number}: {reference} does not exist"
        for path, text in files.items()
        if path.endswith((".md", ".py")) and path not in NOT_CHECKED_FOR_REFERENCES and "/_pb/" not in path
        if FILE_REFERENCE.search(text)
        for number, line in enumerate(mentions_in(path, text).splitlines(), 1)
        for reference in FILE_REFERENCE.findall(line)
        if reference not in endings
    ]


def links_resolve(files: Mapping[str, str]) -> list[str]:
    """A relative link of a document to a text file leads to that file."""
    return [
        f"{path}:{number}: the link {target} leads to no file"
        for path, text in files.items()
        if path.endswith(".md")
        for number, line in enumerate(text.splitlines(), 1)
        for target in RELATIVE_LINK.findall(line)
        if posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) not in files
    ]


def mentions_in(path: str, text: str) -> str:
    """Return the text without code: all of a document, and the docstrings and comments of a Python file."""
    if not path.endswith(".py"):
        return text
    lines = [""] * (text.count("\n") + 2)
    module = Module(path.removesuffix(".py").replace("/", "."), path, text)
    for line, docstring in docstrings(module):
        for offset, part in enumerate(docstring.splitlines()):
            lines[line - 1 + offset] += part
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] += token.string
    return "\n".join(lines)


def text_is_portable(files: Mapping[str, str]) -> list[str]:
    """No file names a path that exists on one machine only."""
    machine_paths = re.compile(
        r"(?<![\w.>-])/(?:work|root)/\w|(?<!\w)/(?:home|Users)/\w+/|/(?:tmp)/venv|/(?:opt)/(?:pypi|wheels)|[.]pyenv/"
    )
    return [
        f"{path}:{number}: {match[0]} exists on one machine only"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (match := machine_paths.search(line))
    ]


def lock_names_no_host(files: Mapping[str, str]) -> list[str]:
    """The lock holds names, versions and hashes, and no address to fetch them from."""
    return [
        f"{path}:{number}: the lock names an address; create it with `make lock`"
        for path, text in files.items()
        if path.endswith(".lock")
        for number, line in enumerate(text.splitlines(), 1)
        if "://" in line or "index-url" in line or " @ " in line
    ]


def is_within(name: str, *packages: str) -> bool:
    """Return whether a dotted name is one of the packages or within one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def modules_within(modules: Iterable[Module], *packages: str) -> Modules:
    return tuple(module for module in modules if is_within(module.name, *packages))


def handwritten(modules: Iterable[Module]) -> Modules:
    """Return the modules that are not generated."""
    return tuple(module for module in modules if not is_within(module.name, GENERATED))


def _imports(module: Module, node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import(names=names):
                yield from (Import(each.name, child.lineno, in_function, for_types) for each in names)
            case ast.ImportFrom(module=source, names=names, level=level):
                above = module.package.split(".")[: len(module.package.split(".")) + 1 - level] if level else []
                base = ".".join([*above, *([source] if source else [])])
                yield from (Import(f"{base}.{each.name}", child.lineno, in_function, for_types) for each in names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                yield from _imports(module, child, in_function=True, for_types=for_types)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _imports(module, child, in_function, for_types=True)
            case _:
                yield from _imports(module, child, in_function, for_types)


def _loads(module: Module) -> Iterator[tuple[str, int]]:
    """Return what a module imports, by a statement or by a call such as import_module("lance"), with its line."""
    for each in module.imports:
        yield each.name, each.line
    for node in module.nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def _mentions(module: Module) -> Iterator[str]:
    """Return the names that a module imports, or mentions in a string as lazy exports and `python -m` do."""
    for each in module.imports:
        yield each.name
    for node in module.nodes:
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(r"\.?\w+(\.\w+)*", text):
                yield text
                yield f"{module.package}.{text.lstrip('.')}"


RULES: tuple[Rule, ...] = (
    core_executes_no_data,
    core_imports_at_the_top,
    every_module_is_imported,
    exceptions_are_named,
    functions_are_simple,
    generated_code_stays_in_format,
    lance_assets_uses_the_public_api,
    modules_have_docstrings,
    docstrings_open_with_a_term,
    names_are_unique,
    packages_are_few,
    pure_packages_do_no_io,
    pylance_is_a_codec,
    reads_are_bounded,
    sentences_open_plainly,
    spark_package_imports_no_dagster,
    suppressions_name_a_code,
    patches_are_public,
)
