// A function of adjustable cost: WORK multiply-adds. Each multiply-add needs the result of the multiply-add before it.
float score(float s, int, int, const ScoreContext&) {
#ifdef __CUDACC__
#pragma unroll 4
#else
  UNROLL
#endif
  for (int i = 0; i < WORK; ++i) s = s * 0.9375f + 0.03125f;
  return s;
}
