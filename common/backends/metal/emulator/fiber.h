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
  /// Called on a fiber: goes back to the caller of enter(). With `for_good` the fiber does not run again until it is
  /// prepared anew.
  void leave(bool for_good = false);

  struct Stack;

 private:
  Stack& at(size_t number);
  static void begin(void* stack);    // the first function of a fiber
  void prepare_stack(Stack& stack);  // so that the first switch_stacks() to it calls begin()
  static void switch_stacks(Stack& from, Stack& to);
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::unique_ptr<Stack> main_;  // the stack of the thread that calls enter()
  Stack* running_ = nullptr;
};

}  // namespace attn::msl
