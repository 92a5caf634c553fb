// Stacks of threads that take turns on one host thread.
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
  /// Gives the turn to a fiber, until it calls leave().
  void enter(size_t number);
  /// Ends the turn of the fiber that runs.
  void leave();

  struct Stack;

 private:
  Stack& at(size_t number);
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::unique_ptr<Stack> main_;
  Stack* running_ = nullptr;
};

}  // namespace attn::msl
