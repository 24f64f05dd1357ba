/*
 * Records what a CUDA program does on the GPU: every kernel launch, copy and memset with its times, and a hash of
 * the code of every module. Loaded into an unmodified program by the CUDA driver:
 *
 *     CUDA_INJECTION64_PATH=/path/recorder.so TACHYON_RECORD=/scratch/record ./program
 *
 * One file per process, <TACHYON_RECORD>.<pid>, or <TACHYON_RECORD>.<pid>.<n> where that exists. Lines of text:
 *
 *     tachyon-recorder 1 <pid>            first line; 1 is the version of this format
 *     N <id> <mangled name>               a kernel's name, before its first K line
 *     K <name id> <start> <end> <gx> <gy> <gz> <bx> <by> <bz> <device> <stream> <graph id>     one launch
 *     C <copy kind> <bytes> <start> <end> one copy; the kind is CUPTI's CUpti_ActivityMemcpyKind
 *     S <bytes> <start> <end>             one memset
 *     M <16 hex digits>                   a loaded module: hash of what the device executes or reads; "M -": unreadable
 *     X cdp                               kernels can be or were launched from the device, where CUPTI may not see them
 *     X late                              work was given to the GPU after the last flush began: it may be missing here
 *     D <count>                           CUPTI dropped that many records
 *     F <text>                            recording failed; nothing after it can be trusted to be complete
 *     E <count of K lines>                the process ended through its exit handlers, and all was flushed
 *
 * Times are in ns on CUPTI's clock. start = end = 0 marks a launch that faulted or had not finished at the end.
 * Control characters and the backslash in names are written as \xNN, so that a line is a line.
 *
 * The program must not notice us: nothing goes to its stdout or stderr, no error of ours reaches it, no launch is
 * intercepted (CUPTI's activity records are written by the driver), signals never run on our thread, and the file is
 * opened for every write, as programs that close all descriptors exist.
 *
 * Limits, each of which leaves a record that its reader takes for no evidence:
 * - Records lie in CUPTI's memory until flushed. A thread flushes every 50 ms: flushing at every synchronising call
 *   would make programs that synchronise often several times slower. So a program that is killed, aborts or calls _exit
 *   loses up to its last 50 ms, also what it has synchronised with, and has no end mark.
 * - The end mark is written by an exit handler set up at the program's first CUDA call. Exit handlers set up before
 *   that call, and destructors of static objects built before it, run later. CUDA leaves undefined whether they may use
 *   the GPU; where one does, X late says so. That is watched for from the end on only, as it slows every call down.
 *
 * Compiles, together with module_hash.c, with CUDA 11.8 and later.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <cupti.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* In module_hash.c: 1 and the hash of a cubin, or 0 where it is none; *cdp becomes 1 where it launches kernels. */
int hash_module(const void *image, uint64_t size, uint64_t *hash, int *cdp);
uint64_t hash_text(const char *text);

/* CUPTI fills the newest record it knows; fields are only ever added behind. Everything read here, but for
   isDeviceLaunched, is in all of these. */
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 Kernel;
#define DEVICE_LAUNCHED(k) (runtime_version >= 130000 && (k)->isDeviceLaunched)
#elif CUPTI_API_VERSION >= 19
typedef CUpti_ActivityKernel9 Kernel;
#else
typedef CUpti_ActivityKernel8 Kernel;
#endif
#ifndef DEVICE_LAUNCHED
#define DEVICE_LAUNCHED(k) 0
#endif
typedef CUpti_ActivityMemcpy5 Copy;
typedef CUpti_ActivityMemcpyPtoP4 PeerCopy;
typedef CUpti_ActivityMemset4 Memset;

#define BUFFER_BYTES (256u * 1024)
#define FLUSH_NS 50000000L
#define PATIENCE_S 5

static pid_t owner; /* a fork of us must stay quiet */
static uint32_t runtime_version;
static CUpti_SubscriberHandle subscriber;
static char path[4096];

/* ---- writing; all of it under `lock` ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int quiet; /* 1 once writing failed or F was written */
static uint64_t launches;
static int wrote_cdp, wrote_late;
static volatile int missed; /* something could not be written, as the lock could not be had */
static char text[64 * 1024];
static size_t used;

/* 0 where the lock cannot be had: exit() inside a signal handler can meet a holder that never runs again. */
static int take_lock(void) {
    struct timespec until;
    if (getpid() != owner) return 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    if (pthread_mutex_timedlock(&lock, &until) == 0) return 1;
    missed = 1;
    return 0;
}

static void write_out(void) {
    size_t done = 0;
    const int fd = quiet || !used ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 && used) quiet = 1;
    while (fd >= 0 && done < used) {
        const ssize_t n = write(fd, text + done, used - done);
        if (n > 0) done += (size_t)n;
        else if (n < 0 && errno == EINTR) continue;
        else {
            quiet = 1;
            break;
        }
    }
    if (fd >= 0) close(fd);
    used = 0;
}

static void put_char(char c) {
    if (used == sizeof text) write_out();
    text[used++] = c;
}

static void put_number(uint64_t value) {
    char digits[20];
    int n = 0;
    put_char(' ');
    do digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    while (n) put_char(digits[--n]);
}

static void put_text(const char *s) {
    static const char hex[] = "0123456789abcdef";
    for (; *s; s++) {
        const uint8_t c = (uint8_t)*s;
        if (c >= 0x20 && c != 0x7f && c != '\\') {
            put_char(*s);
        } else {
            put_char('\\');
            put_char('x');
            put_char(hex[c >> 4]);
            put_char(hex[c & 15]);
        }
    }
}

/* The last line of a recording that failed. */
static void fail(const char *what, CUptiResult result) {
    const char *reason = NULL;
    if (quiet) return;
    put_text("F ");
    put_text(what);
    if (result != CUPTI_SUCCESS && cuptiGetResultString(result, &reason) == CUPTI_SUCCESS && reason) {
        put_text(": ");
        put_text(reason);
    }
    put_char('\n');
    write_out();
    quiet = 1;
}

/* A line that is said once. */
static void put_once(int *written, const char *line) {
    if (*written || quiet) return;
    *written = 1;
    put_text(line);
    put_char('\n');
}

static void put_cdp(void) { put_once(&wrote_cdp, "X cdp"); }

/* Kernel names get small numbers. By text, as CUPTI may reuse the memory of a name after its module is unloaded. */
typedef struct {
    uint64_t hash;
    char *name;
    uint32_t id;
} Name;
static Name *names;
static size_t names_size, names_used;

static int grow_names(void) {
    const size_t size = names_size ? names_size * 2 : 256;
    Name *bigger = calloc(size, sizeof *bigger);
    if (!bigger) return 0;
    for (size_t i = 0; i < names_size; i++) {
        if (!names[i].name) continue;
        size_t at = names[i].hash & (size - 1);
        while (bigger[at].name) at = (at + 1) & (size - 1);
        bigger[at] = names[i];
    }
    free(names);
    names = bigger;
    names_size = size;
    return 1;
}

static int name_id(const char *name, uint32_t *id) {
    if (!name || !*name) name = "?";
    const uint64_t hash = hash_text(name);
    if (names_used * 2 >= names_size && !grow_names()) return 0;
    size_t at = hash & (names_size - 1);
    while (names[at].name && (names[at].hash != hash || strcmp(names[at].name, name) != 0))
        at = (at + 1) & (names_size - 1);
    if (!names[at].name) {
        char *copy = strdup(name);
        if (!copy) return 0;
        names[at] = (Name){hash, copy, (uint32_t)names_used++};
        put_char('N');
        put_number(names[at].id);
        put_char(' ');
        put_text(copy);
        put_char('\n');
    }
    *id = names[at].id;
    return 1;
}

static void put_kernel(const Kernel *k) {
    uint32_t id;
    if (!name_id(k->name, &id)) {
        fail("out of memory", CUPTI_SUCCESS);
        return;
    }
    const uint32_t shape[] = {(uint32_t)k->gridX,  (uint32_t)k->gridY,  (uint32_t)k->gridZ,
                              (uint32_t)k->blockX, (uint32_t)k->blockY, (uint32_t)k->blockZ,
                              k->deviceId,         k->streamId,         k->graphId};
    put_char('K');
    put_number(id);
    put_number(k->start);
    put_number(k->end);
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) put_number(shape[i]);
    put_char('\n');
    launches++;
    if (DEVICE_LAUNCHED(k)) put_cdp();
}

static void put_copy(uint8_t kind, uint64_t bytes, uint64_t start, uint64_t end) {
    put_char('C');
    put_number(kind);
    put_number(bytes);
    put_number(start);
    put_number(end);
    put_char('\n');
}

static void put_record(const CUpti_Activity *record) {
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        put_kernel((const Kernel *)record);
        break;
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const Copy *c = (const Copy *)record;
        put_copy(c->copyKind, c->bytes, c->start, c->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const PeerCopy *c = (const PeerCopy *)record;
        put_copy(c->copyKind, c->bytes, c->start, c->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const Memset *m = (const Memset *)record;
        put_char('S');
        put_number(m->bytes);
        put_number(m->start);
        put_number(m->end);
        put_char('\n');
        break;
    }
    case CUPTI_ACTIVITY_KIND_CDP_KERNEL:
        put_cdp();
        break;
    default:
        break;
    }
}

/* ---- what CUPTI calls ---- */

static void CUPTIAPI buffer_requested(uint8_t **buffer, size_t *size, size_t *max_records) {
    void *memory = NULL;
    const int saved = errno;
    *buffer = posix_memalign(&memory, 64, BUFFER_BYTES) == 0 ? memory : NULL;
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
    errno = saved;
}

static void CUPTIAPI buffer_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    const int saved = errno;
    size_t dropped = 0;
    (void)size;
    /* Outside our lock, as it may wait for one of CUPTI's that a callback holds. */
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) != CUPTI_SUCCESS) dropped = 0;
    if (take_lock()) {
        CUpti_Activity *record = NULL;
        CUptiResult result = CUPTI_ERROR_MAX_LIMIT_REACHED;
        while (!quiet && valid && (result = cuptiActivityGetNextRecord(buffer, valid, &record)) == CUPTI_SUCCESS)
            put_record(record);
        if (!quiet && valid && result != CUPTI_ERROR_MAX_LIMIT_REACHED) fail("reading records", result);
        if (!quiet && dropped) {
            put_char('D');
            put_number(dropped);
            put_char('\n');
        }
        write_out();
        pthread_mutex_unlock(&lock);
    }
    free(buffer);
    errno = saved;
}

static volatile int cuda_runs; /* a module was loaded: CUDA is up, and there may be something to flush */

static void module_loaded(const CUpti_ModuleResourceData *module) {
    uint64_t hash = 0;
    int cdp = 0;
    const int known = module && hash_module(module->pCubin, module->cubinSize, &hash, &cdp);
    cuda_runs = 1;
    if (!take_lock()) return;
    if (!quiet) {
        put_text(known ? "M " : "M -");
        for (int shift = 60; known && shift >= 0; shift -= 4) put_char("0123456789abcdef"[hash >> shift & 15]);
        put_char('\n');
        if (cdp) put_cdp();
        write_out();
    }
    pthread_mutex_unlock(&lock);
}

/* Whether a driver call gives the GPU work that we would have recorded. By the beginning of its name, as versions
   and kinds of these calls are many ("cuMemcpyHtoDAsync_v2", "cuLaunchKernel_ptsz") and grow with CUDA. */
static int gives_work(const char *function) {
    static const char *const names[] = {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset"};
    for (size_t i = 0; function && i < sizeof names / sizeof *names; i++)
        if (strncmp(function, names[i], strlen(names[i])) == 0) return 1;
    return 0;
}

static void driver_called(const CUpti_CallbackData *call) {
    if (call->callbackSite != CUPTI_API_ENTER || !gives_work(call->functionName) || !take_lock()) return;
    put_once(&wrote_late, "X late");
    write_out();
    pthread_mutex_unlock(&lock);
}

static void CUPTIAPI callback(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    const int saved = errno;
    (void)unused;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_MODULE_LOADED)
        module_loaded(((const CUpti_ResourceData *)data)->resourceDescriptor);
    else if (domain == CUPTI_CB_DOMAIN_DRIVER_API) /* called from the end on only */
        driver_called(data);
    errno = saved;
}

/* ---- our thread, and the end ---- */

static pthread_t flusher;
static int flushing; /* the thread was started */
static pthread_mutex_t wake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake;
static int stopping;

static void *flush_now_and_then(void *unused) {
    (void)unused;
    pthread_mutex_lock(&wake_lock);
    while (!stopping) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += FLUSH_NS;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_nsec -= 1000000000L;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&wake, &wake_lock, &until);
        if (stopping || !cuda_runs) continue;
        pthread_mutex_unlock(&wake_lock);
        cuptiActivityFlushAll(0);
        pthread_mutex_lock(&wake_lock);
    }
    pthread_mutex_unlock(&wake_lock);
    return NULL;
}

static int start_thread(void) {
    sigset_t all, before;
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) || pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) ||
        pthread_cond_init(&wake, &monotonic))
        return 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    flushing = pthread_create(&flusher, NULL, flush_now_and_then, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return flushing;
}

/* An exit handler. Later buffers, if CUPTI still delivers any, add K lines that E does not count: no evidence. */
static void finish(void) {
    static int finished;
    int stuck = 0;
    if (getpid() != owner || finished) return;
    finished = 1;
    if (flushing && !pthread_equal(pthread_self(), flusher)) {
        struct timespec until;
        pthread_mutex_lock(&wake_lock);
        stopping = 1;
        pthread_cond_signal(&wake);
        pthread_mutex_unlock(&wake_lock);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        stuck = pthread_timedjoin_np(flusher, NULL, &until) != 0;
    }
    CUptiResult result = CUPTI_SUCCESS;
    if (!stuck) {
        /* Before the flush, so that no launch falls between the two. Refused where CUDA is closed and takes no work. */
        cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API);
        result = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    if (!take_lock()) return;
    if (stuck) {
        fail("the last flush hangs", CUPTI_SUCCESS);
    } else if (missed) {
        fail("a write was missed", CUPTI_SUCCESS);
    } else if (result != CUPTI_SUCCESS) {
        fail("last flush", result);
    } else if (!quiet) {
        put_char('E');
        put_number(launches);
        put_char('\n');
        write_out();
    }
    pthread_mutex_unlock(&lock);
}

static int open_record(const char *prefix) {
    for (int n = 0; n < 100; n++) {
        int length = n ? snprintf(path, sizeof path, "%s.%d.%d", prefix, (int)owner, n)
                       : snprintf(path, sizeof path, "%s.%d", prefix, (int)owner);
        if (length <= 0 || (size_t)length >= sizeof path) return 0;
        const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return close(fd) == 0;
        if (errno != EEXIST) return 0;
    }
    return 0;
}

static CUptiResult start_recording(const char **what) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    CUptiResult result;
    *what = "cuptiSubscribe";
    if ((result = cuptiSubscribe(&subscriber, callback, NULL)) != CUPTI_SUCCESS) return result;
    *what = "cuptiGetVersion";
    if ((result = cuptiGetVersion(&runtime_version)) != CUPTI_SUCCESS) return result;
    *what = "cuptiEnableCallback";
    result = cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
    if (result != CUPTI_SUCCESS) return result;
    *what = "cuptiActivityRegisterCallbacks";
    if ((result = cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed)) != CUPTI_SUCCESS) return result;
    *what = "cuptiActivityEnable";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((result = cuptiActivityEnable(kinds[i])) != CUPTI_SUCCESS) return result;
    return CUPTI_SUCCESS;
}

/* Called by the driver while it initialises. Always 1: the program runs, recorded or not. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    const int saved = errno;
    const char *prefix = getenv("TACHYON_RECORD"), *what = "";
    if (owner || !prefix || !*prefix) return 1;
    owner = getpid();
    if (open_record(prefix)) {
        take_lock();
        put_text("tachyon-recorder 1");
        put_number((uint64_t)owner);
        put_char('\n');
        write_out();
        pthread_mutex_unlock(&lock);

        const CUptiResult result = start_recording(&what);
        int ok = result == CUPTI_SUCCESS;
        if (ok && atexit(finish) != 0) what = "atexit", ok = 0;
        if (ok && at_quick_exit(finish) != 0) what = "at_quick_exit", ok = 0;
        if (ok && !start_thread()) what = "pthread_create", ok = 0;
        if (!ok && take_lock()) {
            fail(what, result);
            pthread_mutex_unlock(&lock);
        }
    }
    errno = saved;
    return 1;
}
