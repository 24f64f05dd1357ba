#!/usr/bin/env bash
# Tries the kernel recorder on a machine with an NVIDIA GPU and nvcc: what it sees, what it costs, what it survives.
# Usage, from the repository root:  bash tests/gpu/recorder_probe.sh [FOLDER OF cu_reduce AND transpose]
# PROBE_ROWS="late_launch fault" runs only these rows.
# Needs bash, nvcc, a C compiler and python3 with its standard library. Prints one table; details go to $OUT if set.
set -u
projects=${1:-tests/projects}
work=$(mktemp -d "${TMPDIR:-/tmp}/recorder-probe.XXXXXX")
trap 'rm -rf "$work"' EXIT

cat >"$work/probe.cu" <<'CU'
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
__global__ void add(float *p, int n, float x) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] += x;
}
__global__ void tiny(float *p) { if (threadIdx.x == 0) p[0] += 1; }
__global__ void spin(long long ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < ns);
}
__global__ void fault(int *p) { *p = 1; }
namespace { __global__ void hidden(float *p) { p[threadIdx.x] *= 2; } }
static const int N = 1 << 25;
static float *p;
// The driver's own descriptors must stay open; a careless daemon closes every plain file.
static bool is_file(int fd) { struct stat s; return fstat(fd, &s) == 0 && S_ISREG(s.st_mode); }
static void adds(int count) { for (int i = 0; i < count; i++) add<<<1024, 256>>>(p, N, 1.0f); }
static void drain() { cudaError_t e = cudaDeviceSynchronize(); if (e) { printf("error %d\n", e); exit(3); } }
// After main: a launch, and whether CUDA took it.
static void last_launch() {
    adds(1);
    cudaError_t launched = cudaGetLastError(), synchronised = cudaDeviceSynchronize();
    printf("last launch: error %d, synchronised: error %d\n", launched, synchronised);
}
struct Late { bool on = false; ~Late() { if (on) last_launch(); } } late;
static volatile int alarms;
static void on_alarm(int) { alarms++; }
int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "normal";
    auto is = [&](const char *m) { return !strcmp(mode, m); };
    if (is("no_cuda")) { puts("hello"); return 5; }
    if (is("forkexec")) {  // forks before CUDA starts; the child is another program
        pid_t c = fork();
        if (c == 0) { execl("/proc/self/exe", "probe", "normal", (char *)0); _exit(9); }
        int s; waitpid(c, &s, 0);
        if (!WIFEXITED(s) || WEXITSTATUS(s)) return 8;
    }
    if (is("exit_before")) atexit(last_launch);
    if (cudaMalloc(&p, N * sizeof(float))) return 2;
    if (is("exit_after")) atexit(last_launch);
    if (is("no_kernel")) return 0;
    cudaMemset(p, 0, N * sizeof(float));
    float ms = 0;
    cudaEvent_t a, b;
    cudaEventCreate(&a); cudaEventCreate(&b);
    if (is("normal") || is("forkexec")) { adds(10); hidden<<<1, 32>>>(p); drain(); }
    else if (is("timed")) {
        adds(20); drain(); cudaEventRecord(a); adds(2000); cudaEventRecord(b); drain(); cudaEventElapsedTime(&ms, a, b);
    } else if (is("many")) {
        tiny<<<1, 32>>>(p); drain(); cudaEventRecord(a);
        for (int i = 0; i < 49999; i++) tiny<<<1, 32>>>(p);
        cudaEventRecord(b); drain(); cudaEventElapsedTime(&ms, a, b);
    } else if (is("syncs")) {  // a benchmark that synchronises after each launch
        tiny<<<1, 32>>>(p); drain(); cudaEventRecord(a);
        for (int i = 0; i < 19999; i++) { tiny<<<1, 32>>>(p); drain(); }
        cudaEventRecord(b); drain(); cudaEventElapsedTime(&ms, a, b);
    } else if (is("_exit")) { adds(10); drain(); _exit(4); }
    else if (is("_exit_later")) { adds(10); drain(); usleep(300000); _exit(4); }
    else if (is("_exit_nosync")) { adds(10); usleep(300000); _exit(4); }
    else if (is("quick_exit")) { adds(10); drain(); quick_exit(4); }
    else if (is("abort")) { adds(10); drain(); abort(); }
    else if (is("abort_later")) { adds(10); drain(); usleep(300000); abort(); }
    else if (is("kill_later")) { adds(10); drain(); usleep(300000); raise(SIGKILL); }
    else if (is("exit_nosync")) { adds(10); spin<<<1, 1>>>(200000000LL); exit(0); }
    else if (is("late_launch")) { late.on = true; adds(10); drain(); }
    else if (is("exit_before") || is("exit_after")) { adds(10); drain(); }
    else if (is("fault")) { adds(1); fault<<<1, 1>>>(nullptr); cudaError_t e = cudaDeviceSynchronize(); printf("error %d\n", e); return 6; }
    else if (is("reset")) { adds(10); drain(); cudaDeviceReset(); }
    else if (is("streams")) {
        cudaStream_t s, t; cudaStreamCreate(&s); cudaStreamCreate(&t);
        spin<<<1, 1, 0, s>>>(20000000LL); spin<<<1, 1, 0, t>>>(20000000LL); drain();
    } else if (is("graph")) {
        cudaStream_t s; cudaStreamCreate(&s); cudaGraph_t g; cudaGraphExec_t x;
        cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
        for (int i = 0; i < 5; i++) add<<<1024, 256, 0, s>>>(p, N, 1.0f);
        cudaMemsetAsync(p, 0, 4096, s);
        cudaStreamEndCapture(s, &g); cudaGraphInstantiate(&x, g, 0);
        for (int i = 0; i < 4; i++) cudaGraphLaunch(x, s);
        drain();
    } else if (is("copies")) {
        float *h; cudaMallocHost(&h, 1 << 20); float *q; cudaMalloc(&q, 1 << 20);
        for (int i = 0; i < 3; i++) cudaMemcpy(q, h, 1000000, cudaMemcpyHostToDevice);
        cudaMemcpy(h, q, 500000, cudaMemcpyDeviceToHost); cudaMemcpy(p, q, 4096, cudaMemcpyDeviceToDevice);
        adds(1); drain();
    } else if (is("forkonly")) {  // children of a process with CUDA that only end, one with, one without exit handlers
        adds(5); drain();
        for (int i = 0; i < 2; i++) {
            pid_t c = fork();
            if (c == 0) { if (i) exit(0); usleep(120000); _exit(0); }
            int s; waitpid(c, &s, 0); if (!WIFEXITED(s) || WEXITSTATUS(s)) return 8;
        }
        adds(5); drain();
    } else if (is("closefds")) { adds(5); drain(); for (int i = 3; i < 256; i++) if (is_file(i)) close(i); }
    else if (is("signals")) {
        struct sigaction sa; memset(&sa, 0, sizeof sa); sa.sa_handler = on_alarm; sigaction(SIGALRM, &sa, 0);
        itimerval t = {{0, 1000}, {0, 1000}}; setitimer(ITIMER_REAL, &t, 0);
        for (int i = 0; i < 200; i++) { adds(10); drain(); }
        itimerval z = {{0, 0}, {0, 0}}; setitimer(ITIMER_REAL, &z, 0);
    } else return 7;
    printf("done %s\n", mode);
    if (ms > 0) printf("ms=%.4f\n", ms);
    return 0;
}
CU

cat >"$work/hash.cu" <<'CU'
#include <cstdio>
__device__ float table[64];
static __device__ float inner[64];
namespace { __global__ void two(float *p) { p[threadIdx.x] *= inner[threadIdx.x & 63]; } }
__global__ void one(float *p, int n) {
    for (int i = threadIdx.x; i < n; i += 32) p[i] = p[i] * 3.0f + table[i & 63];
}
int main() {
    float *p; cudaMalloc(&p, 4096); cudaMemset(p, 0, 4096);
    one<<<1, 32>>>(p, 1024); two<<<1, 32>>>(p);
    return cudaDeviceSynchronize();
}
CU
mkdir -p "$work/comment" "$work/code"
sed 's|^__global__ void one|// a comment\n\n/* and more */\n&|; s|int main|// main\nint main|' "$work/hash.cu" >"$work/comment/hash.cu"
sed 's|3.0f|5.0f|' "$work/hash.cu" >"$work/code/hash.cu"
cat >"$work/cdp.cu" <<'CU'
#include <cstdio>
__global__ void child(float *p) { p[threadIdx.x] += 1; }
__global__ void host_side(float *p) { p[threadIdx.x] += 1; }
__global__ void parent(float *p) { if (threadIdx.x == 0) for (int i = 0; i < 10; i++) child<<<1, 32>>>(p); }
int main() {
    float *p; cudaMalloc(&p, 4096);
    for (int i = 0; i < 5; i++) host_side<<<1, 32>>>(p);
    cudaDeviceSynchronize();
    parent<<<1, 32>>>(p); cudaDeviceSynchronize();
    for (int i = 0; i < 5; i++) host_side<<<1, 32>>>(p);
    return cudaDeviceSynchronize();
}
CU

cat >"$work/probe.py" <<'PY'
import atexit, os, re, shutil, statistics, subprocess, sys, tempfile, time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tachyon_tui.core.launches import busy_ns
from tachyon_tui.profilers.kernel_timer import build_recorder, find_cupti, read_records, recorder_environment

began = time.monotonic()
work, projects = Path(sys.argv[1]), Path(sys.argv[2])
out = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
details = []
BUDGET = 165.0


@atexit.register
def write_details():
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "recorder_probe.txt").write_text("\n".join(details))
    else:
        print("(set OUT=folder for the details)")


def left():
    return BUDGET - (time.monotonic() - began)


def nvcc(target, *args, cwd=work):
    done = subprocess.run(["nvcc", "-O2", "-arch=native", "-o", target, *args], cwd=cwd, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def compile_all():
    jobs = {
        "probe": (nvcc, "probe", "probe.cu"),
        "hash": (nvcc, "hash", "hash.cu", "-lineinfo"),
        "again": (nvcc, "again", "hash.cu", "-lineinfo"),
        "plainhash": (nvcc, "plainhash", "hash.cu"),
        "comment": (nvcc, "../comment_hash", "hash.cu", "-lineinfo"),
        "code": (nvcc, "../code_hash", "hash.cu", "-lineinfo"),
        "cdp": (nvcc, "cdp", "cdp.cu", "-rdc=true"),
    }
    with ThreadPoolExecutor() as pool:
        futures = {}
        for name, (f, *args) in jobs.items():
            futures[name] = pool.submit(f, *args, cwd=work / name if name in ("comment", "code") else work)
        for project in ("cu_reduce", "transpose"):
            if (projects / project / "Makefile").is_file():
                shutil.copytree(projects / project, work / project)
                futures[project] = pool.submit(
                    lambda d: (lambda r: (r.returncode, r.stderr))(
                        subprocess.run(["make"], cwd=d, capture_output=True, text=True)
                    ),
                    work / project,
                )
        built = {}
        for name, future in futures.items():
            code, text = future.result()
            built[name] = code == 0
            if code:
                print(f"!! {name} did not compile: {text[-400:]}")
        return built


def once(argv, recorder=None):
    """Exit code, stdout without times, in-program ms, wall s, record, raw text, parse s."""
    scratch = Path(tempfile.mkdtemp(dir=work))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TACHYON_", "CUDA_INJECTION"))}
    if recorder:
        env |= recorder_environment(recorder, scratch)
    start = time.monotonic()
    try:
        done = subprocess.run(argv, env=env, capture_output=True, timeout=60)
        code, text, err = done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr
    except subprocess.TimeoutExpired:
        code, text, err = "TIMEOUT", "", b""
    wall = time.monotonic() - start
    ms = re.search(r"ms=([0-9.]+)", text)
    plain = re.sub(r"[0-9.]+ *(ms|us|s|GB/s|TB/s)\b|ms=.*", "#", text) + err.decode("utf-8", "replace")
    record = raw = None
    parse = 0.0
    if recorder:
        files = sorted(scratch.glob("record.*"))
        raw = [f.read_bytes() for f in files]
        start = time.monotonic()
        record = read_records(files)
        parse = time.monotonic() - start
    shutil.rmtree(scratch)
    return code, plain, float(ms[1]) if ms else None, wall, record, raw, parse


HEAD = f"{'program':14}{'rc':>9} {'same':5}{'plain s':>8}{'rec s':>7} {'K want/got':>14} {'E':>4} {'files':>5}  {'in-program ms':>17}  {'sum / busy ms':>15}  problem"
hashes = {}


def row(name, argv, want, recorder, reps=3):
    if left() < 5:
        print(f"{name:14} skipped: out of time")
        return None
    plain = [once(argv) for _ in range(reps)] if reps else []
    rec = [once(argv, recorder) for _ in range(max(reps, 1))]
    last = rec[-1]
    record = last[4]
    marks = sum(sum(line.startswith(b"E ") for line in f.split(b"\n")) for f in last[5])
    counts = sorted({len(r[4].launches) for r in rec})
    same = all(r[0] == plain[0][0] and r[1] == plain[0][1] for r in rec) if plain else None
    rcs = f"{plain[0][0] if plain else '-'}/{last[0]}"
    walls = [f"{statistics.median(r[3] for r in rs):.2f}" if rs else "-" for rs in (plain, rec)]
    ms = "/".join(f"{statistics.median(r[2] for r in rs):.3f}" for rs in (plain, rec) if rs and rs[0][2])
    total = sum(x.end - x.start for x in record.launches) / 1e6
    busy = busy_ns((x.start, x.end) for x in record.launches) / 1e6
    print(
        f"{name:14}{rcs:>9} {str(same):5}{walls[0]:>8}{walls[1]:>7} "
        f"{want!s:>6}/{','.join(map(str, counts)):>7} {marks:>4} {len(last[5]):>5}  {ms:>17}  {total:7.3f}/{busy:7.3f}  "
        f"{record.problem[:64]}"
    )
    details.append(
        f"== {name} rcs plain={[r[0] for r in plain]} rec={[r[0] for r in rec]}\n"
        f"walls plain={[round(r[3], 3) for r in plain]} rec={[round(r[3], 3) for r in rec]}\n"
        f"parse s={last[6]:.3f} transfers={record.transfers} code={sorted(record.code)} problem={record.problem}\n"
        f"names={Counter(x.key.name for x in record.launches).most_common(8)}\n"
        f"mangled={sorted({x.mangled for x in record.launches})[:4]}\n"
        + "".join(
            "\n".join(x[:160].decode("utf-8", "replace") for x in (f.split(b"\n")[:14] + [b"..."] + f.split(b"\n")[-4:]))
            + "\n"
            for f in last[5]
        )
        + (f"plain out: {plain[0][1][:300]!r}\nrec out:   {last[1][:300]!r}\n" if same is False else "")
    )
    return last


start = time.monotonic()
cupti = find_cupti()
recorder = build_recorder(work / "cache")
print(f"recorder built in {time.monotonic() - start:.2f} s: CUPTI {cupti.version} {cupti.library}")
start = time.monotonic()
again = build_recorder(work / "cache")
print(f"second call {time.monotonic() - start:.4f} s, same file: {again == recorder}")
built = compile_all()
print(f"programs compiled after {time.monotonic() - began:.0f} s")
probe = str(work / "probe")
once([probe, "normal"])  # warms the driver up
print(HEAD)
many = None
wanted_rows = os.environ.get("PROBE_ROWS", "").split()
if built["probe"]:
    for mode, want in (
        ("normal", 11), ("timed", 2020), ("many", 50000), ("syncs", 20000), ("streams", 2), ("graph", 20), ("copies", 1),
        ("forkexec", 22), ("forkonly", 10), ("signals", 2000), ("closefds", 5), ("reset", 10), ("quick_exit", 10),
        ("_exit", 10), ("_exit_later", 10), ("_exit_nosync", 10), ("abort", 10), ("abort_later", 10), ("kill_later", 10),
        ("exit_nosync", 11), ("exit_after", 11), ("exit_before", 10), ("late_launch", 10), ("fault", 2), ("no_kernel", 0),
        ("no_cuda", 0),
    ):  # fmt: skip
        if wanted_rows and mode not in wanted_rows:
            continue
        last = row(mode, [probe, mode], want, recorder, reps=3 if mode in ("normal", "timed", "many", "syncs") else 2)
        if mode == "many" and last:
            many = last
        if mode == "copies" and last:
            print(" " * 14, [(t.kind, t.count, t.bytes, t.ns) for t in last[4].transfers])
            print(" " * 14, "want HtoD 3 of 3000000, DtoH 1 of 500000, DtoD 1 of 4096, memset 1 of", 4 << 25)
        if mode in ("exit_after", "exit_before", "late_launch") and last:
            print(" " * 14, next((line for line in last[1].split("\n") if line.startswith("last launch")), "no last launch"))
            if mode != "exit_after":
                print(" " * 14, "want a problem, unless CUDA refused the launch (its error is not 0)")
if wanted_rows:
    sys.exit()
for project in ("cu_reduce", "transpose"):
    if built.get(project):
        row(project, [str(work / project / project)], "?", recorder)
if built["cdp"]:
    row("cdp", [str(work / "cdp")], "21?", recorder, reps=1)
for name, file in (("hash", "hash"), ("again", "again"), ("no lineinfo", "plainhash"), ("comment", "comment_hash"), ("code", "code_hash")):
    if (work / file).is_file():
        got = once([str(work / file)], recorder)[4]
        hashes[name] = got.code
        details.append(f"== hash {name}: {sorted(got.code)} {[x.key.name for x in got.launches]} {got.problem}\n")
base = hashes.get("hash")
print("module hashes:", len(base or ()), "modules;", {n: ("equal" if h == base else "DIFFERS") for n, h in hashes.items() if n != "hash"},
      "(want: again, no lineinfo, comment equal; code DIFFERS)")
if many:
    print(f"reading 50,000 launches: {many[6]:.3f} s, {sum(map(len, many[5])) / 1e6:.1f} MB")
if built["probe"] and left() > 10:
    spread = [once([probe, "normal"], recorder)[4] for _ in range(5)]
    adds = [[x.end - x.start for x in r.launches if x.key.name.startswith("add")] for r in spread]
    means = [statistics.mean(durations) / 1e3 for durations in adds if durations]
    print("mean us of `add` in 5 runs:", " ".join(f"{m:.2f}" for m in means))
if left() > 45 and subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
    (work / "t.py").write_text("import torch\na=torch.ones(512,512,device='cuda')\nb=a@a\nprint(float((b+a).sum()))\n")
    row("torch", [sys.executable, str(work / "t.py")], "?", recorder, reps=1)
print(f"done in {time.monotonic() - began:.0f} s")
PY
PYTHONPATH=. PYTHONUNBUFFERED=1 python3 "$work/probe.py" "$work" "$projects"
