"""NVIDIA's compute-sanitizer: its command line, and what it found, with file and line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tachyon_tui.core.i18n import _

ERROR_EXIT_CODE = 86
"""Exit code of a run in which the sanitizer found something; else it is the program's own."""
PRINTED_ERRORS = 50

_LINE = re.compile(r"={9}(?: (.*))?")
_PLACE = re.compile(
    r"(?:.*\b)?(?:at|Device Frame:) ?(?P<kernel>.+?)\+0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d+))?(?: \[.*)?"
)
# Before CUDA 12: "at 0x70 in /path/file.cu:3:oob(int*)" or "at 0x70 in oob(int*)".
_OLD_PLACE = re.compile(r" *at 0x[0-9a-f]+ in (?:(?P<file>[^:]+):(?P<line>\d+):)?(?P<kernel>.+)")
_SUMMARY = re.compile(
    r"\w+ SUMMARY: (?P<count>\d+) (?:errors?|hazards?)\b(?! were not)(?:.*\((?P<errors>\d+) error)?"
)


@dataclass(frozen=True)
class Finding:
    """One kind of error at one place."""

    what: str
    """As the tool says it, such as ``Invalid __global__ write of size 4 bytes``."""
    kernel: str
    """Demangled; the function that the place is in, or the kernel that called it where the tool says so."""
    file: str = ""
    """Empty when the program was built without line information."""
    line: int = 0
    count: int = 1
    """How many threads or accesses reported it."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else _("unknown line (build with -lineinfo)")
        return _("{what} in {kernel} at {place}").format(
            what=self.what, kernel=self.kernel or "?", place=place
        )


@dataclass(frozen=True)
class Findings:
    """What one run of the sanitizer reported."""

    errors: int
    """Number of errors by the tool's own summary; 0 when it is clean."""
    findings: tuple[Finding, ...]
    complete: bool
    """False when the summary is missing, so that the run is no evidence: the tool did not start or did not end."""
    message: str = ""
    """The tool's own last words when it is not complete."""


def sanitizer_command(tool: str, argv: Sequence[str], log: Path | None = None) -> list[str]:
    """The command that runs ``argv`` under ``tool`` (memcheck, racecheck, initcheck or synccheck).

    With ``log`` the tool's lines go to that file, and the program's output stays its own.
    """
    options = ["--tool", tool, "--error-exitcode", str(ERROR_EXIT_CODE), "--print-limit", str(PRINTED_ERRORS)]
    options += ["--target-processes", "all", *(["--log-file", str(log)] if log else [])]
    return ["compute-sanitizer", *options, *argv]


def parse_sanitizer(output: str) -> Findings:
    """Read what compute-sanitizer printed (as version 2025.3 does, and older ones)."""
    errors, complete, last = 0, False, ""
    found: dict[tuple[str, str, str, int], int] = {}
    blocks: list[list[str]] = [[]]
    for row in output.splitlines():
        matched = _LINE.fullmatch(row)
        if not matched:
            continue
        text = (matched[1] or "").rstrip()
        summary = _SUMMARY.match(text)
        if summary:
            complete = True
            errors = max(errors, int(summary["errors"] or summary["count"]))
        elif text:
            blocks[-1].append(text)
            last = text.strip()
        else:
            blocks.append([])
    for block in blocks:
        finding = _finding([text for text in block if text != "COMPUTE-SANITIZER"])
        if finding:
            found[finding] = found.get(finding, 0) + 1
    findings = tuple(Finding(*key, count=count) for key, count in found.items())
    return Findings(errors, findings, complete, "" if complete else last)


def _finding(block: Sequence[str]) -> tuple[str, str, str, int] | None:
    """Message, kernel, file and line of one report: the innermost place, in the outermost function on the device."""
    places = [place for text in block if (place := _OLD_PLACE.fullmatch(text) or _PLACE.fullmatch(text))]
    if not places:
        return None
    first = places[0]
    frames = [place for place in places if "Device Frame:" in place[0]]
    kernel = (frames[-1] if frames else first)["kernel"]
    what = block[0].removeprefix("Error: ").removeprefix("Warning: ").split(" at ")[0].strip()
    return what, kernel.strip(), first["file"] or "", int(first["line"] or 0)
