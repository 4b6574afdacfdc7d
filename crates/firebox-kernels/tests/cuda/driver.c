/* A CUDA driver without a device, for machines that have none: it says that it is an H100, lends memory of
 * the host, runs no kernel, says that whatever is timed took 25 ms, at which CubeCL's measurements end, and
 * keeps the PTX of kernels that are loaded and the shape of their launches in $PTX_OUT.
 * What is computed with it is wrong; what is compiled is what the device would get.
 *
 * With CALLS=calls.txt, that file gets a line for each launch, copy, and piece of memory that is asked for or given back, in
 * their order. The launches of each step of a training:
 *
 *     awk '/^launch step_numbers/ {print n; n = 0} /^launch/ {n++}' calls.txt
 *
 * Named `libcuda.so` and not `libcuda.so.1`: NVRTC asks the latter for functions that are not here. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
enum { THREADS = 1024, DEPTH = 64, GRID = 65535, SHARED = 232448 };

struct function {
    char name[512];
    int module;
};

static int modules;

static const char *folder(void) {
    const char *folder = getenv("PTX_OUT");
    return folder ? folder : ".";
}

static void told(const char *call, const char *what, size_t bytes) {
    static FILE *file;
    const char *path = getenv("CALLS");
    if (path && (file || (file = fopen(path, "w")))) fprintf(file, "%s %s %zu\n", call, what, bytes);
}

/* Devices and contexts */

int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
int cuDriverGetVersion(int *version) { *version = 13000; return SUCCESS; }
int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
int cuDeviceGet(int *device, int index) { *device = index; return index ? INVALID_DEVICE : SUCCESS; }
int cuDeviceGetName(char *name, int size, int device) {
    (void)device;
    snprintf(name, size, "H100 (no device)");
    return SUCCESS;
}
int cuDeviceGetPCIBusId(char *id, int size, int device) {
    (void)device;
    snprintf(id, size, "0000:01:00.0");
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 8ull << 30; return SUCCESS; }
int cuMemGetInfo_v2(size_t *left, size_t *all) { *left = 7ull << 30; *all = 8ull << 30; return SUCCESS; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 1: case 2: case 3: *value = THREADS; break;
    case 4: *value = DEPTH; break;
    case 5: *value = INT32_MAX; break;
    case 6: case 7: *value = GRID; break;
    case 8: *value = 49152; break;  /* shared memory without asking for more */
    case 10: *value = 32; break;    /* a warp */
    case 16: *value = 132; break;   /* multiprocessors */
    case 75: *value = 9; break;     /* compute capability */
    case 76: *value = 0; break;
    case 97: *value = SHARED; break;
    default: *value = 0;
    }
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &modules; return SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return SUCCESS; }
int cuCtxSetCurrent(void *context) { (void)context; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = &modules; return SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -1; return SUCCESS; }

/* Streams and events: everything is done at once */

int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = malloc(1); return SUCCESS; }
int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(stream, flags);
}
int cuStreamDestroy_v2(void *stream) { free(stream); return SUCCESS; }
int cuStreamSynchronize(void *stream) { (void)stream; return SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream; (void)event; (void)flags; return SUCCESS; }
int cuStreamIsCapturing(void *stream, int *capturing) { (void)stream; *capturing = 0; return SUCCESS; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = malloc(1); return SUCCESS; }
int cuEventDestroy_v2(void *event) { free(event); return SUCCESS; }
int cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return SUCCESS; }
int cuEventQuery(void *event) { (void)event; return SUCCESS; }
int cuEventSynchronize(void *event) { (void)event; return SUCCESS; }
int cuEventElapsedTime_v2(float *ms, void *start, void *end) { (void)start; (void)end; *ms = 25.0f; return SUCCESS; }
int cuEventElapsedTime(float *ms, void *start, void *end) { return cuEventElapsedTime_v2(ms, start, end); }

/* Memory, of the host */

int cuMemAlloc_v2(uint64_t *place, size_t bytes) {
    told("allocate", "device", bytes);
    size_t whole = (bytes + 511) / 512 * 512;
    void *memory = aligned_alloc(512, whole);
    if (memory) memset(memory, 0, whole);
    *place = (uintptr_t)memory;
    return memory ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemAllocAsync(uint64_t *place, size_t bytes, void *stream) { (void)stream; return cuMemAlloc_v2(place, bytes); }
int cuMemFree_v2(uint64_t place) { told("free", "device", 0); free((void *)(uintptr_t)place); return SUCCESS; }
int cuMemFreeAsync(uint64_t place, void *stream) { (void)stream; return cuMemFree_v2(place); }
int cuMemAllocHost_v2(void **place, size_t bytes) {
    told("allocate", "pinned", bytes);
    *place = calloc(1, bytes);
    return *place ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *place) { told("free", "pinned", 0); free(place); return SUCCESS; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    told("copy", "to device", bytes);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    told("copy", "to host", bytes);
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return cuMemcpyHtoDAsync_v2(to, (void *)(uintptr_t)from, bytes, stream);
}
struct side {
    size_t x, y;
    int kind;
    void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};
struct rectangle {
    struct side from, to;
    size_t width, height;
};
static char *row(const struct side *side, size_t y) {
    char *start = side->kind == 1 ? side->host : (void *)(uintptr_t)side->device;
    return start + (side->y + y) * side->pitch + side->x;
}
int cuMemcpy2DAsync_v2(const struct rectangle *copy, void *stream) {
    (void)stream;
    for (size_t y = 0; y < copy->height; y++) memcpy(row(&copy->to, y), row(&copy->from, y), copy->width);
    return SUCCESS;
}

/* Kernels: kept, not run */

int cuModuleLoadData(void **module, const void *ptx) {
    int *index = malloc(sizeof *index);
    if (!index) return OUT_OF_MEMORY;
    *index = __sync_add_and_fetch(&modules, 1);
    *module = index;
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.ptx", folder(), *index);
    FILE *file = fopen(path, "w");
    if (!file) return INVALID_VALUE;
    fputs(ptx, file);
    return fclose(file) ? INVALID_VALUE : SUCCESS;
}
int cuModuleUnload(void *module) { (void)module; return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    struct function *found = calloc(1, sizeof *found);
    if (!found) return OUT_OF_MEMORY;
    snprintf(found->name, sizeof found->name, "%s", name);
    found->module = *(int *)module;
    *function = found;
    return SUCCESS;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function;
    return attribute == 8 && value > SHARED ? INVALID_VALUE : SUCCESS;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)attribute; (void)function;
    *value = 0;
    return SUCCESS;
}
int cuLaunchKernel(struct function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)stream; (void)arguments; (void)extra;
    told("launch", function->name, 0);
    char path[4096];
    snprintf(path, sizeof path, "%s/launches.txt", folder());
    FILE *file = fopen(path, "a");
    if (!file) return INVALID_VALUE;
    fprintf(file, "%d.ptx %s: grid %u %u %u, block %u %u %u, %u bytes shared\n", function->module,
            function->name, gx, gy, gz, bx, by, bz, shared);
    fclose(file);
    int fits = gx && gy && gz && gy <= GRID && gz <= GRID && bx * by * bz <= THREADS && bz <= DEPTH && shared <= SHARED;
    return fits ? SUCCESS : INVALID_VALUE;
}
int cuGetErrorName(int error, const char **name) { (void)error; *name = "REFUSED"; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "refused by the driver without a device"; return SUCCESS; }
int cuTensorMapEncodeTiled(void) { return SUCCESS; }
int cuTensorMapEncodeIm2col(void) { return SUCCESS; }
