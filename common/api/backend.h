// How a C++ program adds attention to a backend that it cannot change: WithAttention<B> is B with attention. It derives
// from B, so that everything else is there without being written out, and needs of B what the concept Backend says.
#pragma once

#include <concepts>
#include <utility>

#include "common/api/engine.h"

namespace attn {

/// The parts of Backend, each with a name that a compiler's message shows.
template <typename B>
concept HasTensors = requires { typename B::Tensor; };
/// A tensor as the engine sees it, without a copy.
template <typename B>
concept ShowsTensors = requires(B& backend, typename B::Tensor& tensor) {
  { backend.view(tensor) } -> std::same_as<TensorView>;
};
/// A new tensor like another.
template <typename B>
concept MakesTensors = requires(B& backend, const typename B::Tensor& tensor) {
  { backend.empty_like(tensor) } -> std::same_as<typename B::Tensor>;
};
/// Where the backend's work goes: a GPU's stream, or null.
template <typename B>
concept HasStream = requires(const B& backend) {
  { backend.stream() } -> std::convertible_to<void*>;
};

template <typename B>
concept Backend = HasTensors<B> && ShowsTensors<B> && MakesTensors<B> && HasStream<B>;

/// A backend that has attention: FlashCall without its tensors says which.
template <typename B>
concept AttentionBackend = Backend<B> && requires(B& backend, typename B::Tensor& tensor, const FlashCall& options) {
  { backend.attention(tensor, tensor, tensor, options) } -> std::same_as<typename B::Tensor>;
};

template <Backend B>
class WithAttention : public B {
 public:
  using Tensor = typename B::Tensor;

  /// The engine is of the backend's device, and outlives this. `arguments` are B's.
  template <typename... Arguments>
  explicit WithAttention(Engine& engine, Arguments&&... arguments)
      : B(std::forward<Arguments>(arguments)...), engine_(&engine) {}

  /// softmax(scale Q K^T) V with the options' modifiers; throws as Engine::flash() does.
  Tensor attention(Tensor& q, Tensor& k, Tensor& v, const FlashCall& options = {}) {
    Tensor o = this->empty_like(q);
    attend(q, k, v, o, options);
    return o;
  }
  /// The same into a tensor that is there.
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
