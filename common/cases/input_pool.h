// A pool of inputs that cases share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace attn {

/// Knows the inputs of all problems of a sweep, so that a case can use the inputs that were made for another case. A
/// problem keeps its inputs alive. If Inputs has bytes() and `kept_bytes` is not 0, the pool also keeps inputs alive
/// that no problem uses any more: the most recently used inputs, as long as their bytes() add up to at most
/// `kept_bytes`. The inputs that were used last are kept even if they alone have more than `kept_bytes` bytes.
template <typename Inputs>
class InputPool {
 public:
  InputPool() = default;
  explicit InputPool(size_t kept_bytes) : kept_bytes_(kept_bytes) {}

  /// Returns known inputs for which fits(inputs) is true. If there are none, returns new inputs from make(), which
  /// returns a std::shared_ptr<Inputs>.
  template <typename Fits, typename Make>
  std::shared_ptr<Inputs> get(const Fits& fits, const Make& make) {
    std::erase_if(known_, [](const std::weak_ptr<Inputs>& inputs) { return inputs.expired(); });
    std::shared_ptr<Inputs> found;
    for (const std::weak_ptr<Inputs>& inputs : known_) {
      if (const std::shared_ptr<Inputs> one = inputs.lock(); one && fits(*one)) found = one;
    }
    if (!found) known_.push_back(found = make());
    if constexpr (requires { found->bytes(); }) keep(found);
    return found;
  }

 private:
  void keep(const std::shared_ptr<Inputs>& used) {
    if (kept_bytes_ == 0) return;
    std::erase(kept_, used);
    kept_.insert(kept_.begin(), used);
    size_t bytes = 0;
    for (size_t i = 0; i < kept_.size(); ++i) {
      bytes += kept_[i]->bytes();
      if (i > 0 && bytes > kept_bytes_) kept_.resize(i);
    }
  }

  size_t kept_bytes_ = 0;
  std::vector<std::weak_ptr<Inputs>> known_;
  std::vector<std::shared_ptr<Inputs>> kept_;  // the most recently used inputs first
};

}  // namespace attn
