"""Trace parser: reads the output of `strace` and returns the file events of one directory.

It follows file descriptors and their offsets through threads, forks and duplicates. A call that changes a file below
the directory in a way that the parser does not model raises `UnmodelledCall`, so that a recording is complete or fails.
Calls that overlap in time are ordered by their ends.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.syscalls.events import FileEvent

TRACED_CALLS = (
    "open", "openat", "openat2", "creat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync",
    "syncfs", "sync", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "mkdir", "mkdirat", "rmdir", "truncate", "ftruncate", "fallocate", "copy_file_range", "sendfile",
    "splice", "lseek", "mmap", "io_uring_setup", "close", "dup", "dup2", "dup3", "fcntl", "clone", "clone3", "fork",
    "vfork",
)  # fmt: skip
_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?).*", re.DOTALL)
_DESCRIPTOR = re.compile(r"(-?\d+|AT_FDCWD)(?:<((?:\\x[0-9a-f]{2})*)>)?")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')


class UnmodelledCall(Exception):
    """A traced call has an effect that the model of the file system lacks."""


@dataclass(slots=True)
class _OpenFile:
    file: int
    offset: int = 0
    appends: bool = False


@dataclass(slots=True)
class _Call:
    name: str
    thread: int
    arguments: list[str]
    result: int
    began: int
    """Number of calls that had ended when this call began."""
    process: int = 0
    since: int = 0
    """Number of events that had happened when this call began."""


@dataclass
class _State:
    """State of the traced processes: open files, and the files below the directory by their current names."""

    processes: dict[int, int] = field(default_factory=dict)
    """Process of each thread."""
    descriptors: dict[tuple[int, int], _OpenFile] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    directories: set[str] = field(default_factory=lambda: {""})
    contents: dict[int, bytearray] = field(default_factory=dict)
    events: list[FileEvent] = field(default_factory=list)


def parse_trace(lines: Iterable[str], directory: str, reports: str) -> tuple[Sequence[FileEvent], Mapping[str, bytes]]:
    """Return the events of the directory and the contents of its files at the end. Writes to the file `reports` are
    reports of the workload."""
    calls = _parse_calls(lines)
    parser = _Parser(directory.rstrip("/"), reports)
    for call in calls:  # a thread may make calls before the trace has the end of the call that creates it
        if call.name.startswith("clone") and "CLONE_THREAD" in " ".join(call.arguments):
            parser.state.processes[call.result] = parser.state.processes.setdefault(call.thread, call.thread)
    event_counts = [0]
    for call in calls:
        parser.apply(call, since=event_counts[call.began])
        event_counts.append(len(parser.state.events))
    state = parser.state
    return state.events, {path: bytes(state.contents[file]) for path, file in state.names.items()}


def _parse_calls(lines: Iterable[str]) -> Sequence[_Call]:
    calls: list[_Call] = []
    started: dict[int, tuple[str, int]] = {}
    for line in lines:
        matched = _LINE.match(line.rstrip("\n"))
        if matched is None:
            raise UnmodelledCall(f"a line of the trace cannot be parsed: {line[:200]}")
        thread, text = int(matched[1]), matched[2]
        if text.endswith("<unfinished ...>"):
            started[thread] = text.removesuffix("<unfinished ...>"), len(calls)
            continue
        began = len(calls)
        if text.startswith("<... "):
            beginning, began = started.pop(thread)
            text = beginning + text.partition(" resumed>")[2]
        if call := _CALL.fullmatch(text):
            name, arguments, result = call[1], call[2], call[3]
            calls.append(_Call(name, thread, _split(arguments), -1 if result == "?" else int(result), began))
    return calls


class _Parser:
    def __init__(self, directory: str, reports: str) -> None:
        self.state = _State()
        self._directory, self._reports = directory, reports
        self._handlers: Mapping[str, Callable[[_Call], None]] = {
            **dict.fromkeys(("open", "openat", "creat"), self._open),
            **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "pwritev2"), self._write),
            **dict.fromkeys(("fsync", "fdatasync"), self._sync),
            **dict.fromkeys(("sync", "syncfs"), self._sync_all),
            **dict.fromkeys(("rename", "renameat", "renameat2", "link", "linkat"), self._move),
            **dict.fromkeys(("unlink", "unlinkat", "rmdir"), self._remove),
            **dict.fromkeys(("mkdir", "mkdirat"), self._make),
            **dict.fromkeys(("truncate", "ftruncate", "fallocate"), self._truncate),
            **dict.fromkeys(("copy_file_range", "sendfile"), self._copy),
            **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), self._duplicate),
            **dict.fromkeys(("clone", "clone3", "fork", "vfork"), self._fork),
            "lseek": self._seek,
            "close": self._close,
        }

    def apply(self, call: _Call, since: int) -> None:
        call.process = self.state.processes.setdefault(call.thread, call.thread)
        call.since = since
        if call.name in ("fsync", "fdatasync") or call.result >= 0:
            self._handlers.get(call.name, self._refuse)(call)

    # Descriptors

    def _open(self, call: _Call) -> None:
        path = self._path(call.arguments[:-1] if call.name == "creat" else call.arguments, 0)
        flags = (
            "O_WRONLY|O_CREAT|O_TRUNC" if call.name == "creat" else call.arguments[2 if call.name == "openat" else 1]
        )
        if path is None or path in self.state.directories:
            self.state.descriptors.pop((call.process, call.result), None)
            return
        if "O_SYNC" in flags or "O_DSYNC" in flags or "O_TMPFILE" in flags:
            raise UnmodelledCall(f"open of {path} with {flags}")
        if path not in self.state.names:
            file = len(self.state.contents) + 1
            self.state.contents[file] = bytearray()
            self.state.names[path] = file
            self._add(FileEvent("create", path, file=file))
        file = self.state.names[path]
        if "O_TRUNC" in flags and self.state.contents[file]:
            self._resize(file, 0)
        self.state.descriptors[call.process, call.result] = _OpenFile(file, appends="O_APPEND" in flags)

    def _close(self, call: _Call) -> None:
        self.state.descriptors.pop((call.process, _descriptor(call.arguments[0])), None)

    def _duplicate(self, call: _Call) -> None:
        if call.name == "fcntl" and not call.arguments[1].startswith("F_DUPFD"):
            return
        if opened := self.state.descriptors.get((call.process, _descriptor(call.arguments[0]))):
            self.state.descriptors[call.process, call.result] = opened

    def _fork(self, call: _Call) -> None:
        if "CLONE_THREAD" in " ".join(call.arguments):
            return
        inherited = {key: opened for key, opened in self.state.descriptors.items() if key[0] == call.process}
        for (_, number), opened in inherited.items():
            self.state.descriptors[call.result, number] = opened

    def _seek(self, call: _Call) -> None:
        if opened := self.state.descriptors.get((call.process, _descriptor(call.arguments[0]))):
            opened.offset = call.result

    # Contents

    def _write(self, call: _Call) -> None:
        if _path_of_descriptor(call.arguments[0]) == self._reports:
            self._add(FileEvent("report", data=_bytes_of(call.arguments[1])[: call.result]))
        if not self._is_inside(_path_of_descriptor(call.arguments[0])):
            return
        opened = self._opened(call, 0)
        data = _bytes_of(call.arguments[1])[: call.result]
        if len(data) != call.result:
            raise UnmodelledCall(f"the trace has {len(data)} of {call.result} written bytes")
        if call.name.startswith("pwrite"):
            self._put(opened.file, int(call.arguments[3]), data)
            return
        if opened.appends:
            opened.offset = len(self.state.contents[opened.file])
        self._put(opened.file, opened.offset, data)
        opened.offset += len(data)

    def _copy(self, call: _Call) -> None:
        """Handle `copy_file_range(in, in offset, out, out offset, ...)` and `sendfile(out, in, in offset, ...)`."""
        is_range = call.name == "copy_file_range"
        target, source, place = (2, 0, 1) if is_range else (0, 1, 2)
        if not self._is_inside(_path_of_descriptor(call.arguments[target])) or call.result == 0:
            return
        if call.arguments[place] != "NULL" or (is_range and call.arguments[3] != "NULL"):
            raise UnmodelledCall(f"{call.name} with explicit offsets")
        origin, opened = self._opened(call, source), self._opened(call, target)
        data = bytes(self.state.contents[origin.file][origin.offset : origin.offset + call.result])
        self._put(opened.file, opened.offset, data)
        opened.offset += call.result
        origin.offset += call.result

    def _truncate(self, call: _Call) -> None:
        if call.name == "truncate":
            path = self._path(call.arguments, 0)
            if path is not None:
                self._resize(self.state.names[path], int(call.arguments[1]))
        elif self._is_inside(_path_of_descriptor(call.arguments[0])):
            file = self._opened(call, 0).file
            if call.name == "ftruncate":
                self._resize(file, int(call.arguments[1]))
            elif call.arguments[1] not in ("0", "FALLOC_FL_KEEP_SIZE"):
                raise UnmodelledCall(f"fallocate with {call.arguments[1]}")
            elif call.arguments[1] == "0":
                end = int(call.arguments[2]) + int(call.arguments[3])
                if end > len(self.state.contents[file]):
                    self._resize(file, end)

    def _put(self, file: int, offset: int, data: bytes) -> None:
        content = self.state.contents[file]
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data
        self._add(FileEvent("write", file=file, offset=offset, data=data))

    def _resize(self, file: int, size: int) -> None:
        content = self.state.contents[file]
        del content[size:]
        content.extend(bytes(size - len(content)))
        self._add(FileEvent("truncate", file=file, offset=size))

    # Syncs

    def _sync(self, call: _Call) -> None:
        path = self._relative(_path_of_descriptor(call.arguments[0]))
        if path is None:
            return
        failed = call.result < 0
        if path in self.state.directories:
            self._add(FileEvent("sync directory", path, since=call.since, has_failed=failed))
        else:
            file = self._opened(call, 0).file
            self._add(FileEvent("sync", path, file=file, since=call.since, has_failed=failed))

    def _sync_all(self, call: _Call) -> None:
        self._add(FileEvent("sync all", since=call.since))

    # Names

    def _move(self, call: _Call) -> None:
        arguments, has_directories = call.arguments, "at" in call.name
        source = self._path(arguments, 0)
        target = self._path(arguments[2:] if has_directories else arguments[1:], 0)
        if source is None and target is None:
            return
        if source is None or target is None or source in self.state.directories or "EXCHANGE" in arguments[-1]:
            raise UnmodelledCall(f"{call.name} of {source} to {target}")
        self._add(FileEvent("link" if "link" in call.name else "rename", source, target))
        self.state.names[target] = self.state.names[source]
        if "rename" in call.name and source != target:
            del self.state.names[source]

    def _remove(self, call: _Call) -> None:
        path = self._path(call.arguments, 0)
        if path is not None:
            self._add(FileEvent("remove", path))
            self.state.names.pop(path, None)
            self.state.directories.discard(path)

    def _make(self, call: _Call) -> None:
        path = self._path(call.arguments, 0)
        if path is not None:
            self._add(FileEvent("make", path))
            self.state.directories.add(path)

    def _refuse(self, call: _Call) -> None:
        if call.name == "mmap" and not ("MAP_SHARED" in call.arguments[3] and "PROT_WRITE" in call.arguments[2]):
            return
        texts = [_path_of_descriptor(argument) or _text(argument) for argument in call.arguments]
        if call.name == "io_uring_setup" or any(self._is_inside(text) for text in texts):
            raise UnmodelledCall(f"{call.name} of {', '.join(filter(None, texts))}")

    # Arguments

    def _add(self, event: FileEvent) -> None:
        self.state.events.append(event)

    def _opened(self, call: _Call, index: int) -> _OpenFile:
        descriptor = _descriptor(call.arguments[index])
        if (opened := self.state.descriptors.get((call.process, descriptor))) is None:
            raise UnmodelledCall(f"{call.name} of a descriptor that the trace does not open: {call.arguments[index]}")
        return opened

    def _path(self, arguments: Sequence[str], index: int) -> str | None:
        """Return the path, relative to the directory, of an argument that is a path, or a directory and a path."""
        first = arguments[index]
        if first.startswith('"'):
            return self._relative(_text(first))
        path = _text(arguments[index + 1])
        return self._relative(path if path.startswith("/") else f"{_path_of_descriptor(first)}/{path}")

    def _relative(self, path: str) -> str | None:
        return path[len(self._directory) + 1 :] if self._is_inside(path) else None

    def _is_inside(self, path: str) -> bool:
        return path == self._directory or path.startswith(f"{self._directory}/")


def _split(arguments: str) -> list[str]:
    """Split arguments at the commas outside brackets. Strings are hexadecimal, so that they hold no comma."""
    parts, depth, start = [], 0, 0
    for place in re.finditer(r"[,\[\]{}]", arguments):
        match place[0]:
            case "[" | "{":
                depth += 1
            case "]" | "}":
                depth -= 1
            case _ if depth == 0:
                parts.append(arguments[start : place.start()].strip())
                start = place.end()
    return [*parts, arguments[start:].strip()]


def _descriptor(argument: str) -> int:
    matched = _DESCRIPTOR.match(argument)
    return int(matched[1]) if matched and matched[1] != "AT_FDCWD" else -1


def _path_of_descriptor(argument: str) -> str:
    matched = _DESCRIPTOR.match(argument)
    return _decode(matched[2]).decode(errors="replace") if matched and matched[2] else ""


def _text(argument: str) -> str:
    return _bytes_of(argument).decode(errors="replace") if argument.startswith('"') else ""


def _bytes_of(argument: str) -> bytes:
    """Return the bytes of a string, or of all strings of an array of buffers."""
    texts = list(_TEXT.finditer(argument))
    if any(text[2] for text in texts):
        raise UnmodelledCall("the trace has abbreviated strings")
    return b"".join(_decode(text[1]) for text in texts)


def _decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
