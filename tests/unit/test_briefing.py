"""What the agent reads: metrics, floor, source beside its hot lines, comparison, notebook."""

from __future__ import annotations

import math
import re

import pytest

from tachyon_tui.core.profile import Advice, Floor, FloorTerm, HotLine, KernelProfile, Metric, StallShare
from tachyon_tui.engine.briefing import (
    WHOLE_FILE_LINES,
    RoundNote,
    comparison,
    floor_text,
    hot_line_text,
    kernel_text,
    match_lines,
    metric_text,
    source_text,
)

KERNEL = "reduce_kernel(float const*, float*, int)"


def metric(key: str, value: float | str | None, unit: str = "", note: str = "") -> Metric:
    return Metric(key=key, label=key.replace("_", " "), value=value, unit=unit, note=note)


def hot(line: int, percent: float, file: str = "/home/dev/app/src/reduce.cu", stall: str = "") -> HotLine:
    stalls = (StallShare(reason=stall, percent=93.0),) if stall else ()
    return HotLine(file=file, line=line, text="  atomicAdd(out, x);", percent=percent, stalls=stalls)


def profile(*lines: HotLine, **changes: object) -> KernelProfile:
    return KernelProfile(name=KERNEL, hot_lines=lines, lines="yes").model_copy(update=changes)


def numbered(text: str) -> list[int]:
    """The numbers of the source lines that are shown."""
    return [int(found) for found in re.findall(r"^ *(\d+) \|", text, re.MULTILINE)]


def gutter(text: str, line: int) -> str:
    """What stands beside a source line."""
    [found] = re.findall(rf"^ *{line} \|([^|]*)\|", text, re.MULTILINE)
    return str(found).strip()


# -- metrics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "%", "n/a"),
        (math.nan, "%", "n/a"),
        (math.nan, "", "n/a"),
        (math.inf, "warp", "n/a"),
        (-math.inf, "ns", "n/a"),
        (0.0, "%", "0.0%"),
        (87.25, "%", "87.2%"),
        (2_430_000.0, "ns", "2.43ms"),
        (1536.0, "byte", "1.5 KiB"),
        (49152.0, "byte/block", "48.0 KiB"),
        (1.5e9, "byte/s", "1.5 GB/s"),
        (1.755e9, "hz", "1755 MHz"),
        (32.0, "register/thread", "32"),
        (0.5, "warp", "0.50"),
        (0.0, "inst", "0"),
        (3_262_152.0, "sector", "3 262 152"),
        ("registers", "", "registers"),
    ],
)
def test_metric_text(value: float | str | None, unit: str, text: str) -> None:
    assert metric_text(metric("m", value, unit)) == text


def test_a_missing_metric_says_why() -> None:
    assert metric_text(metric("m", None, "%", "not in the basic set")) == "n/a (not in the basic set)"


def test_what_was_not_collected_is_never_shown_as_zero() -> None:
    text = kernel_text(
        profile(metrics={"dram_percent": metric("dram_percent", None, "%"), "waves": metric("waves", 0.0)})
    )
    assert "waves: 0" in text
    assert "dram percent" not in text
    assert "(not comparable with timed runs): n/a" in text


# -- the floor ----------------------------------------------------------------------------------------------

TERMS = (FloorTerm(name="memory", ms=0.113, basis=""), FloorTerm(name="launch", ms=0.002, basis=""))


@pytest.mark.parametrize(
    ("given", "has", "has_not"),
    [(True, "any correct version", "may go below"), (False, "may go below it", "any correct version")],
)
def test_the_floor_is_labelled_as_what_it_is(given: bool, has: str, has_not: str) -> None:
    text = floor_text(Floor(ms=0.113, binding="memory", terms=TERMS, given_bytes=given))
    assert has in text
    assert has_not not in text
    assert "0.1130ms, bound by memory (memory 0.1130ms, launch 0.0020ms)" in text


def test_no_floor() -> None:
    assert "not known" in floor_text(None)


# -- one kernel ---------------------------------------------------------------------------------------------


def test_a_kernel_s_diagnosis() -> None:
    stalls = tuple(StallShare(reason=f"stall_{n}", percent=50.0 - n) for n in range(9))
    advice = (
        Advice(rule="a", title="Few warps", message="m" * 900, kind="optimization", speedup_percent=31.0),
        Advice(rule="b", title="All well", message="fine", kind="ok"),
        Advice(rule="c", title="Divergence", message="lanes idle", kind="warning"),
    )
    text = kernel_text(
        profile(
            *(hot(n, 10.0 - n) for n in range(1, 10)),
            grid=(512, 1, 1),
            block=(1, 1, 1),
            device="NVIDIA H200",
            gpu_time_ms=80.68,
            metrics={"occupancy_percent": metric("occupancy_percent", 49.5, "%")},
            stalls=stalls,
            occupancy_limiters=("blocks",),
            sampled="low",
            advice=advice,
        )
    )
    for part in (
        f"## {KERNEL}",
        "grid (512, 1, 1), block (1, 1, 1), NVIDIA H200",
        "80.68ms",
        "occupancy percent: 49.5%",
        "occupancy limited by: blocks",
        "stall_0 50.0%, stall_1 49.0%",
        "shares are rough",
        "Few warps (estimated 31.0%)",
        "Divergence: lanes idle",
    ):
        assert part in text
    assert "stall_6" not in text
    assert "All well" not in text
    assert "m" * 301 not in text
    assert text.count("hot line reduce.cu:") == 8


def test_no_line_information_is_said() -> None:
    assert "-lineinfo" in kernel_text(profile(lines="no line information"))
    assert "-lineinfo" not in kernel_text(profile())


def test_hot_line_in_one_line() -> None:
    own = hot(10, 87.04, stall="long_scoreboard")
    assert hot_line_text(own) == "reduce.cu:10 87.0% (long_scoreboard 93.0%)  atomicAdd(out, x);"
    assert "[library]" in hot_line_text(own.model_copy(update={"own": False}))


# -- source -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        ("/home/dev/app/src/reduce.cu", True),
        ("src/reduce.cu", True),
        ("./src/reduce.cu", True),
        ("reduce.cu", True),
        ("../src/reduce.cu", True),
        ("/home/dev/app/other/reduce.cu", False),
        ("other/reduce.cu", False),
        ("/home/dev/app/src/xreduce.cu", False),
        ("", False),
    ],
)
def test_hot_lines_are_matched_by_the_end_of_the_path(theirs: str, found: bool) -> None:
    assert bool(match_lines("src/reduce.cu", [profile(hot(3, 50.0, theirs))])) is found


def test_of_two_kernels_the_hotter_one_marks_the_line() -> None:
    profiles = [profile(hot(3, 50.0)), profile(hot(3, 70.0), hot(4, 1.0)), profile(hot(3, 20.0))]
    marks = match_lines("src/reduce.cu", profiles)
    assert {line: mark.percent for line, mark in marks.items()} == {3: 70.0, 4: 1.0}


def test_hot_lines_stand_beside_their_source_lines() -> None:
    source = "\n".join(f"line {n}" for n in range(1, 21))
    lines = (hot(7, 87.0, stall="long_scoreboard"), hot(9, 0.4, stall="barrier"), hot(11, 2.0))
    text = source_text("src/reduce.cu", source, [profile(*lines)])
    assert numbered(text) == list(range(1, 21))
    assert gutter(text, 7) == "87.0% long_scoreboard"
    assert gutter(text, 11) == "2.0%"
    assert all(gutter(text, n) == "" for n in range(1, 21) if n not in (7, 11))
    assert "| line 7\n" in text
    assert "src/reduce.cu (20 lines)" in text


def test_hot_lines_of_another_file_are_not_shown() -> None:
    text = source_text("src/main.cu", "int a;\nint b;\nint c;", [profile(hot(2, 99.0))])
    assert gutter(text, 2) == ""


@pytest.mark.parametrize(("count", "whole"), [(WHOLE_FILE_LINES, True), (WHOLE_FILE_LINES + 1, False)])
def test_a_long_file_is_shown_around_its_hot_lines(count: int, whole: bool) -> None:
    source = "\n".join(f"line {n}" for n in range(1, count + 1))
    text = source_text("src/reduce.cu", source, [profile(hot(300, 90.0, stall="barrier"))])
    shown = numbered(text)
    assert (shown == list(range(1, count + 1))) is whole
    assert {1, 288, 300, 312} <= set(shown)
    assert gutter(text, 300) == "90.0% barrier"
    if not whole:
        assert 150 not in shown
        assert f"lines 313-{count}" in text


def test_a_long_file_without_hot_lines_shows_its_head() -> None:
    source = "\n".join(f"line {n}" for n in range(1, 2001))
    shown = numbered(source_text("src/reduce.cu", source, []))
    assert shown[0] == 1
    assert 20 <= len(shown) <= 100


def test_a_hot_line_beyond_the_end_of_an_edited_file_is_left_out() -> None:
    assert numbered(source_text("src/reduce.cu", "a\nb", [profile(hot(9, 90.0))])) == [1, 2]
    long = "x\n" * 500
    assert max(numbered(source_text("src/reduce.cu", long, [profile(hot(900, 90.0))]))) <= 500


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [
        (3, 5, [3, 4, 5]),
        (0, 2, [1, 2]),
        (9, 0, [9, 10]),
        (9, 99, [9, 10]),
        (-4, 2, [1, 2]),
        (50, 60, []),
        (5, 3, []),
    ],
)
def test_a_part_of_a_file(start: int, end: int, shown: list[int]) -> None:
    source = "\n".join(f"line {n}" for n in range(1, 11))
    assert numbered(source_text("a.cu", source, [], start, end)) == shown


def test_a_part_is_limited() -> None:
    source = "x\n" * 50_000
    assert len(numbered(source_text("a.cu", source, [], 1, 50_000))) <= 2 * WHOLE_FILE_LINES + 1


def test_an_empty_file() -> None:
    assert numbered(source_text("a.cu", "", [])) == []


def test_source_is_shown_as_it_is() -> None:
    assert "| \tsmem[tid] = [bold]x[/bold];" in source_text("a.cu", "\tsmem[tid] = [bold]x[/bold];", [])


# -- comparison and notebook --------------------------------------------------------------------------------


def test_comparison_side_by_side() -> None:
    base = profile(
        metrics={
            "gpu_time": metric("gpu_time", 2e6, "ns"),
            "registers": metric("registers", 16.0, "register/thread"),
        },
        stalls=(StallShare(reason="barrier", percent=60.0),),
    )
    best = profile(
        metrics={"gpu_time": metric("gpu_time", 1e6, "ns"), "dram_bytes": metric("dram_bytes", None, "byte")}
    )
    text = comparison({"baseline": [base], "best": [best], "candidate": []})
    rows = {line.split("  ")[0]: line.split()[-2:] for line in text.splitlines()}
    assert text.splitlines()[0].split() == ["baseline", "best"]
    assert rows["gpu time"] == ["2.00ms", "1.00ms"]
    assert "n/a" in rows["registers"][-1]
    assert rows["dram bytes"] == ["n/a", "n/a"]
    assert "barrier 60.0%" in text
    assert "occupancy" not in text
    starts = {line.rstrip().rfind("1.00ms") for line in text.splitlines() if "1.00ms" in line}
    assert starts == {text.splitlines()[0].rfind("best")}


def test_nothing_to_compare() -> None:
    assert comparison({"baseline": [], "best": []}) == ""


def test_notebook_entry() -> None:
    note = RoundNote(3, "ROLLED_BACK", "I tried float4.", "not faster (+0.2%)", "src/reduce.cu (+4 -2)")
    assert note.text().splitlines() == [
        "#3 ROLLED_BACK: not faster (+0.2%)",
        "  edited: src/reduce.cu (+4 -2)",
        "  tried (in your own words): I tried float4.",
    ]
    assert RoundNote(4, "FAILED", "", "no edit").text() == "#4 FAILED: no edit"
