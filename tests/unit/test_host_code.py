"""Device code, launches and what feeds only these are free to change; every other change of the host is seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachyon_tui.workspace.cpp_lexer import CannotTell, tokenise
from tachyon_tui.workspace.host_code import holds_main, touches_host

PROJECTS = Path(__file__).parents[1] / "projects" / "cuda"
TRANSPOSE = (PROJECTS / "transpose/transpose.cu").read_text()

FREE = {
    "comment": ("// Matrix transpose", "/* and\nmore */ // Something else"),
    "spaces": ("size_t bad = 0;", "size_t   bad=0 ;"),
    "kernel body": ("out[flat(col, row, height)] = in[flat(row, col, width)];", "out[0] = in[1];"),
    "tiled kernel": (
        "    const int row = blockIdx.y * blockDim.y + threadIdx.y;\n",
        "    __shared__ float tile[BLOCK_X][BLOCK_X + 1];\n#pragma unroll\n"
        "    for (int j = 0; j < 4; ++j) { auto f = [&](int q) { return q; }; tile[0][f(j)] = 0; }\n"
        "    const int row = blockIdx.y * blockDim.y + threadIdx.y;\n",
    ),
    "conditional in a kernel": (
        "    if (col < width",
        "#if __CUDA_ARCH__ >= 800\n    __syncwarp();\n#endif\n    if (col < width",
    ),
    "launch bounds": (
        "__global__ void transpose_naive",
        "__global__ __launch_bounds__(256) void transpose_naive",
    ),
    "template kernel": (
        "__global__ void scale_inplace",
        "template <int N, class T = float> __global__ void scale_inplace",
    ),
    "new helpers": (
        "__global__ void scale_inplace",
        '__device__ int two() { return 2; }\ntemplate <typename T>\n__device__ T id(T x) { return x; }\nextern "C" '
        "__global__ void other(int* x);\n__global__ void scale_inplace",
    ),
    "launch": (
        "transpose_naive<<<grid, block>>>(a, b, n, n);",
        "transpose_naive<4><<<dim3(n / 32, 2), 256, 0, 0>>>(a, b, n, n);",
    ),
    "two launches": (
        "scale_inplace<<<1024, 256>>>(a, h.size(), 2.0f);",
        "scale_inplace<<<1, 2>>>(a, h.size(), 1.0f);\nscale_inplace<<<1024, 256>>>(a, h.size(), 2.0f);",
    ),
    "configuration": (
        "const dim3 block(BLOCK_X, BLOCK_Y), grid((n + BLOCK_X - 1) / BLOCK_X, (n + BLOCK_Y - 1) / BLOCK_Y);",
        "const int tiles = (n + 31) / 32;\n    dim3 block(32, 8, 1);\n    dim3 grid;\n"
        "    grid.x = tiles; grid.y = static_cast<unsigned>(tiles);",
    ),
    "constants": ("constexpr int BLOCK_X = 32;", "constexpr int BLOCK_X = 64, TILE = BLOCK_X / 2;"),
    "unused constant left behind": (
        "(BLOCK_X, BLOCK_Y), grid((n + BLOCK_X - 1) / BLOCK_X, (n + BLOCK_Y - 1) / BLOCK_Y)",
        "(32, 8), grid(n / 32, n / 32)",
    ),
    "macro": (
        "constexpr int BLOCK_X = 32;",
        "#define BLOCK_X 64\n#define CDIV(a, b) (((a) + (b) - 1) / (b))",
    ),
    "guarded macro": ("constexpr int BLOCK_X = 32;", "#ifndef BLOCK_X\n#define BLOCK_X 64\n#endif"),
    "helper for the launch": (
        "int main(",
        "static inline int div_up(int a, int b) { return (a + b - 1) / b; }\nint main(",
    ),
    "device struct": (
        "__global__ void scale_inplace",
        "struct __align__(16) Pack { float v[8]; __device__ float get() const { return v[0]; } };\n"
        "using Vec = float4;\n__global__ void scale_inplace",
    ),
    "device memory": (
        "constexpr int BLOCK_X = 32;",
        "constexpr int BLOCK_X = 32;\n__constant__ float table[4] = {1, 2, 3, 4};\n__device__ int counter;",
    ),
    "CUDA headers": (
        "#include <cuda_runtime.h>",
        "#include <cooperative_groups.h>\n#include <cuda_fp16.h>\n"
        "#include <cuda_runtime.h>\n#include <mma.h>\n#include <cuda/barrier>",
    ),
    "namespace alias": (
        "__device__ __forceinline__",
        "namespace cg = cooperative_groups;\n__device__ __forceinline__",
    ),
    "static_assert": (
        "__device__ __forceinline__",
        'static_assert(sizeof(int) == 4, "x");\n__device__ __forceinline__',
    ),
    "cast for a launch": (
        "scale_inplace<<<1024, 256>>>(a, h.size(), 2.0f);",
        "const float4* a4 = reinterpret_cast<const float4*>(a);\n"
        "    scale_inplace<<<1024, 256>>>(a4, h.size() / 4, 2.0f);",
    ),
}

HOST = {
    "comparison": ("bad += r[", "bad += 0 * r["),
    "result": ("return bad ? 1 : 0;", "return 0;"),
    "printed text": ('"n=%d mismatches=%zu\\n", n, bad', '"n=%d mismatches=%zu\\n", n, size_t(0)'),
    "early exit": ("    size_t bad = 0;", "    std::exit(0);\n    size_t bad = 0;"),
    "problem size": (": 8192;", ": 64;"),
    "loop count": ("it < 5", "it < 1"),
    "launch removed": ("scale_inplace<<<1024, 256>>>(a, h.size(), 2.0f);", ""),
    "launch moved": (
        "    size_t bad = 0;",
        "    transpose_naive<<<grid, block>>>(a, b, n, n);\n    size_t bad = 0;",
    ),
    "launch under a condition": ("scale_inplace<<<1024", "if (n > 100) scale_inplace<<<1024"),
    "effect in a configuration": ("scale_inplace<<<1024,", "scale_inplace<<<(std::exit(0), 1024),"),
    "effect in an argument": ("2.0f);\n    const", "(r = h, 2.0f));\n    const"),
    "increment in an argument": ("(a, h.size(), 2.0f)", "(a, h.size(), n++)"),
    "lambda in an argument": ("(a, h.size(), 2.0f)", "(a, h.size(), [&] { return 2.0f; }())"),
    "call in an argument": ("(a, h.size(), 2.0f)", "(a, h.size(), evil())"),
    "call of a pointer": ("(a, h.size(), 2.0f)", "(a, h.size(), table[0](1))"),
    "assignment to a global": ("scale_inplace<<<1024", "optind = 5;\n    scale_inplace<<<1024"),
    "assignment to a host variable": ("scale_inplace<<<1024", "n = 5;\n    scale_inplace<<<1024"),
    "host reads a constant": ("std::printf(", 'std::printf(BLOCK_X ? "" : ""); std::printf('),
    "other memory copy": ("cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"),
    "static initialiser": ("int main(", "static int hack = (std::exit(0), 0);\nint main("),
    "static initialiser by lambda": (
        "int main(",
        "static int hack = []() { std::exit(0); return 0; }() + 0 * sizeof([] __device__ {});\nint main(",
    ),
    "constant with an effect": ("constexpr int BLOCK_X = 32;", 'const int BLOCK_X = std::puts("");'),
    "constructor function": ("int main(", "__attribute__((constructor)) static void hack() { }\nint main("),
    "constructor on a kernel": ("int main(", "__device__ [[gnu::constructor]] void hack() { }\nint main("),
    "new host function": ("int main(", "void helper() { std::exit(0); }\nint main("),
    "global object": ("int main(", "struct S { S() { std::exit(0); } } instance;\nint main("),
    "macro over a host word": ("constexpr int BLOCK_X = 32;", "#define bad 0\nconstexpr int BLOCK_X = 32;"),
    "macro over a keyword": (
        "constexpr int BLOCK_X = 32;",
        "#define for if (0) for\nconstexpr int BLOCK_X = 32;",
    ),
    "macro before headers": ("#include <cstdio>", "#define NDEBUG\n#include <cstdio>"),
    "macro in a kernel that reaches main": ("    if (col < width", "#define bad 0\n    if (col < width"),
    "macro with an effect in a launch": (
        "constexpr int BLOCK_Y = 8;",
        "#define BLOCK_Y 8); std::exit(0); dim3 unused(1",
    ),
    "macro that ends a function": (
        "constexpr int BLOCK_Y = 8;",
        "#define BLOCK_Y 8; } static int hack = 1; __device__ void f() {",
    ),
    "macro of the mark": ("constexpr int BLOCK_X", "#define __device__\nconstexpr int BLOCK_X"),
    "comment mark in a macro": ("int main(", '#define TEXT "/*"\nstatic int hack = 1;\n// */\nint main('),
    "other header": ("#include <vector>", '#include <vector>\n#include "helper.h"'),
    "header with a toolkit's prefix": ("#include <vector>", "#include <cuda_helper.h>\n#include <vector>"),
    "local header in a toolkit's folder": ("#include <vector>", '#include "cub/x.cuh"\n#include <vector>'),
    "header removed": ("#include <vector>\n", ""),
    "pragma": ("int main(", "#pragma omp parallel\nint main("),
    "conditional around main": ("int main(", "#if 0\n#endif\nint main("),
    "undef": ("int main(", "#undef assert\nint main("),
    "host and device function that main calls": (
        "__device__ __forceinline__ size_t flat",
        "__host__ __device__ int atoi(const char*) { return 4; }\n__device__ __forceinline__ size_t flat",
    ),
    "operator": ("int main(", "bool operator!=(V a, V b) { return false; }\nint main("),
    "specialisation": ("int main(", "template <> struct std::less<int> { };\nint main("),
    "using namespace": ("int main(", "using namespace cheat;\nint main("),
}


@pytest.mark.parametrize("name", FREE)
def test_changes_that_only_the_gpu_sees_are_free(name: str) -> None:
    old, new = FREE[name]
    assert TRANSPOSE.count(old) == 1, old
    assert touches_host(TRANSPOSE, TRANSPOSE.replace(old, new)) == ""


@pytest.mark.parametrize("name", HOST)
def test_changes_of_the_host_program_are_seen(name: str) -> None:
    old, new = HOST[name]
    assert TRANSPOSE.count(old) >= 1, old
    after = TRANSPOSE.replace(old, new, 1)
    why = touches_host(TRANSPOSE, after)
    assert why.startswith("the host program changed near line"), why
    assert touches_host(after, TRANSPOSE) != ""


def test_a_helper_and_a_macro_may_be_called_in_a_launch() -> None:
    base = TRANSPOSE.replace("int main(", "int div_up(int a, int b) { return (a + b - 1) / b; }\nint main(")
    after = base.replace("<<<1024, 256>>>", "<<<div_up(n, 256), 256>>>")
    assert touches_host(base, after) == ""
    assert "line" in touches_host(base, after.replace("(a + b - 1) / b", "(bad = 0)"))


def test_a_constant_that_other_host_code_reads_is_host_code() -> None:
    base = TRANSPOSE.replace("size_t bad = 0;", "size_t bad = BLOCK_X - 32;")
    why = touches_host(base, base.replace("BLOCK_X = 32", "BLOCK_X = 64"))
    assert why.endswith("constexpr int BLOCK_X = 64;")
    indirect = TRANSPOSE.replace("int main(", "constexpr int TWICE = 2 * BLOCK_X;\nint main(").replace(
        "size_t bad = 0;", "size_t bad = TWICE - 64;"
    )
    assert touches_host(indirect, indirect.replace("BLOCK_X = 32", "BLOCK_X = 64"))


def test_the_first_changed_line_is_named() -> None:
    line = TRANSPOSE[: TRANSPOSE.index("it < 5")].count("\n") + 1
    shown = "for (int it = 0; it < 6; ++it) transpose_naive<<<grid, block>>>(a, b, n, n);"
    assert touches_host(TRANSPOSE, TRANSPOSE.replace("it < 5", "it < 6")) == (
        f"the host program changed near line {line}: {shown}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "int main() { ",
        "int main() { ) }",
        "int main() {} }",
        'char* s = "open;\n',
        "/* open\n",
        'auto s = R"x(open)";',
        "int a ??( 1 ??);",
        "int a <: 1 :>;",
        "in\\\nt a;",
        "__global__ void k() {\n#if A\n}\n",
        "__global__ void k() {\n#endif\n}\n",
        "int x",
        "int x = 'a;\n",
    ],
)
def test_what_cannot_be_read_counts_as_touched(text: str) -> None:
    assert "cannot tell" in touches_host("int main() {}\n", text)
    assert "cannot tell" in touches_host(text, "int main() {}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a // b \\\n c\nd", ["a", "d"]),
        ("a /* b\n*/ c", ["a", "c"]),
        ("\"a\\\"/*b\" '\\'' 1'000'000ull", ['"a\\"/*b"', "'\\''", "1'000'000ull"]),
        ('u8R"x(/* " )" )x" a', ['u8R"x(/* " )" )x"', "a"]),
        ("#define A \\\n  1 /* x\n */ 2 // c\nb", ["#define A 1 2", "b"]),
        ("# error don't\nb", ["# error don't", "b"]),
        ("k<<<1, 2>>>(x);", ["k", "<<<", "1", ",", "2", ">>>", "(", "x", ")", ";"]),
        ("a \\\n b", ["a", "b"]),
        ("x.y->z::w .5e-3f 0x1p-3", ["x", ".", "y", "->", "z", "::", "w", ".5e-3f", "0x1p-3"]),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert [token.text for token in tokenise(text)] == expected


@given(st.text(alphabet="ab{}()[]<>;\"'/*\\\n#= RL", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        tokens = tokenise(text)
    except CannotTell:
        assert "cannot tell" in touches_host("", text)
    else:
        assert all(1 <= token.line <= text.count("\n") + 1 for token in tokens)
        assert isinstance(touches_host("", text), str)


@pytest.mark.parametrize(
    "path", sorted(PROJECTS.rglob("*.cu")) + sorted(PROJECTS.rglob("*.cuh")), ids=lambda p: p.name
)
def test_real_files_are_read(path: Path) -> None:
    text = path.read_text()
    assert tokenise(text)
    assert touches_host(text, text + "\n// end\n") == ""
    assert touches_host(text, text + "\nint added;\n") != ""
    assert holds_main(text) == (path.name in ("main.cu", "transpose.cu", "faults.cu"))


def test_every_token_of_main_counts_but_those_of_launches_and_their_configuration() -> None:
    lines = TRANSPOSE.splitlines(keepends=True)
    main = next(i for i, line in enumerate(lines) if line.startswith("int main("))
    seen, missed = 0, set()
    for number, line in enumerate(lines[main:], main):
        for token in tokenise_line(line):
            without = "".join([*lines[:number], line.replace(token, " ", 1), *lines[number + 1 :]])
            if touches_host(TRANSPOSE, without):
                seen += 1
            else:
                missed.add(number)
    assert seen > 100
    assert all("<<<" in lines[number] or "const dim3 block" in lines[number] for number in missed)


def tokenise_line(line: str) -> list[str]:
    """Words and strings of one line, which may be unbalanced."""
    return [found[0] for found in re.finditer(r'"[^"]*"|\w+', line)]


def test_main_in_a_comment_or_string_is_no_main() -> None:
    assert not holds_main('// int main()\nconst char* s = "main()";\n')
    assert holds_main("int main(")


TRITON = '''\
"""Adds vectors."""
import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


def add(x, y):
    out = torch.empty_like(x)
    n = x.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    add_kernel[grid](x, y, out, n, BLOCK=BLOCK)
    return out


if __name__ == "__main__":
    a = torch.rand(98432, device="cuda")
    print(torch.allclose(add(a, a), a + a))
'''


@pytest.mark.parametrize(
    ("old", "new", "free"),
    [
        ("BLOCK = 1024\n", "BLOCK = 2048  # larger\n", True),
        ("i < n) + tl", "i < n, other=0.0) + tl", True),
        ("BLOCK=BLOCK)", "BLOCK=512, num_warps=8)", True),
        ("@triton.jit\n", "@triton.jit\ndef two(x):\n    return x\n\n\n@triton.jit\n", True),
        (
            "@triton.jit\n",
            '@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])\n@triton.jit\n',
            True,
        ),
        ('meta["BLOCK"]),)', "BLOCK),)", True),
        ('"""Adds vectors."""', '"""Other words."""', True),
        ("a + a))", "a + a) or True)", False),
        ("98432", "98", False),
        ("    return out", "    return x + y", False),
        ("add_kernel[grid]", "if n > 5: add_kernel[grid]", False),
        ("add_kernel[grid](x, y, out, n, BLOCK=BLOCK)", "pass", False),
        ("BLOCK=BLOCK)", "BLOCK=exit(0))", False),
        ("    return out", "    handlers[0](x)\n    return out", False),
        ("BLOCK=BLOCK)", "BLOCK=(n := 5))", False),
        ("@triton.jit\n", "@exit\n@triton.jit\n", False),
        ("BLOCK = 1024\n", "BLOCK = exit(0)\n", False),
        ("BLOCK = 1024\n", "print = len\nBLOCK = 1024\n", False),
        ("import torch\n", "import os, torch\n", False),
        ("def add(x, y):", "def add(x, y) -> None", False),
    ],
)
def test_the_host_side_of_a_triton_program(old: str, new: str, free: bool) -> None:
    assert TRITON.count(old) >= 1
    assert (touches_host(TRITON, TRITON.replace(old, new, 1), "add.py") == "") == free
    assert holds_main(TRITON, "add.py")


def test_a_module_of_definitions_alone_holds_no_main() -> None:
    assert not holds_main("import triton\nX = 1\n@triton.jit\ndef k(): pass\n", "k.py")
    assert holds_main("syntax error here", "k.py")
