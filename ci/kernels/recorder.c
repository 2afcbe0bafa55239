/* A library that ONNX Runtime loads in place of the plug-in $PLUGIN, which it loads itself: it writes the calls by which
   the plug-in describes its kernels to $KERNELS, one a line. The slots are places in the tables OrtApi and OrtEpApi
   (onnxruntime_c_api.h, onnxruntime_ep_c_api.h), which no version of ONNX Runtime changes. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { API_VERSION = 24, GET_EP_API = 317 };
enum { CREATE = 21, OPERATOR = 23, DOMAIN = 24, VERSIONS = 25, CONSTRAINT = 29, TYPE = 40, SLOTS };
typedef struct { void **(*get_api)(uint32_t); } Base;
typedef void *(*Function)();

static FILE *file;
static Function original[SLOTS];

static void *create(void **builder) {
  void *status = original[CREATE](builder);
  fprintf(file, "create %p\n", *builder);
  return status;
}

static void *set_operator(void *builder, const char *name) {
  fprintf(file, "operator %p %s\n", builder, name);
  return original[OPERATOR](builder, name);
}

static void *set_domain(void *builder, const char *name) {
  fprintf(file, "domain %p %s\n", builder, name);
  return original[DOMAIN](builder, name);
}

static void *set_versions(void *builder, int since, int until) {
  fprintf(file, "versions %p %d %d\n", builder, since, until);
  return original[VERSIONS](builder, since, until);
}

static void *constrain(void *builder, const char *port, void **types, size_t count) {
  fprintf(file, "constraint %p %s", builder, port);
  for (size_t i = 0; i < count; i++) fprintf(file, " %p", types[i]);
  fprintf(file, "\n");
  return original[CONSTRAINT](builder, port, types, count);
}

static void *get_type(int element, void **type) {
  void *status = original[TYPE](element, type);
  fprintf(file, "type %p %d\n", *type, element);
  return status;
}

static void replace(void **table, int slot, void *function) {
  uintptr_t page = (uintptr_t)(table + slot) & -(uintptr_t)getpagesize();
  mprotect((void *)page, getpagesize(), PROT_READ | PROT_WRITE);
  original[slot] = (Function)table[slot];
  table[slot] = function;
}

void *CreateEpFactories(const char *name, const Base *base, void *logger, void **factories, size_t most, size_t *count) {
  void **table = ((Function)base->get_api(API_VERSION)[GET_EP_API])();
  void *plugin = dlopen(getenv("PLUGIN"), RTLD_NOW);
  file = fopen(getenv("KERNELS"), "w");
  if (!plugin || !file) {
    fprintf(stderr, "%s\n", plugin ? "cannot write $KERNELS" : dlerror());
    exit(1);
  }
  setvbuf(file, NULL, _IOLBF, 0);
  replace(table, CREATE, create);
  replace(table, OPERATOR, set_operator);
  replace(table, DOMAIN, set_domain);
  replace(table, VERSIONS, set_versions);
  replace(table, CONSTRAINT, constrain);
  replace(table, TYPE, get_type);
  return ((Function)dlsym(plugin, "CreateEpFactories"))(name, base, logger, factories, most, count);
}

void *ReleaseEpFactory(void *factory) { return NULL; }
