// Adds attention to a framework of a C++ program without a change of the framework. The framework is a class B that
// satisfies the concept Framework. WithAttention<B> derives from B and has one more operation, attention.
#pragma once

#include <concepts>
#include <utility>

#include "common/api/engine.h"

namespace attn {

// Framework consists of the four concepts below. If B does not satisfy one of them, the compiler's
// message shows the concept's name.

/// Tensor is the type of the framework's tensors.
template <typename B>
concept HasTensors = requires { typename B::Tensor; };
/// view() describes a tensor for the engine, without a copy.
template <typename B>
concept ShowsTensors = requires(B& framework, typename B::Tensor& tensor) {
  { framework.view(tensor) } -> std::same_as<TensorView>;
};
/// empty_like() makes a new tensor with the shape of another.
template <typename B>
concept MakesTensors = requires(B& framework, const typename B::Tensor& tensor) {
  { framework.empty_like(tensor) } -> std::same_as<typename B::Tensor>;
};
/// stream() returns the GPU's stream that the framework puts its work on, or null.
template <typename B>
concept HasStream = requires(const B& framework) {
  { framework.stream() } -> std::convertible_to<void*>;
};

template <typename B>
concept Framework = HasTensors<B> && ShowsTensors<B> && MakesTensors<B> && HasStream<B>;

/// A framework that has attention. Its attention() takes the options of attention as a FlashCall without tensors.
template <typename B>
concept AttentionFramework =
    Framework<B> && requires(B& framework, typename B::Tensor& tensor, const FlashCall& options) {
      { framework.attention(tensor, tensor, tensor, options) } -> std::same_as<typename B::Tensor>;
    };

template <Framework B>
class WithAttention : public B {
 public:
  using Tensor = typename B::Tensor;

  /// The engine must be on the framework's device, and must outlive this object. `arguments` go to B's constructor.
  template <typename... Arguments>
  explicit WithAttention(Engine& engine, Arguments&&... arguments)
      : B(std::forward<Arguments>(arguments)...), engine_(&engine) {}

  /// softmax(scale Q K^T) V with the options' modifiers; throws as Engine::flash() does.
  Tensor attention(Tensor& q, Tensor& k, Tensor& v, const FlashCall& options = {}) {
    Tensor o = this->empty_like(q);
    attend(q, k, v, o, options);
    return o;
  }
  /// Does the same as attention(), but writes to an existing tensor `o`.
  void attend(Tensor& q, Tensor& k, Tensor& v, Tensor& o, const FlashCall& options = {}) {
    FlashCall call = options;
    call.q = this->view(q);
    call.k = this->view(k);
    call.v = this->view(v);
    call.o = this->view(o);
    engine_->flash(call, this->stream());
  }

 private:
  Engine* engine_;
};

}  // namespace attn
