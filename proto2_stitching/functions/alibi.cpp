// ALiBi (Press et al. 2022): a penalty that grows with the distance from the query. Each head has its own slope.
float score(float s, int q, int k, const ScoreContext& c) {
  const float slope = exp2f(-8.0f * static_cast<float>(c.head + 1) / static_cast<float>(c.q_heads));
  const int distance = q + c.kv_len - c.q_len - k;
  return s - slope * static_cast<float>(distance < 0 ? -distance : distance);
}
