/* Stands in for a CUDA program and its driver: loads the injected library, then "launches" on the fake CUPTI. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
void fake_launch(const char *, int, uint64_t, uint64_t);
void fake_copy(uint8_t, uint64_t);
void fake_module(const char *, size_t);
void fake_drop(size_t);
void fake_driver_call(const char *);
static void launch(int n) {
    for (int i = 0; i < n; i++) fake_launch(i % 2 ? "_Z1kPf" : "odd name\n\\", 4, 1000 + 100 * (uint64_t)i, 1050 + 100 * (uint64_t)i);
}
/* Until the recorder's thread has flushed: the file grows. */
static void wait_for_flush(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", getenv("TACHYON_RECORD"), (int)getpid());
    for (int i = 0; i < 500; i++) {
        FILE *f = fopen(path, "r");
        int c, lines = 0;
        while (f && (c = fgetc(f)) != EOF) lines += c == '\n';
        if (f) fclose(f);
        if (lines >= 10) return;
        usleep(10000);
    }
}
static const char *mode = "";
#define IS(m) (!strcmp(mode, m))
static void at_exit(void) {
    if (IS("late_launch") || IS("exit_launch")) launch(1);
    if (IS("late_copy")) fake_copy(1, 100);
    if (IS("late_graph")) fake_driver_call("cuGraphLaunch_ptsz");
    if (IS("late_free")) fake_driver_call("cuMemFree_v2");
}
int main(int argc, char **argv) {
    if (argc > 1) mode = argv[1];
    const char *path = getenv("CUDA_INJECTION64_PATH");
    if (!strncmp(mode, "late_", 5)) atexit(at_exit); /* runs after the recorder's own exit handler */
    if (IS("forkfirst") && fork() == 0) { execl("/proc/self/exe", "p", "plain", (char *)0); _exit(9); }
    if (path) {
        void *lib = dlopen(path, RTLD_NOW);
        int (*start)(void) = lib ? (int (*)(void))dlsym(lib, "InitializeInjection") : NULL;
        if (!start) { fprintf(stderr, "%s\n", dlerror()); return 9; }
        if (start() != 1) return 9;
    } else return 0;
    fake_module("not an elf", 10);
    launch(10);
    fake_copy(1, 100);
    if (IS("many")) launch(49990);
    if (IS("_exit")) { wait_for_flush(); _exit(4); }
    if (IS("kill")) { wait_for_flush(); raise(SIGKILL); }
    if (IS("abort")) abort();
    if (IS("quick_exit")) quick_exit(4);
    if (IS("fork")) {
        for (int i = 0; i < 2; i++) {
            pid_t c = fork();
            if (c == 0) { if (i) exit(0); _exit(0); }
            waitpid(c, NULL, 0);
        }
        launch(2);
    }
    if (IS("drop")) fake_drop(5);
    if (IS("closefds")) for (int i = 3; i < 64; i++) close(i);
    if (IS("exit_launch")) atexit(at_exit); /* runs before it */
    if (IS("forkfirst")) wait(NULL);
    puts("out");
    return 3;
}
