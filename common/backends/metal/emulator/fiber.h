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
  /// Ends the turn of the fiber that runs. With `for_good` the fiber gets no other turn until it is prepared anew.
  void leave(bool for_good = false);

  struct Stack;

 private:
  Stack& at(size_t number);
  static void begin(void* stack);  // the first function of a fiber
  void lay(Stack& stack);          // the frame from which change() enters begin()
  static void change(Stack& from, Stack& to);
  std::vector<std::unique_ptr<Stack>> stacks_;
  std::unique_ptr<Stack> main_;
  Stack* running_ = nullptr;
};

}  // namespace attn::msl
