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
 *     D <count>                           CUPTI dropped that many records
 *     F <text>                            recording failed; nothing after it can be trusted to be complete
 *     E <count of K lines>                the process ended through its exit handlers, and all was flushed
 *
 * Times are in ns on CUPTI's clock. start = end = 0 marks a launch that faulted or had not finished at the end.
 * Control characters and the backslash in names are written as \xNN, so that a line is a line.
 *
 * The program must not notice us: nothing goes to its stdout or stderr, no error of ours reaches it, no launch is
 * intercepted (CUPTI's activity records are written by the driver), signals never run on our thread, and the file is
 * opened for every write, as programs that close all descriptors exist. Records lie in CUPTI's memory until flushed;
 * a thread flushes every 50 ms, so a program that is killed loses little.
 * TACHYON_FLUSH = thread (default) | sync (at every synchronising call instead) | both.
 *
 * Compiles with CUDA 11.8 and later. With -DTACHYON_TEST_MAIN it is a program that hashes the cubins it is given.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the hash of a module ---- */

#define HASH_SEED 0xcbf29ce484222325u
#define HASH_PRIME 0x100000001b3u

/* FNV-1a over 8-byte words, with a shift that brings the high bits down. */
static uint64_t hash_word(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * HASH_PRIME;
    return hash ^ (hash >> 32);
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, uint64_t count) {
    uint64_t word;
    hash = hash_word(hash, count);
    for (; count >= 8; count -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        hash = hash_word(hash, word);
    }
    word = 0;
    memcpy(&word, bytes, count);
    return hash_word(hash, word);
}

static int is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

/* A name without the 8 hex digits that nvcc puts into names of internal linkage ("_<8 hex>_<digit>"): they are a
   hash of the source text, so a comment changes them. */
static uint64_t hash_name(uint64_t hash, const char *name) {
    for (size_t i = 0; name[i]; i++) {
        hash = hash_word(hash, (uint8_t)name[i]);
        if (name[i] != '_') continue;
        size_t n = 0;
        while (n < 8 && is_hex(name[i + 1 + n])) n++;
        if (n == 8 && name[i + 9] == '_' && name[i + 10] >= '0' && name[i + 10] <= '9') i += 8;
    }
    return hash_word(hash, 0);
}

typedef struct {
    uint32_t name, type;
    uint64_t flags, addr, offset, size;
    uint32_t link, info;
    uint64_t align, entry;
} Section; /* Elf64_Shdr */

typedef struct {
    uint32_t name;
    uint8_t info, other;
    uint16_t section;
    uint64_t value, size;
} Symbol; /* Elf64_Sym */

enum { EM_CUDA = 190, SYMTAB = 2, RELA = 4, NOBITS = 8, REL = 9 };

typedef struct {
    const uint8_t *base;
    uint64_t size;
    const Section *sections; /* an aligned copy */
    uint32_t count, names;
} Elf;

/* The bytes of a section, or NULL where it does not lie inside the file. */
static const uint8_t *section_bytes(const Elf *elf, const Section *s) {
    if (s->type == NOBITS || s->offset > elf->size || s->size > elf->size - s->offset) return NULL;
    return elf->base + s->offset;
}

/* A string of a string table, or NULL where it does not end inside the table. */
static const char *string_at(const Elf *elf, uint32_t table, uint32_t at) {
    if (table >= elf->count) return NULL;
    const Section *s = &elf->sections[table];
    const uint8_t *bytes = section_bytes(elf, s);
    if (!bytes || at >= s->size || !memchr(bytes + at, 0, s->size - at)) return NULL;
    return (const char *)bytes + at;
}

static int begins(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static int symbol_at(const Elf *elf, uint32_t table, uint64_t index, Symbol *symbol) {
    if (table >= elf->count || elf->sections[table].type != SYMTAB) return 0;
    const uint8_t *bytes = section_bytes(elf, &elf->sections[table]);
    if (!bytes || index >= elf->sections[table].size / sizeof *symbol) return 0;
    memcpy(symbol, bytes + index * sizeof *symbol, sizeof *symbol);
    return 1;
}

/* What the linker or loader writes into code: the place, the kind, and the name of what is pointed at (symbol
   numbers move with debug information). */
static uint64_t hash_relocations(uint64_t hash, const Elf *elf, const Section *s, int *bad) {
    const uint64_t entry = s->type == RELA ? 24 : 16;
    const uint8_t *bytes = section_bytes(elf, s);
    if (!bytes) return *bad = 1, hash;
    uint64_t sum = 0; /* the order of relocations has no meaning */
    for (uint64_t at = 0; s->size - at >= entry; at += entry) {
        uint64_t field[3] = {0, 0, 0};
        Symbol symbol;
        memcpy(field, bytes + at, entry);
        const char *name = NULL;
        if (symbol_at(elf, s->link, field[1] >> 32, &symbol)) {
            name = string_at(elf, elf->sections[s->link].link, symbol.name);
            if (name && !*name && symbol.section < elf->count)
                name = string_at(elf, elf->names, elf->sections[symbol.section].name);
        }
        if (!name) return *bad = 1, hash;
        uint64_t one = hash_word(hash_word(hash_word(HASH_SEED, field[0]), (uint32_t)field[1]), field[2]);
        sum += hash_name(one, name);
    }
    return hash_word(hash, sum);
}

/* Of a kernel's attributes, those that change how it is launched, not what its code is: __launch_bounds__ (0x05),
   __block_size__ (0x10), clusters (0x3d to 0x3f). Others hold symbol numbers. */
static uint64_t hash_attributes(uint64_t hash, const Elf *elf, const Section *s, int *bad) {
    const uint8_t *bytes = section_bytes(elf, s);
    if (!bytes) return *bad = 1, hash;
    for (uint64_t at = 0; s->size - at >= 4;) {
        const uint8_t format = bytes[at], attribute = bytes[at + 1];
        uint16_t value;
        memcpy(&value, bytes + at + 2, 2);
        const uint64_t payload = format == 4 ? value : 0;
        if (payload > s->size - at - 4) return *bad = 1, hash;
        if (attribute == 0x05 || attribute == 0x10 || (attribute >= 0x3d && attribute <= 0x3f))
            hash = hash_bytes(hash_word(hash, attribute), bytes + at + 2, 2 + payload);
        at += 4 + payload;
    }
    return hash;
}

/* Device code that launches: the device runtime's entry points, and the driver's own behind them. */
static int launches_from_device(const Elf *elf, const Section *s) {
    const uint32_t table = (uint32_t)(s - elf->sections);
    Symbol symbol;
    for (uint64_t i = 0; symbol_at(elf, table, i, &symbol); i++) {
        const char *name = string_at(elf, s->link, symbol.name);
        if (name && (begins(name, "__cuda_syscall_cnp") || begins(name, "__cudaCDP2Launch") ||
                     begins(name, "cudaLaunchDevice")) && strstr(name, "Launch"))
            return 1;
    }
    return 0;
}

/* 1 and the hash, or 0 where this is no readable cubin. *cdp becomes 1 where the code launches kernels itself. */
static int hash_module(const void *image, uint64_t size, uint64_t *result, int *cdp) {
    const uint8_t *base = image;
    Elf elf = {base, size, NULL, 0, 0};
    uint64_t table;
    uint16_t machine, entry, count, names;
    if (!base || size < 64 || memcmp(base, "\177ELF\2\1", 6) != 0) return 0;
    memcpy(&machine, base + 18, 2);
    memcpy(&table, base + 40, 8);
    memcpy(&entry, base + 58, 2);
    memcpy(&count, base + 60, 2);
    memcpy(&names, base + 62, 2);
    if (machine != EM_CUDA || entry != sizeof(Section) || !count || names >= count) return 0;
    if (table > size || (uint64_t)count * sizeof(Section) > size - table) return 0;
    Section *sections = malloc(count * sizeof(Section));
    if (!sections) return 0;
    memcpy(sections, base + table, count * sizeof(Section));
    elf.sections = sections;
    elf.count = count;
    elf.names = names;

    uint64_t sum = 0; /* the order of sections has no meaning */
    int bad = 0, code = 0;
    for (uint32_t i = 1; i < count && !bad; i++) {
        const Section *s = &sections[i];
        const char *name = string_at(&elf, names, s->name);
        if (!name) {
            bad = 1;
            break;
        }
        if (s->type == SYMTAB && launches_from_device(&elf, s)) *cdp = 1;
        uint64_t hash = hash_word(hash_name(HASH_SEED, name), s->size);
        if (s->type == RELA || s->type == REL) {
            const char *of = begins(name, ".rela") ? name + 5 : name + 4;
            if (!begins(of, ".text") && !begins(of, ".nv.constant") && !begins(of, ".nv.global")) continue;
            sum += hash_relocations(hash, &elf, s, &bad);
        } else if (begins(name, ".nv.info.")) {
            sum += hash_attributes(hash_name(HASH_SEED, name), &elf, s, &bad);
        } else if (begins(name, ".text") || begins(name, ".nv.constant") || begins(name, ".nv.global") ||
                   begins(name, ".nv.shared") || begins(name, ".nv.local")) {
            if (begins(name, ".text")) { /* bits 20 and up of the flags: barriers; top byte of info: registers */
                code = 1;
                hash = hash_word(hash, s->flags ^ (s->info >> 24));
            }
            if (s->type != NOBITS) {
                const uint8_t *bytes = section_bytes(&elf, s);
                if (!bytes) bad = 1;
                else hash = hash_bytes(hash, bytes, s->size);
            }
            sum += hash;
        }
    }
    free(sections);
    *result = hash_word(HASH_SEED, sum);
    return !bad && code;
}

#ifdef TACHYON_TEST_MAIN

/* For each file: its hash or "-", and "cdp" where it launches from the device. */
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file || fseek(file, 0, SEEK_END)) return 1;
        const long size = ftell(file);
        uint8_t *bytes = size < 0 ? NULL : malloc((size_t)size + 1);
        rewind(file);
        if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) return 1;
        fclose(file);
        uint64_t hash;
        int cdp = 0;
        if (hash_module(bytes, (uint64_t)size, &hash, &cdp)) printf("%016llx", (unsigned long long)hash);
        else printf("-");
        printf(cdp ? " cdp\n" : "\n");
        free(bytes);
    }
    return 0;
}

#else

#include <cuda.h>
#include <cupti.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

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
static char path[4096];

/* ---- writing; all of it under `lock` ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int quiet; /* 1 once writing failed or F was written */
static uint64_t launches;
static int wrote_cdp;
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
    put_char('F');
    put_char(' ');
    put_text(what);
    if (result != CUPTI_SUCCESS && cuptiGetResultString(result, &reason) == CUPTI_SUCCESS && reason) {
        put_text(": ");
        put_text(reason);
    }
    put_char('\n');
    write_out();
    quiet = 1;
}

static void put_cdp(void) {
    if (wrote_cdp || quiet) return;
    wrote_cdp = 1;
    put_text("X cdp");
    put_char('\n');
}

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
    const uint64_t hash = hash_bytes(HASH_SEED, (const uint8_t *)name, strlen(name));
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
    const uint64_t fields[] = {id,
                               k->start,
                               k->end,
                               (uint32_t)k->gridX,
                               (uint32_t)k->gridY,
                               (uint32_t)k->gridZ,
                               (uint32_t)k->blockX,
                               (uint32_t)k->blockY,
                               (uint32_t)k->blockZ,
                               k->deviceId,
                               k->streamId,
                               k->graphId};
    put_char('K');
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) put_number(fields[i]);
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

static void CUPTIAPI callback(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
    const int saved = errno;
    (void)unused;
    if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_MODULE_LOADED) {
        const CUpti_ResourceData *resource = data;
        const CUpti_ModuleResourceData *module = resource->resourceDescriptor;
        uint64_t hash = 0;
        int cdp = 0;
        const int known = module && hash_module(module->pCubin, module->cubinSize, &hash, &cdp);
        cuda_runs = 1;
        if (take_lock()) {
            if (!quiet) {
                put_char('M');
                put_char(' ');
                if (!known) put_char('-');
                for (int shift = 60; known && shift >= 0; shift -= 4) put_char("0123456789abcdef"[hash >> shift & 15]);
                put_char('\n');
                if (cdp) put_cdp();
                write_out();
            }
            pthread_mutex_unlock(&lock);
        }
    } else if (domain == CUPTI_CB_DOMAIN_SYNCHRONIZE && getpid() == owner) {
        cuptiActivityFlushAll(0);
    }
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
    const CUptiResult result = stuck ? CUPTI_SUCCESS : cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
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

static CUptiResult start_recording(int at_sync, const char **what) {
    static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                               CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
    CUpti_SubscriberHandle subscriber;
    CUptiResult result;
    *what = "cuptiSubscribe";
    if ((result = cuptiSubscribe(&subscriber, callback, NULL)) != CUPTI_SUCCESS) return result;
    *what = "cuptiGetVersion";
    if ((result = cuptiGetVersion(&runtime_version)) != CUPTI_SUCCESS) return result;
    *what = "cuptiEnableCallback";
    result = cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED);
    if (result != CUPTI_SUCCESS) return result;
    if (at_sync && (result = cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_SYNCHRONIZE)) != CUPTI_SUCCESS)
        return result;
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
    const char *prefix = getenv("TACHYON_RECORD"), *flush = getenv("TACHYON_FLUSH"), *what = "";
    if (owner || !prefix || !*prefix) return 1;
    owner = getpid();
    if (open_record(prefix)) {
        take_lock();
        put_text("tachyon-recorder 1");
        put_number((uint64_t)owner);
        put_char('\n');
        write_out();
        pthread_mutex_unlock(&lock);

        const int at_sync = flush && (!strcmp(flush, "sync") || !strcmp(flush, "both"));
        const CUptiResult result = start_recording(at_sync, &what);
        int ok = result == CUPTI_SUCCESS;
        if (ok && atexit(finish) != 0) what = "atexit", ok = 0;
        if (ok && at_quick_exit(finish) != 0) what = "at_quick_exit", ok = 0;
        if (ok && !(flush && !strcmp(flush, "sync")) && !start_thread()) what = "pthread_create", ok = 0;
        if (!ok && take_lock()) {
            fail(what, result);
            pthread_mutex_unlock(&lock);
        }
    }
    errno = saved;
    return 1;
}

#endif
