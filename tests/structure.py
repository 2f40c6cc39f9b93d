"""The rules of the house, each one a function from the source tree to what breaks it.

A rule takes the parsed modules of the tree and returns findings, one line each: file, line and what to do
instead. It opens no file, so that `test_structure.py` can hand it both the real tree and a small bad one. Which
room may import which is not here: those contracts stand in `pyproject.toml` and belong to import-linter.
Start at `RULES`, at the bottom.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

PRODUCT = ("lance_core", "lance_assets")
PURE_ROOMS = ("lance_core.format", "lance_core.transactions")
GENERATED = "lance_core.format._pb"
CODEC = "lance_core.datafiles.lance_codec"

# Loaded by a name that no import statement holds: the shell, Dagster's workspace.yaml, users.
ENTRY_POINTS = (
    "lance_assets.demo",
    "lance_assets.components",
    "lance_assets.demo.definitions",
    "lance_core.operations",
    "lance_core.tasks",
)

# Ports that only tests fill: what commits and histories run on in memory.
FOR_TESTS = ("lance_core.datafiles.ipc_codec", "lance_core.storage.memory")

# What users of the core may name besides its front door.
OPEN_ROOMS = ("lance_core.operations", "lance_core.shell", "lance_core.tasks")

# The one import inside a function: lance.file costs a third of a second and loads pandas.
LOADED_ON_FIRST_USE: Mapping[str, tuple[str, ...]] = {
    CODEC: ("lance.file",),
    "lance_core.expressions.engine": ("datafusion",),
    "lance_core.index.registry": (
        "lance_core.index.bitmap",
        "lance_core.index.bloomfilter",
        "lance_core.index.btree",
        "lance_core.index.label_list",
        "lance_core.index.ngram",
        "lance_core.index.zonemap",
    ),
    "lance_core.storage.manifest_stores.dynamodb": ("botocore",),
    "lance_core.storage.manifest_stores.sql": ("sqlalchemy",),
    "lance_core.storage.object_store": ("lance_core.storage.buckets.client_cache",),
}

OUTSIDE_WORLD = (
    "asyncio", "concurrent", "fsspec", "glob", "http", "logging", "multiprocessing", "numpy.random", "os",
    "pathlib", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "random", "requests", "secrets", "shutil",
    "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
)  # fmt: skip
CLOCK_CALLS = ("now", "today", "utcnow")
FRESH_UUIDS = ("uuid1", "uuid4", "uuid6", "uuid7")
OPENS_FILES = ("input", "open", "print")
# Plans travel to Spark's workers, and Spark pickles them: of what it brings, the core unpickles nothing itself.
RUNS_BYTES = ("cffi", "cloudpickle", "ctypes", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "yaml")
RUNS_TEXT = ("__import__", "compile", "eval", "exec")
RUNS_WHAT_IT_LOADS = ("allow_pickle", "read_pickle", "set_auto_load", "unsafe_load")


@dataclass(frozen=True)
class Module:
    """One Python file: dotted name, place in the tree, text. Not slotted: it caches its parse."""

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def imports(self) -> "tuple[Import, ...]":
        return tuple(_imports(self, self.tree, in_function=False, for_types=False))

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    def says(self, line: int, what: str) -> str:
        return f"{self.path}:{line}: {what}"


@dataclass(frozen=True)
class Import:
    """One imported name; `from a import b` is `a.b`, be b a module or something in it."""

    name: str
    line: int
    in_function: bool
    for_types: bool


Modules = tuple[Module, ...]
Rule = Callable[[Modules], list[str]]


def pure_rooms_touch_nothing(modules: Modules) -> list[str]:
    """Clock, uuid, random and I/O are handed in, so that the simulator can hand in its own."""
    found = []
    for module in inside(written(modules), *PURE_ROOMS):
        found += [
            module.says(each.line, f"a pure room imports {each.name}; let the caller hand in what it needs")
            for each in module.imports
            if is_in(each.name, *OUTSIDE_WORLD) or each.name in {f"uuid.{name}" for name in FRESH_UUIDS}
        ]
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in OPENS_FILES:
                    found.append(module.says(node.lineno, f"a pure room calls {name}(); bytes are handed in"))
                case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCK_CALLS:
                    found.append(module.says(node.lineno, f"a pure room reads the clock: {name}(); hand it in"))
                case ast.Attribute(value=ast.Name(id="uuid"), attr=name) if name in FRESH_UUIDS:
                    found.append(module.says(node.lineno, f"a pure room makes a uuid with {name}; hand it in"))
                case ast.Attribute(value=ast.Name(id="numpy" | "np"), attr="random"):
                    found.append(module.says(node.lineno, "a pure room draws a random number; hand it in"))
    return found


def every_module_is_imported(modules: Modules) -> list[str]:
    """A module that nobody imports is dead; a package whose front door is still bare is not judged."""
    product = inside(written(modules), *PRODUCT)
    opened = {module.name for module in product if module.name in PRODUCT and len(module.tree.body) > 1}
    mentioned = {module.name: set(_mentions(module)) for module in product}
    found = []
    for module in product:
        outside = [names for other, names in mentioned.items() if not is_in(other, module.name)]
        known = (
            module.name in PRODUCT or is_in(module.name, *ENTRY_POINTS, *FOR_TESTS) or module.name.endswith(".__main__")
        )
        if known or module.name.partition(".")[0] not in opened:
            continue
        if not any(is_in(name, module.name) for names in outside for name in names):
            found.append(module.says(1, f"nobody imports {module.name}; use it, remove it or list it above"))
    return found


def generated_code_stays_in_format(modules: Modules) -> list[str]:
    """Messages are seen by the format room alone; the others get views."""
    return [
        module.says(each.line, f"{each.name} is generated code; only lance_core/format sees it, use its views")
        for module in modules
        if not is_in(module.name, "lance_core.format", "tests")
        for each in module.imports
        if is_in(each.name, GENERATED)
    ]


def core_runs_no_data(modules: Modules) -> list[str]:
    """A table is untrusted input: nothing read may turn into code."""
    found = []
    for module in inside(written(modules), "lance_core"):
        found += [
            module.says(each.line, f"{each.name} runs what it reads; use protobuf, JSON or Arrow IPC")
            for each in module.imports
            if is_in(each.name, *RUNS_BYTES)
        ]
        found += [
            module.says(node.lineno, f"{node.func.id}() turns text into code")
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RUNS_TEXT
        ]
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if name in RUNS_WHAT_IT_LOADS:
                    found.append(
                        module.says(node.lineno, f"{name} runs what it reads; use protobuf, JSON or Arrow IPC")
                    )
    return found


def objects_are_measured_first(modules: Modules) -> list[str]:
    """A file can be of any size: outside of storage it is read up to a limit, or in ranges."""
    return [
        module.says(node.lineno, f"{ast.unparse(node)} reads whatever is there; use read_whole, or give a range")
        for module in inside(written(modules), "lance_core")
        if not is_in(module.name, "lance_core.storage", *FOR_TESTS)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        if isinstance(node.func, ast.Attribute) and node.func.attr == "read"
        if re.fullmatch(r"(.*\.)?_?(own_store|store|root)", ast.unparse(node.func.value))
    ]


def errors_are_named(modules: Modules) -> list[str]:
    """What is caught is what can be handled; everything else goes on to whoever knows it."""
    return [
        module.says(node.lineno, "catches everything; name the errors that are meant")
        for module in inside(written(modules), "lance_core")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and not _raises_again(node)
        if node.type is None or {"Exception", "BaseException"} & {each.strip() for each in _named(node.type)}
    ]


def _named(errors: ast.expr) -> list[str]:
    return [ast.unparse(each) for each in (errors.elts if isinstance(errors, ast.Tuple) else [errors])]


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def pylance_is_a_codec(modules: Modules) -> list[str]:
    """Of pylance the product uses lance.file, in one module, however it is spelt."""
    found = []
    for module in inside(written(modules), *PRODUCT):
        for name, line in _loads(module):
            if is_in(name, "lance") and (module.name != CODEC or not is_in(name, "lance.file")):
                found.append(module.says(line, f"{name} of pylance; only lance.file, and only in {CODEC}"))
    return found


def core_imports_at_the_top(modules: Modules) -> list[str]:
    """An import inside a function means a stair going up, unless it is too slow for the front door."""
    found = []
    for module in inside(written(modules), "lance_core"):
        lazy = LOADED_ON_FIRST_USE.get(module.name, ())
        for each in module.imports:
            if each.in_function and not is_in(each.name, *lazy):
                found.append(module.says(each.line, f"{each.name} is imported inside a function; import it at the top"))
            if not each.in_function and not each.for_types and is_in(each.name, *lazy):
                found.append(module.says(each.line, f"{each.name} is slow to import; load it inside a function"))
    return found


def edge_uses_the_front_door(modules: Modules) -> list[str]:
    """lance_assets names what lance_core exports, its tasks and its operations; the rest is free to move."""
    rooms = {module.name for module in modules if is_in(module.name, "lance_core")} - {"lance_core"}
    return [
        module.says(each.line, f"{each.name} is behind the front door; use lance_core, its tasks or operations")
        for module in inside(modules, "lance_assets")
        for each in module.imports
        if is_in(each.name, *rooms) or each.name.startswith("lance_core._") or each.name.count(".") > 1
        if is_in(each.name, "lance_core") and not is_in(each.name, *OPEN_ROOMS)
    ]


def spark_side_knows_no_dagster(modules: Modules) -> list[str]:
    """Executors load lance_assets.spark: it and what it imports in its own package stay free of Dagster."""
    assets = {module.name for module in modules if is_in(module.name, "lance_assets")}
    return [
        module.says(each.line, f"{each.name} on the Spark side; it may use lance_core and PySpark")
        for module in inside(modules, "lance_assets.spark")
        for each in module.imports
        if is_in(each.name, "dagster", "dagster_pyspark", "dagster_shared")
        or (is_in(each.name, *(assets - {"lance_assets"})) and not is_in(each.name, "lance_assets.spark"))
    ]


def silence_is_precise(modules: Modules) -> list[str]:
    """A finding of a checker is silenced by its code, or not at all."""
    bare = re.compile(r"#\s*type:\s*ignore(?!\[)|#\s*noqa(?!:)", re.IGNORECASE)
    return [
        module.says(token.start[0], f"{token.string!r} silences everything; name the code in it")
        for module in written(modules)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT and bare.search(token.string)
    ]


def every_module_introduces_itself(modules: Modules) -> list[str]:
    """The first paragraph says what lives here and what never does."""
    return [
        module.says(1, "no module docstring; say what lives here and what never does")
        for module in written(modules)
        if not ast.get_docstring(module.tree)
    ]


def text_is_portable(files: Mapping[str, str]) -> list[str]:
    """No file names a place that exists on one machine only."""
    places = re.compile(
        r"(?<![\w.>-])/(?:work|root)/\w|(?<!\w)/(?:home|Users)/\w+/|/(?:tmp)/venv|/(?:opt)/(?:pypi|wheels)|[.]pyenv/"
    )
    return [
        f"{path}:{number}: {found[0]} exists on one machine only"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := places.search(line))
    ]


def lock_names_no_host(files: Mapping[str, str]) -> list[str]:
    """The lock holds names, versions and hashes; where to fetch them is the reader's choice."""
    return [
        f"{path}:{number}: the lock may not say where to fetch from; make it with `make lock`"
        for path, text in files.items()
        if path.endswith(".lock")
        for number, line in enumerate(text.splitlines(), 1)
        if "://" in line or "index-url" in line or " @ " in line
    ]


def is_in(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of the packages or inside one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def inside(modules: Iterable[Module], *packages: str) -> Modules:
    return tuple(module for module in modules if is_in(module.name, *packages))


def written(modules: Iterable[Module]) -> Modules:
    """The modules that people wrote."""
    return tuple(module for module in modules if not is_in(module.name, GENERATED))


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
    """What a module imports, by statement or by a name in a call such as import_module("lance")."""
    for each in module.imports:
        yield each.name, each.line
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def _mentions(module: Module) -> Iterator[str]:
    """What a module imports or names in a string, as lazy exports and `python -m` do."""
    for each in module.imports:
        yield each.name
    for node in ast.walk(module.tree):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(r"\.?\w+(\.\w+)*", text):
                yield text
                yield f"{module.package}.{text.lstrip('.')}"


RULES: tuple[Rule, ...] = (
    core_imports_at_the_top,
    core_runs_no_data,
    edge_uses_the_front_door,
    errors_are_named,
    every_module_introduces_itself,
    every_module_is_imported,
    generated_code_stays_in_format,
    objects_are_measured_first,
    pure_rooms_touch_nothing,
    pylance_is_a_codec,
    silence_is_precise,
    spark_side_knows_no_dagster,
)
