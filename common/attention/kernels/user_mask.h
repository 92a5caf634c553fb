// A user's mask function. In this file every pair is seen; the function's text takes its place (KernelSource::includes),
// behind the functions of math.h and a #line of its own. Included within a namespace.
bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }

/// Whether the file has `keys`, which bounds the keys of a row; else `bound_of` is all of them.
template <typename Context>
constexpr bool has_bound = false;
template <typename Context>
KeyRange bound_of(int /*q*/, const Context& context) {
  return {0, context.kv_len};
}
