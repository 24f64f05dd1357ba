"""What compute-sanitizer prints, read from what version 2025.3 printed on a real GPU and older forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachyon_tui.workspace.sanitizer import Finding, parse_sanitizer, sanitizer_command

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at deep(const int *)+0xa0 in s.cu:4
=========     by thread (0,0,0) in block (0,0,0)
=========     Access to 0x7f663e800000 is out of bounds
=========     and is 4,156,554,753 bytes after the nearest allocation at 0x7f6546c00000 of size 512 bytes
=========         Device Frame: oob_read(int *)+0x40 in s.cu:6
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x8c99] in s
=========
========= Invalid __global__ read of size 4 bytes
=========     at deep(const int *)+0xa0 in s.cu:4
=========     by thread (1,0,0) in block (0,0,0)
=========         Device Frame: oob_read(int *)+0x40 in s.cu:6
=========
sync 719
========= ERROR SUMMARY: 5 errors
========= ERROR SUMMARY: 3 errors were not printed. Use --print-limit option to adjust the number of printed errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at race(int *)+0xa0 in s.cu:10
=========     and Read access at race(int *)+0xb0 in s.cu:11 [256 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
INITCHECK = """\
========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void uninit<(int)3>(const int *, int *)+0x60
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6b3e800000
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in warp.
=========     at sync_bad(int *)+0x70 in /home/user/my src/s.cu:15
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 16 errors
"""
OLDER = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at 0x70 in /src/s.cu:3:oob(int*)
=========     by thread (0,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("output", "errors", "finding"),
    [
        (MEMCHECK, 5, Finding("Invalid __global__ read of size 4 bytes", "oob_read(int *)", "s.cu", 4, 2)),
        (RACECHECK, 1, Finding("Race reported between Write access", "race(int *)", "s.cu", 10)),
        (
            INITCHECK,
            1,
            Finding(
                "Uninitialized __global__ memory read of size 4 bytes",
                "void uninit<(int)3>(const int *, int *)",
            ),
        ),
        (
            SYNCCHECK,
            16,
            Finding(
                "Barrier error detected. Divergent thread(s) in warp.",
                "sync_bad(int *)",
                "/home/user/my src/s.cu",
                15,
            ),
        ),
        (OLDER, 1, Finding("Invalid __global__ write of size 4 bytes", "oob(int*)", "/src/s.cu", 3)),
    ],
)
def test_what_the_sanitizer_found(output: str, errors: int, finding: Finding) -> None:
    for text in (output, output.replace("=========\n", "========= \n")):
        found = parse_sanitizer(text)
        assert (found.errors, found.findings, found.complete) == (errors, (finding,), True)


def test_a_finding_names_its_place() -> None:
    assert str(Finding("Race", "k(int)", "s.cu", 10)) == "Race in k(int) at s.cu:10"
    assert "-lineinfo" in str(Finding("Race", "k(int)"))


def test_a_clean_run_and_a_tool_that_did_not_start() -> None:
    clean = parse_sanitizer(
        "========= COMPUTE-SANITIZER\nsync 0\n===== my own line\n========= ERROR SUMMARY: 0 errors\n"
    )
    assert (clean.errors, clean.findings, clean.complete) == (0, (), True)
    broken = parse_sanitizer(
        "========= COMPUTE-SANITIZER\n========= Target application doesn't exist or is not a valid executable\n"
    )
    assert not broken.complete
    assert "doesn't exist" in broken.message
    assert not parse_sanitizer("").complete


def test_the_command_of_the_sanitizer(tmp_path: Path) -> None:
    command = sanitizer_command("racecheck", ["./app", "-n", "5"], tmp_path / "log")
    assert command[:3] == ["compute-sanitizer", "--tool", "racecheck"]
    assert command[-3:] == ["./app", "-n", "5"]
    assert command[command.index("--log-file") + 1] == str(tmp_path / "log")
    assert "--log-file" not in sanitizer_command("memcheck", ["./app"])
