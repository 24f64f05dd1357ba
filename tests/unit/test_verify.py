"""The oracle learns what is stable, sees what is wrong, and forgives what an incumbent shows to vary."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tachyon_tui.workspace.outputs import Outputs
from tachyon_tui.workspace.problems import Problem
from tachyon_tui.workspace.tokens import same_number, timed, tokenise
from tachyon_tui.workspace.verify import Oracle

MATMUL = "size=1024 mismatches=0 time_ms={}\n"
REDUCE = "rows=1048576 cols=128 mismatches=0\n"


def matmul(*times: float) -> list[str]:
    return [MATMUL.format(time) for time in times]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("size=1024 time_ms=2.26", "size = 1024 time_ms = 2.26"),
        ("took 2.27ms for 4096x4096", "took 2.27 ms for 4096 x 4096"),
        ("x=-3, +1.5e-3 3-5 (-1)", "x = -3 , +1.5e-3 3 - 5 ( -1 )"),
        ("1,234 1,234,567.5 1,2,3 1,234,5", "1,234 1,234,567.5 1 , 2 , 3 1 , 234 , 5"),
        ("0x1F 0x1.8p3 .5 5. 1e5", "0x1F 0x1.8p3 .5 5. 1e5"),
        ("nan -inf Infinity nan(0x1) banana info", "nan -inf Infinity nan(0x1) banana info"),
        ("float4 sm_90 x2", "float4 sm_90 x2"),
        ("deadbeef12 3fa9bc01 12345678", "deadbeef12 3fa9bc01 12345678"),
        ("at 12:30:45.5 on 2026-01-02T03:04:05Z", "at 12:30:45.5 on 2026-01-02T03:04:05Z"),
        ("87% größe µs", "87 % größe µs"),
    ],
)
def test_tokens(line: str, expected: str) -> None:
    assert " ".join(token.text for token in tokenise(line)) == expected


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("size=1024 mismatches=0 time_ms=2.26", ["2.26"]),
        ("mismatches=0 time_ms=2.26", ["2.26"]),
        ("2.27ms 2.27 ms 5us 3 µs 2s 4 sec", ["2.27", "2.27", "5", "3", "2", "4"]),
        ("Elapsed time: 3.2, errors: 0", ["3.2"]),
        ("Bandwidth (GB/s): 100.2 ok 5", ["100.2"]),
        ("12.5 GB/s, 7 GFLOPS, 100 it/s 3 items", ["12.5", "7", "100"]),
        ("Time [s]: 5 GFLOPS = 1,234.5", ["5", "1,234.5"]),
        ("5 ms 7", ["5"]),
        ("n=5 s=3", []),
        ("n=5 ms=3", ["3"]),
        ("error rate: 0.0 pass_rate=1 hit rate 5", []),
        ("frame_rate=60 speedup: 3.2x throughput 5", ["60", "3.2", "5"]),
        ("kernelTimeMs: 5 count 3", ["5"]),
        ("the first time 0 errors", []),
        ("time step 5 min=3 max=4", []),
        ("PASSED in 3.2 s", ["3.2"]),
        ("128 MB 4096 rows", []),
        ("took (5) 3", ["5"]),
    ],
)
def test_numbers_of_time_or_rate(line: str, free: list[str]) -> None:
    tokens = tokenise(line)
    assert [tokens[i].text for i in sorted(timed(tokens))] == free


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("1.0", "1.00005", True),
        ("1.0", "1.0002", False),
        ("0", "1e-9", True),
        ("0", "1e-7", False),
        ("nan", "nan", False),
        ("inf", "Infinity", True),
        ("inf", "-inf", False),
        ("inf", "1e308", False),
        ("-0", "0", True),
        ("0x10", "16", True),
        ("1e3", "1,000", True),
        ("1,234,567", "1,234,568", False),
        ("1,234,567.5", "1,234,568.5", True),
        ("12345678901234567890", "12345678901234567891", True),
    ],
)
def test_when_numbers_agree(a: str, b: str, same: bool) -> None:
    assert same_number(a, b, 1e-4, 1e-8) == same


def test_a_time_is_free_and_the_rest_is_not() -> None:
    oracle = Oracle.learn(matmul(2.21, 2.27, 2.31))
    assert oracle.describe() == "checks 5 of 6 tokens: size=1024 mismatches=0 time_ms=*"
    assert oracle.check(MATMUL.format("0.123")) == ()
    assert oracle.check("size=1024   mismatches=0\ttime_ms=9\n\n") == ()
    (found,) = oracle.check("size=1024 mismatches=3 time_ms=2.2\n")
    assert (found.expected, found.got, found.where) == ("mismatches=0", "mismatches=3", "line 1")
    assert str(found) == "line 1: 'mismatches=3' instead of 'mismatches=0'"


def test_a_time_is_free_even_where_it_never_varied() -> None:
    assert Oracle.learn(["12:00:01 done in 5 ms\n"] * 6).check("23:59:59 done in 7 ms\n") == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "size=1024 mismatches=nan time_ms=2\n",
        "size=512 mismatches=0 time_ms=2\n",
        "size=1024 mismatches=0\n",
        "size=1024 mismatches=0 time_ms=2\nextra\n",
        "size=1024 mismatches=0 time_ms=2\nsize=1024 mismatches=0 time_ms=2\n",
        "Size=1024 mismatches=0 time_ms=2\n",
        "mismatches=0 size=1024 time_ms=2\n",
        "size=1024 mismatches=0 time_ms=2 mismatches=1\n",
        "size=1024 mismatches=0 time_ms\n",
    ],
)
def test_whatever_else_is_printed_is_seen(text: str) -> None:
    assert Oracle.learn(matmul(2.21, 2.27)).check(text)


def test_a_printed_pass_does_not_hide_the_real_line() -> None:
    oracle = Oracle.learn([REDUCE] * 6)
    found = oracle.check(REDUCE + REDUCE.replace("=0", "=77"))
    assert found
    assert all(not mismatch.expected or mismatch.got for mismatch in found)


def test_numbers_that_vary_are_free_and_those_within_tolerance_are_still_checked() -> None:
    runs = [
        f"seed={seed} sum={total:.6f}\n" for seed, total in [(17, 1.000000), (99, 1.000010), (5, 1.000020)]
    ]
    oracle = Oracle.learn(runs)
    assert oracle.describe() == "checks 3 of 4 tokens: seed=* sum=1.000000"
    assert oracle.check("seed=1 sum=1.000100\n") == ()
    assert [m.got for m in oracle.check("seed=1 sum=1.1\n")] == ["sum=1.1"]
    assert [m.got for m in oracle.check("seed=1 sum=nan\n")] == ["sum=nan"]


def test_nan_of_the_baseline_is_no_evidence() -> None:
    oracle = Oracle.learn(["x=nan y=1\n"] * 3)
    assert oracle.check("x=5 y=1\n") == ()
    assert oracle.check("x=nan y=2\n")


def test_words_that_vary_are_free() -> None:
    oracle = Oracle.learn(
        [f"host: {name} file {file}\nresult 7\n" for name, file in [("ab", "x"), ("cd", "y")]]
    )
    assert oracle.check("host: zz file z\nresult 7\n") == ()
    assert oracle.check("host: zz file z\nresult 8\n")
    assert oracle.check("guest: zz file z\nresult 7\n")
    hashes = Oracle.learn(["id deadbeef01 ok\n", "id 0123456789 ok\n", "id 12e4567890 ok\n"])
    assert hashes.check("id 99aabbccdd ok\n") == ()
    assert hashes.check("id 99aabbccdd bad\n")


def test_lines_that_come_and_go_do_not_stop_the_check() -> None:
    def run(steps: int) -> str:
        return "start\n" + "".join(f"progress {i} of many\n" for i in range(steps)) + "mismatches=0\nend\n"

    oracle = Oracle.learn([run(3), run(5), run(4)])
    assert oracle.check(run(9)) == ()
    assert oracle.check(run(0)) == ()
    found = oracle.check(run(7).replace("mismatches=0", "mismatches=1"))
    assert [(m.expected, m.got) for m in found] == [("mismatches=0", "mismatches=1")]
    assert oracle.check(run(3).replace("end\n", ""))
    assert oracle.check(run(3) + "surprise\n")
    assert oracle.check(run(3).replace("start\n", "mismatches=0\nstart\n"))


def test_lines_that_change_places_are_free_to_do_so() -> None:
    def run(order: str) -> str:
        return "start 1\n" + "".join(f"worker_{name} done\n" for name in order) + "total 3\n"

    oracle = Oracle.learn([run("abc"), run("bca"), run("cab")])
    assert oracle.check(run("acb")) == ()
    assert oracle.check(run("abc").replace("total 3", "total 4"))
    assert oracle.check(run("abc").replace("start 1\n", ""))


def test_lines_lost_added_and_changed_are_told_apart() -> None:
    base = "alpha 1\nbeta 2\ngamma 3\ndelta 4\n"
    oracle = Oracle.learn([base] * 3)
    lost = oracle.check(base.replace("beta 2\n", ""))
    assert [(m.expected, m.got) for m in lost] == [("beta 2", "")]
    assert str(lost[0]) == "line 2: 'beta 2' is missing"
    added = oracle.check(base + "omega 5\n")
    assert [(m.expected, m.got, m.where) for m in added] == [("", "omega 5", "line 5")]
    assert str(added[0]) == "line 5: 'omega 5' was not printed before"
    changed = oracle.check(base.replace("gamma 3", "GAMMA 3").replace("delta 4", "delta 5"))
    assert [(m.expected, m.got) for m in changed] == [("gamma 3", "GAMMA 3"), ("delta 4", "delta 5")]


def test_what_an_incumbent_contradicts_is_unlearned() -> None:
    oracle = Oracle.learn(["best device 0 sum=10\n"] * 6)
    odd = "best device 1 sum=10\n"
    assert oracle.check(odd)
    assert [m.got for m in oracle.contradict(odd)] == ["device 1"]
    assert oracle.contradict(odd) == ()
    assert oracle.check("best device 2 sum=10\n") == ()
    assert oracle.check("best device 2 sum=11\n")
    oracle.contradict("note: something\nbest device 1 sum=10\n")
    assert oracle.check(odd) == oracle.check("note: something\n" + odd) == ()
    assert oracle.check("best device 2 sum=11\n")


def test_ignore_frees_more() -> None:
    oracle = Oracle.learn(
        ["max error 1.19e-07\nok 5\nDEBUG a\n"] * 3, ignore=[r"max error \S+", "^DEBUG.*", r"(?<=ok )\d+"]
    )
    assert oracle.check("max error 9e-3\nok 7\n") == ()
    assert oracle.check("max error 9e-3\nko 7\n")
    with pytest.raises(Problem, match="no regular expression") as caught:
        Oracle.learn(["x"], ignore=["("])
    assert caught.value.fix


@pytest.mark.parametrize("texts", [[], ["", ""], ["\n \n"], ["3 ms\n", "4 ms\n"][:0]])
def test_an_oracle_of_nothing_says_so(texts: list[str]) -> None:
    oracle = Oracle.learn(texts)
    assert oracle.empty
    assert "exit code alone" in oracle.describe()
    assert oracle.check("") == ()


def test_an_oracle_with_nothing_stable_says_so() -> None:
    oracle = Oracle.learn(["abc 1\n", "def ghi 2 3\n", "5\n"])
    assert oracle.empty
    assert "exit code alone" in oracle.describe()


def test_the_mode_exact() -> None:
    oracle = Oracle.learn(["a  1\nb\n"] * 3, mode="exact", ignore=[r"t=\d+"])
    assert oracle.describe() == "checks the whole output, exactly"
    assert oracle.check("a  1\nb\n") == oracle.check("a  1\nbt=5\n") == ()
    (found,) = oracle.check("a 1\nb\n")
    assert (found.expected, found.got, found.where) == ("a  1", "a 1", "line 1")
    (shorter,) = oracle.check("a  1")
    assert (shorter.expected, shorter.got) == ("b", "end of output")
    assert oracle.contradict("a  1\nc\n")
    assert oracle.check("a  1\nc\n") == ()
    with pytest.raises(Problem, match="differs from run to run") as caught:
        Oracle.learn(["a", "b"], mode="exact")
    assert caught.value.fix


def test_the_mode_off() -> None:
    oracle = Oracle.learn(["a"], mode="off")
    assert oracle.check("b") == ()
    assert "exit code alone" in oracle.describe()


def test_long_outputs_are_compared_up_to_a_limit() -> None:
    limit = 10 * 1024
    read = "".join(f"row {i} value é {i * 7 % 1000}\n" for i in range(2000))[: limit + 1]
    oracle = Oracle.learn([read] * 3, limit=limit)
    assert oracle.truncated
    assert oracle.describe().endswith("(of the first 10.0 KiB)")
    assert oracle.check(read) == ()
    assert oracle.check(read.replace("row 500 ", "row 501 "))
    assert oracle.check(read[: limit // 2])
    assert oracle.check("junk 1\n" + read)


def test_many_differing_lines_are_answered_at_once() -> None:
    base = "".join(f"a{i} {i}\n" for i in range(5000))
    other = "".join(f"b{i} {i}\n" for i in range(4000))
    found = Oracle.learn([base] * 2).check(other)
    assert [(m.expected, m.got) for m in found] == [("a0 0", "b0 0")]


words = st.sampled_from(["sum", "rows", "ok", "status", "x1"])
numbers = st.one_of(st.integers(-1000, 1000).map(str), st.floats(-1e6, 1e6).map(lambda x: f"{x:.6g}"))
rows = st.lists(st.tuples(words, numbers), min_size=1, max_size=4).map(
    lambda pairs: " ".join(f"{word}={number}" for word, number in pairs)
)
texts = st.lists(rows, min_size=1, max_size=6)


@given(text=texts, data=st.data())
def test_a_deterministic_output_is_checked_to_the_last_number(text: list[str], data: st.DataObject) -> None:
    oracle = Oracle.learn(["\n".join(text)] * 3)
    assert oracle.check("\n".join(text)) == ()
    at = data.draw(st.integers(0, len(text) - 1))
    name, _, old = text[at].rpartition("=")
    changed = f"{float(old) * 1.01 + 1:.8g}"
    assume(not same_number(old, changed, 1e-4, 1e-8))
    assert oracle.check("\n".join([*text[:at], f"{name}={changed}", *text[at + 1 :]]))
    assert oracle.check("\n".join([*text[:at], *text[at + 1 :]]))


@given(runs=st.lists(texts.map("\n".join), min_size=1, max_size=5), extra=texts.map("\n".join))
def test_no_run_that_was_learned_is_ever_rejected(runs: list[str], extra: str) -> None:
    oracle = Oracle.learn(runs)
    for run in runs:
        assert oracle.check(run) == ()
    oracle.contradict(extra)
    for run in [*runs, extra]:
        assert oracle.check(run) == ()


@given(seed=st.integers(0, 10_000))
def test_runs_with_noise_are_accepted_and_a_wrong_count_is_not(seed: int) -> None:
    generator = random.Random(seed)

    def run(bad: int) -> str:
        steps = "".join(f"step {i}: {generator.random():.4f}\n" for i in range(generator.randint(0, 4)))
        return f"device {generator.choice('abc')}\n{steps}bad={bad} in {generator.random():.3f} ms\n"

    oracle = Oracle.learn([run(0) for _run in range(6)])
    assert oracle.check(run(1))


@pytest.fixture
def outputs(tmp_path: Path) -> Outputs:
    outputs = Outputs(tmp_path, ["out.bin", "./sub/out.txt"], protected={"main.cu"})
    (tmp_path / "sub").mkdir()
    return outputs


def write(root: Path, data: bytes, text: str) -> None:
    (root / "out.bin").write_bytes(data)
    (root / "sub/out.txt").write_text(text)


def test_outputs_are_deleted_and_compared(tmp_path: Path, outputs: Outputs) -> None:
    outputs.prepare()
    write(tmp_path, b"\0\1", "1.0 2.0\nok\n")
    assert outputs.record() == ()
    outputs.prepare()
    assert not (tmp_path / "out.bin").exists()
    assert [m.where for m in outputs.check()] == ["out.bin", "sub/out.txt"]
    write(tmp_path, b"\0\1", "1.00001  2\nok\n")
    assert outputs.check() == ()
    write(tmp_path, b"\0\2", "1.1 2.0\nok\n")
    assert [str(m) for m in outputs.check()] == [
        "out.bin: 'other bytes' instead of 'the bytes of the baseline'",
        "sub/out.txt line 1: '1.1' instead of '1.0'",
    ]
    for text in ("1.0 2.0\nko\n", "1.0 2.0\n", "1.0 2.0\nok\nmore\n", "1.0 2.0 3\nok\n", "nan 2.0\nok\n", ""):
        write(tmp_path, b"\0\1", text)
        assert [m.where.split()[0] for m in outputs.check()] == ["sub/out.txt"]


def test_outputs_that_vary_by_themselves_are_no_longer_compared(tmp_path: Path, outputs: Outputs) -> None:
    write(tmp_path, b"\0\1", "1\n")
    outputs.record()
    write(tmp_path, b"\0\2", "1\n")
    assert outputs.record() == ("out.bin",)
    assert outputs.checked == ("sub/out.txt",)
    assert outputs.describe() == "compares sub/out.txt; not out.bin, which vary from run to run"
    write(tmp_path, b"\0\3", "1\n")
    assert outputs.check() == ()


def test_a_baseline_that_writes_no_output_is_a_problem(outputs: Outputs) -> None:
    with pytest.raises(Problem, match=r"did not write out\.bin") as caught:
        outputs.record()
    assert caught.value.fix


@pytest.mark.parametrize(
    "path",
    ["main.cu", "./main.cu", "/etc/passwd", "../x", "a/../../x", "", ".git/config", ".tachyon/evolve.toml"],
)
def test_outputs_never_name_what_must_not_be_deleted(tmp_path: Path, path: str) -> None:
    with pytest.raises(Problem) as caught:
        Outputs(tmp_path, [path], protected={"main.cu"})
    assert caught.value.fix


def test_deleting_outputs_spares_folders_and_what_links_lead_to(tmp_path: Path) -> None:
    root = tmp_path / "p"
    (root / "folder").mkdir(parents=True)
    (tmp_path / "precious").write_text("x")
    with pytest.raises(Problem, match="cannot be deleted"):
        Outputs(root, ["folder"]).prepare()
    (root / "out").symlink_to(tmp_path / "precious")
    outputs = Outputs(root, ["out"])
    assert outputs.check()
    outputs.prepare()
    assert not (root / "out").is_symlink()
    (root / "sub").symlink_to(tmp_path)
    with pytest.raises(Problem, match="link"):
        Outputs(root, ["sub/precious"]).prepare()
    assert (tmp_path / "precious").read_text() == "x"
