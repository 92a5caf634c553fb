/* Attention from C: four tensors on the host, one call, and a check of one row of the result.
 *
 *   attn_example [DEVICE]     cpu (the default) or cpu:threads=N, because the tensors are on the host
 */
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { heads = 4, kv_heads = 2, tokens = 64, width = 32 };

static DLTensor tensor(float* data, int64_t* shape) {
  DLTensor made = {data, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0};
  return made;
}

int main(int count, char** arguments) {
  static float q[heads * tokens * width], k[kv_heads * tokens * width], v[kv_heads * tokens * width],
      o[heads * tokens * width];
  for (int i = 0; i < heads * tokens * width; ++i) q[i] = (float)rand() / (float)RAND_MAX;
  for (int i = 0; i < kv_heads * tokens * width; ++i) k[i] = v[i] = (float)rand() / (float)RAND_MAX;

  attn_engine* engine = NULL;
  if (attn_open(count > 1 ? arguments[1] : "cpu", NULL, &engine) != ATTN_OK) {
    fprintf(stderr, "attn_example: %s\n", attn_message());
    return attn_abi_version() == ATTN_ABI_VERSION ? 3 : 1;
  }
  int64_t of_queries[] = {1, heads, tokens, width}, of_keys[] = {1, kv_heads, tokens, width};
  const DLTensor tq = tensor(q, of_queries), tk = tensor(k, of_keys), tv = tensor(v, of_keys),
                 to = tensor(o, of_queries);
  attn_flash_options options = ATTN_FLASH_OPTIONS;
  options.causal = 1;
  if (attn_flash(engine, NULL, &tq, &tk, &tv, &to, &options) != ATTN_OK) {
    fprintf(stderr, "attn_example: %s\n", attn_message());
    attn_close(engine);
    return 1;
  }
  /* The first query sees only the first key, so the query's output is the first value. */
  double off = 0;
  for (int i = 0; i < width; ++i) off += (o[i] - v[i]) * (o[i] - v[i]);
  printf("first output and first value: squared difference %.1e; the last output begins with %.4f\n", off,
         o[heads * tokens * width - width]);
  attn_close(engine);
  return off < 1e-9 ? 0 : 1;
}
