// A user's mask function. In this file every pair is seen. The text that replaces it (KernelSource::includes) has the
// functions of math.h first, then a #line, then the user's text. Kernels include it within a namespace.
bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }

/// Whether the user's text has `keys`, which bounds the keys of a row. If not, `bound_of` gives all keys.
template <typename Context>
constexpr CONSTANT bool has_bound = false;
template <typename Context>
KeyRange bound_of(int /*q*/, const Context& context) {
  return {0, context.kv_len};
}
