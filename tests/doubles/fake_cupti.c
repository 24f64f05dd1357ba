/* Stands in for libcupti: keeps what fake_launch "ran" until it is flushed. */
#include <cuda.h>
#include <cupti.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static CUpti_CallbackFunc callback;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *buffer;
static size_t size, used, dropped;
static int driver_calls; /* are announced */

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *s, CUpti_CallbackFunc f, void *u) {
    (void)u;
    if (getenv("FAKE_BUSY")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *s = NULL;
    callback = f;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetVersion(uint32_t *v) { *v = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t e, CUpti_SubscriberHandle s, CUpti_CallbackDomain d, CUpti_CallbackId i) {
    (void)e, (void)s, (void)d, (void)i;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t e, CUpti_SubscriberHandle s, CUpti_CallbackDomain d) {
    (void)s;
    if (d == CUPTI_CB_DOMAIN_DRIVER_API) driver_calls = (int)e;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc r, CUpti_BuffersCallbackCompleteFunc c) {
    request = r;
    complete = c;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind k) { (void)k; return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult r, const char **s) { (void)r; *s = "FAKE_ERROR text"; return CUPTI_SUCCESS; }
static void deliver(void) {
    uint8_t *full = buffer;
    const size_t valid = used;
    buffer = NULL;
    used = 0;
    if (full) complete(NULL, 0, full, size, valid);
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    pthread_mutex_lock(&lock);
    deliver();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}
static size_t record_size(const CUpti_Activity *a) {
    switch (a->kind) {
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    default: return sizeof(CUpti_ActivityKernel8) + 64;
    }
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *b, size_t valid, CUpti_Activity **r) {
    uint8_t *next = *r ? (uint8_t *)*r + record_size(*r) : b;
    if (next >= b + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *r = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext c, uint32_t s, size_t *d) {
    (void)c, (void)s;
    *d = dropped;
    dropped = 0;
    return CUPTI_SUCCESS;
}
void fake_drop(size_t n) { dropped += n; }
void fake_module(const char *image, size_t n) {
    CUpti_ModuleResourceData m = {1, n, image};
    CUpti_ResourceData d;
    if (!callback) return;
    memset(&d, 0, sizeof d);
    d.resourceDescriptor = &m;
    callback(NULL, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_MODULE_LOADED, &d);
}
void fake_driver_call(const char *function) {
    CUpti_CallbackData d;
    if (!callback || !driver_calls) return;
    memset(&d, 0, sizeof d);
    d.functionName = function;
    d.callbackSite = CUPTI_API_ENTER;
    callback(NULL, CUPTI_CB_DOMAIN_DRIVER_API, 0, &d);
    d.callbackSite = CUPTI_API_EXIT;
    callback(NULL, CUPTI_CB_DOMAIN_DRIVER_API, 0, &d);
}
static void *room(size_t n) {
    size_t most;
    if (buffer && used + n > size) deliver();
    if (!buffer) request(&buffer, &size, &most);
    void *at = buffer + used;
    memset(at, 0, n);
    used += n;
    return at;
}
void fake_launch(const char *name, int grid, uint64_t start, uint64_t end) {
    if (!request) return;
    fake_driver_call("cuLaunchKernel");
    pthread_mutex_lock(&lock);
    CUpti_ActivityKernel8 *k = room(sizeof *k + 64);
    k->kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    k->start = start;
    k->end = end;
    k->gridX = grid, k->gridY = 1, k->gridZ = 2, k->blockX = 256, k->blockY = k->blockZ = 1;
    k->deviceId = 3, k->streamId = 7, k->graphId = 9;
    k->name = name;
    pthread_mutex_unlock(&lock);
}
void fake_copy(uint8_t kind, uint64_t bytes) {
    if (!request) return;
    fake_driver_call("cuMemcpyHtoD_v2");
    pthread_mutex_lock(&lock);
    CUpti_ActivityMemcpy5 *c = room(sizeof *c);
    c->kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    c->copyKind = kind, c->bytes = bytes, c->start = 5, c->end = 6;
    CUpti_ActivityMemset4 *m = room(sizeof *m);
    m->kind = CUPTI_ACTIVITY_KIND_MEMSET;
    m->bytes = 64, m->start = 7, m->end = 8;
    pthread_mutex_unlock(&lock);
}
