/* Calls attn_flash, attn_decode, attn_linear and attn_rope once each on the CPU. The results are known. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { tokens = 2, width = 8 };

static attn_engine* engine;
static float q[tokens * width], k[tokens * width], v[tokens * width], o[tokens * width];

static int done(const char* name, attn_status status, float first, float last) {
  if (status != ATTN_OK) {
    fprintf(stderr, "%s: %s\n", name, attn_message());
    return 0;
  }
  if (fabsf(o[0] - first) > 1e-5f || fabsf(o[tokens * width - 1] - last) > 1e-5f) {
    fprintf(stderr, "%s: %g and %g instead of %g and %g\n", name, o[0], o[tokens * width - 1], first, last);
    return 0;
  }
  return 1;
}

int main(void) {
  if (attn_abi_version() != ATTN_ABI_VERSION || attn_open("cpu:threads=1", NULL, &engine) != ATTN_OK) {
    fprintf(stderr, "open: %s\n", attn_message());
    return 1;
  }
  /* All keys weigh the same, so the output of a query is the mean of the values that it sees: 1, then (1 + 3) / 2. */
  for (int i = 0; i < tokens * width; ++i) {
    q[i] = k[i] = 1;
    v[i] = i < width ? 1 : 3;
  }
  int64_t shape[] = {1, 1, tokens, width}, one[] = {1};
  int32_t both[] = {tokens};
  const DLTensor tq = {q, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0}, tk = {k, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0},
                 tv = {v, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0}, to = {o, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0},
                 lengths = {both, {1, 0}, 1, {0, 32, 1}, one, NULL, 0};
  attn_flash_options flash = ATTN_FLASH_OPTIONS;
  flash.causal = 1;
  attn_cache_options cache = ATTN_CACHE_OPTIONS;
  cache.lengths = &lengths;
  attn_linear_options linear = ATTN_LINEAR_OPTIONS;
  linear.normalised = 1;
  const int good =
      done("flash", attn_flash(engine, NULL, &tq, &tk, &tv, &to, &flash), 1, 2) &&
      done("decode", attn_decode(engine, NULL, &tq, &tk, &tv, &to, &cache), 1, 2) &&
      done("linear", attn_linear(engine, NULL, &tq, &tk, &tv, &to, &linear), 1, 2) &&
      /* The first token has position 0 and is not rotated. The second token's last pair turns by 1e-3 radians. */
      done("rope", attn_rope(engine, NULL, &tv, NULL, &to, NULL, NULL), 1, 3 * (cosf(1e-3f) + sinf(1e-3f)));
  attn_close(engine);
  return good ? 0 : 1;
}
