/* A program that is compiled with tests/attn_abi1.h, the first header of ATTN_ABI_VERSION 1, and linked with the
 * library of today. The program checks the library's results against results that it computes itself in double. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/api/tests/attn_abi1.h"

enum { tokens = 40, width = 32, half = width / 2 };

static int64_t shape[] = {1, 1, tokens, width};

static DLTensor tensor(float* data) {
  DLTensor made = {data, {1, 0}, 4, {2, 32, 1}, shape, NULL, 0};
  return made;
}

static int failed(const char* what) {
  fprintf(stderr, "attn_abi1: %s: %s\n", what, attn_message());
  return 1;
}

/* Returns the largest difference between the library's result and causal attention with a cap. */
static double off_attention(float (*q)[width], float (*k)[width], float (*v)[width], float (*o)[width], double cap) {
  double most = 0;
  for (int i = 0; i < tokens; ++i) {
    double sum = 0, row[width] = {0};
    for (int j = 0; j <= i; ++j) {
      double score = 0;
      for (int d = 0; d < width; ++d) score += (double)q[i][d] * k[j][d];
      const double weight = exp(cap * tanh(score / cap));
      sum += weight;
      for (int d = 0; d < width; ++d) row[d] += weight * v[j][d];
    }
    for (int d = 0; d < width; ++d) most = fmax(most, fabs(row[d] / sum - o[i][d]));
  }
  return most;
}

/* Returns the largest difference between the library's result and a rotation by YaRN's angles for a factor of 4 and a
 * length of 2048. */
static double off_rope(float (*q)[width], float (*o)[width]) {
  const double pi = acos(-1), span = 2 * log(10000), grown = 0.1 * log(4) + 1;
  const double first = floor(width * log(2048 / (64 * pi)) / span), last = ceil(width * log(2048 / (2 * pi)) / span);
  double most = 0;
  for (int i = 0; i < tokens; ++i) {
    for (int d = 0; d < half; ++d) {
      const double slow = fmin(fmax((d - first) / (last - first), 0), 1);
      const double angle = i * pow(10000, -(double)d / half) * (1 - slow + slow / 4);
      most = fmax(most, fabs(grown * (q[i][d] * cos(angle) - q[i][d + half] * sin(angle)) - o[i][d]));
      most = fmax(most, fabs(grown * (q[i][d + half] * cos(angle) + q[i][d] * sin(angle)) - o[i][d + half]));
    }
  }
  return most;
}

int main(void) {
  static float q[tokens][width], k[tokens][width], v[tokens][width], o[tokens][width];
  for (int i = 0; i < tokens * width; ++i) {
    (&q[0][0])[i] = (float)(i * 7 % 31) / 15 - 1;
    (&k[0][0])[i] = (float)(i * 11 % 37) / 18 - 1;
    (&v[0][0])[i] = (float)(i * 5 % 29) / 14 - 1;
  }
  const DLTensor tq = tensor(&q[0][0]), tk = tensor(&k[0][0]), tv = tensor(&v[0][0]), to = tensor(&o[0][0]);
  if (attn_abi_version() != ATTN_ABI_VERSION) return failed("the library has another ATTN_ABI_VERSION");
  attn_engine* engine = NULL;
  if (attn_open("cpu:threads=1", NULL, &engine) != ATTN_OK) return failed("attn_open");

  attn_flash_options flash = ATTN_FLASH_OPTIONS;
  flash.causal = 1;
  flash.scale = 1;
  flash.soft_cap = 3; /* an int64_t in this header, a double in the library */
  if (attn_flash(engine, NULL, &tq, &tk, &tv, &to, &flash) != ATTN_OK) return failed("attn_flash");
  const double off_flash = off_attention(q, k, v, o, 3);
  flash.soft_cap = 1001;
  if (attn_flash(engine, NULL, &tq, &tk, &tv, &to, &flash) != ATTN_BAD_INPUT ||
      !strstr(attn_message(), "soft_cap 1001"))
    return failed("attn_flash did not refuse a soft_cap of 1001");

  attn_rope_options rope = ATTN_ROPE_OPTIONS;
  rope.scaling = ATTN_ROPE_YARN;
  rope.factor = 4;
  rope.original_length = 2048;
  if (attn_rope(engine, NULL, &tq, NULL, &to, NULL, &rope) != ATTN_OK) return failed("attn_rope");
  const double off_turned = off_rope(q, o);

  attn_close(engine);
  printf("off by %.1e and %.1e\n", off_flash, off_turned);
  return off_flash < 1e-5 && off_turned < 1e-5 ? 0 : 1;
}
