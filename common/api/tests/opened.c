/* attn_opened LIBRARY: a program that opens the library at run time, with RTLD_LOCAL. The program is not linked with
 * the mathematics library. Kernels must still find the functions that they call. */
#include <dlfcn.h>
#include <stdio.h>

#include "common/api/attn.h"

int main(int count, char** arguments) {
  void* const library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    fprintf(stderr, "attn_opened: %s\n", count == 2 ? dlerror() : "name the library");
    return 2;
  }
  attn_status (*open)(const char*, const attn_open_options*, attn_engine**);
  attn_status (*flash)(attn_engine*, void*, const DLTensor*, const DLTensor*, const DLTensor*, const DLTensor*,
                       const attn_flash_options*);
  const char* (*message)(void);
  void (*close)(attn_engine*);
  *(void**)&open = dlsym(library, "attn_open");
  *(void**)&flash = dlsym(library, "attn_flash");
  *(void**)&message = dlsym(library, "attn_message");
  *(void**)&close = dlsym(library, "attn_close");
  static float values[2 * 32], o[2 * 32];
  for (int i = 0; i < 2 * 32; ++i) values[i] = (float)(i % 7);
  int64_t shape[] = {1, 1, 2, 32};
  const DLTensor in = {values, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0}, out = {o, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0};
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.causal = 1;
  attn_engine* engine = NULL;
  if (open("cpu", NULL, &engine) != ATTN_OK || flash(engine, NULL, &in, &in, &in, &out, &options) != ATTN_OK) {
    fprintf(stderr, "attn_opened: %s\n", message());
    return 1;
  }
  close(engine);
  return o[3] == values[3] ? 0 : 1; /* the first query sees only the first key */
}
