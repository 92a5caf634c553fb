// Fibers: each has a stack for one thread of a kernel. The fibers run in turn, all on one host thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace attn::msl {

class Fibers {
 public:
  Fibers();
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  /// Prepares fiber `number` to call `function(argument)` at its next turn. The function must not return, and must not
  /// throw.
  void prepare(size_t number, void (*function)(void*), void* argument);
  /// Runs a fiber until the fiber calls leave().
  void enter(size_t number);
  /// Called on a fiber: goes back to the caller of enter().
  void leave();

  struct Stack;

 private:
  Stack& at(size_t number);
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::unique_ptr<Stack> main_;
  Stack* running_ = nullptr;
};

}  // namespace attn::msl
