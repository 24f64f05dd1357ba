/*
 * The hash of a module's device code: of what the device executes or reads, and of nothing else.
 *
 * A module is an ELF file (a cubin). Whole modules differ after a comment was added, as they hold line numbers, and
 * names made from a hash of the source text. So only what can change the program's results or its speed goes in: code,
 * the data loaded with it, sizes of shared and local memory, what the code points at, and launch bounds. Every offset
 * is checked, as it comes from the user's file.
 *
 * With -DTACHYON_TEST_MAIN this file alone is a program that hashes the cubins it is given.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

uint64_t hash_text(const char *text) { return hash_bytes(HASH_SEED, (const uint8_t *)text, strlen(text)); }

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
int hash_module(const void *image, uint64_t size, uint64_t *result, int *cdp) {
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

#endif
