/* A libnvidia-ml.so.1 for tests: two GPUs whose state is set by environment variables.
 *
 * NVML_INIT: what nvmlInit returns (9: no driver). NVML_UNSUPPORTED: names of functions that return NOT_SUPPORTED.
 * NVML_HANG: the name of a function that never returns. NVML_REASONS: the clocks event reasons of GPU 0, one a sample,
 * the last one for all further samples. NVML_READY: a FIFO that is opened, and closed, at the last of these, or before
 * it hangs.
 * With OLD the names of the functions are those of a driver before 535.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
#define GPUS 2

static void report_ready(void) {
  static int was_ready;
  const char *ready = getenv("NVML_READY");
  if (!ready || was_ready++) return;
  int file = open(ready, O_WRONLY);
  if (file >= 0) close(file);
}

static int check(const char *name) {
  const char *hang = getenv("NVML_HANG"), *unsupported = getenv("NVML_UNSUPPORTED");
  if (hang && !strcmp(hang, name)) {
    report_ready();
    for (;;) pause();
  }
  return unsupported && strstr(unsupported, name) ? NOT_SUPPORTED : SUCCESS;
}

#define NUMBER(name, arguments, type, value)                                                                           \
  int name arguments {                                                                                                 \
    int result = check(#name);                                                                                         \
    if (result == SUCCESS) *out = (type)(value);                                                                       \
    return result;                                                                                                     \
  }

#define TEXT(name, arguments, ...)                                                                                     \
  int name arguments {                                                                                                 \
    int result = check(#name);                                                                                         \
    if (result == SUCCESS) snprintf(out, size, __VA_ARGS__);                                                           \
    return result;                                                                                                     \
  }

static int index_of(void *gpu) { return (int)(long)gpu - 1; }

int nvmlInitWithFlags(unsigned flags) {
  const char *result = getenv("NVML_INIT");
  check("nvmlInitWithFlags");
  (void)flags;
  return result ? atoi(result) : SUCCESS;
}

const char *nvmlErrorString(int result) { return result == 9 ? "Driver Not Loaded" : "an error"; }

TEXT(nvmlSystemGetDriverVersion, (char *out, unsigned size), "580.95.05")
NUMBER(nvmlSystemGetCudaDriverVersion_v2, (int *out), int, 13010)
NUMBER(nvmlDeviceGetCount_v2, (unsigned *out), unsigned, GPUS)

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) {
  if (index >= GPUS) return INVALID_ARGUMENT;
  *gpu = (void *)(long)(index + 1);
  return SUCCESS;
}

TEXT(nvmlDeviceGetName, (void *gpu, char *out, unsigned size), "NVIDIA Stub %d", getenv("NVML_MODELS") ? index_of(gpu) : 0)
TEXT(nvmlDeviceGetUUID, (void *gpu, char *out, unsigned size), "GPU-%d1111111-2222-3333-4444-555555555555", index_of(gpu))

struct pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
};

int nvmlDeviceGetPciInfo_v3(void *gpu, struct pci *pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = 0x57 + index_of(gpu);
  return check("nvmlDeviceGetPciInfo_v3");
}

int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *memory) {
  (void)gpu;
  memory[0] = 80ull << 30;
  return check("nvmlDeviceGetMemoryInfo");
}

int nvmlDeviceGetUtilizationRates(void *gpu, unsigned *rates) {
  const char *busy = getenv("NVML_UTILIZATION");
  rates[0] = busy ? (unsigned)atoi(busy) : 75 - 5 * index_of(gpu);
  rates[1] = 20;
  return check("nvmlDeviceGetUtilizationRates");
}

static int mode(const char *name, unsigned value, unsigned *current, unsigned *pending) {
  *current = *pending = value;
  return check(name);
}

int nvmlDeviceGetEccMode(void *gpu, unsigned *current, unsigned *pending) {
  (void)gpu;
  return mode("nvmlDeviceGetEccMode", 1, current, pending);
}

int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) {
  (void)gpu;
  return mode("nvmlDeviceGetMigMode", 0, current, pending);
}

NUMBER(nvmlDeviceGetPersistenceMode, (void *gpu, unsigned *out), unsigned, ((void)gpu, 1))
NUMBER(nvmlDeviceGetMaxClockInfo, (void *gpu, int type, unsigned *out), unsigned, ((void)gpu, type == 1 ? 1980 : 2619))
NUMBER(nvmlDeviceGetApplicationsClock, (void *gpu, int type, unsigned *out), unsigned, ((void)gpu, type == 1 ? 1900 : 2619))
NUMBER(nvmlDeviceGetClockInfo, (void *gpu, int type, unsigned *out), unsigned, type == 1 ? 1980 - index_of(gpu) : 2619)
NUMBER(nvmlDeviceGetPowerUsage, (void *gpu, unsigned *out), unsigned, 650400 + 1000 * index_of(gpu))
NUMBER(nvmlDeviceGetEnforcedPowerLimit, (void *gpu, unsigned *out), unsigned, ((void)gpu, 700000))
NUMBER(nvmlDeviceGetTemperature, (void *gpu, int sensor, unsigned *out), unsigned, ((void)gpu, 60 + sensor))

static unsigned long long next_reasons(void *gpu) {
  static const char *rest;
  if (index_of(gpu)) return 0;
  if (!rest && !(rest = getenv("NVML_REASONS"))) rest = "0";
  char *end;
  unsigned long long reasons = strtoull(rest, &end, 0);
  if (*end == ',')
    rest = end + 1;
  else
    report_ready();
  return reasons;
}

#ifdef OLD
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, (void *gpu, unsigned long long *out), unsigned long long, next_reasons(gpu))
#else
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, (void *gpu, unsigned long long *out), unsigned long long, next_reasons(gpu))
#endif
