// A user's mask function. In this file every pair is seen. UserFunction::add_to() makes the text that replaces this
// file (KernelSource::includes). Kernels include this file within a namespace.
bool visible(int /*q*/, int /*k*/, const ScoreContext& /*context*/) { return true; }

/// Whether the user's text defines a function `keys`, which returns the range of keys that a row may see. Without this
/// function, `bound_of` returns the range of all keys.
template <typename Context>
constexpr CONSTANT bool has_bound = false;
template <typename Context>
KeyRange bound_of(int /*q*/, const Context& context) {
  return {0, context.kv_len};
}
